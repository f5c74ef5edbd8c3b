"""The paper's figures and two more, from traces and results, as PNG and SVG.

Each function draws one figure from what it is given and returns it; :func:`save` writes it.
Colours are of the Okabe-Ito palette or viridis, and what colour tells is told by shape, hatching
or lightness too.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..bounds import entropy_bound
from ..cost import CostModel
from ..errors import ParameterError
from ..replay import Text
from .report import ALL, speedup, summary, unique
from .runner import TARGET_ONLY, Run
from .texts import Replayed, halve, replay_all

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = "osD^vX"  # one fewer than colours: the pairs repeat after 42
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++")
SHOWN = 160  # tokens of the text in Figure 1
C_OF_FIGURE_4 = 0.18  # the paper's


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write PNG and SVG; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    with mpl.rc_context({"svg.hashsalt": "svip"}):  # the same file from the same figures
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
    return paths


def accepted_along(text: Text) -> Figure:
    """Figure 1: how many drafted tokens are accepted from each position, and the text."""
    count = min(SHOWN, len(text.tokens))
    entropies = np.array([d.entropy for d in text.on[:count]])
    scale = mpl.colors.Normalize(0, max(float(np.nanpercentile(entropies, 95)), 1e-6))
    colours = mpl.colormaps["viridis_r"](scale(entropies))
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(2, 1.5))
    above.bar(range(count), text.matches[:count], color=colours, width=1.0)
    above.set(xlabel="position in the answer", ylabel="drafted tokens accepted",
              title=f"Accepted length along one answer ({text.task}, {text.prompt})",
              xlim=(-0.5, count - 0.5))
    mapped = mpl.cm.ScalarMappable(scale, "viridis_r")
    figure.colorbar(mapped, ax=above, label="draft entropy, nats")
    pieces = text.pieces or [f"{token} " for token in text.tokens]
    _text(below, pieces[:count], colours)
    return figure


def _text(axes: Any, pieces: Sequence[str], colours: Any) -> None:
    """Tokens in lines, each on the colour of its difficulty."""
    axes.axis("off")
    axes.set(xlim=(0, 110), ylim=(0, 1))
    x, line, height = 0.0, 0, 0.11
    for piece, colour in zip(pieces, colours, strict=True):
        shown = piece.replace("\n", "¶").replace("$", r"\$")
        if x + len(piece) > 110:
            x, line = 0.0, line + 1
        if (line + 1) * height > 1:
            break
        dark = float(np.dot(colour[:3], (0.3, 0.6, 0.1))) < 0.5
        axes.add_patch(mpl.patches.Rectangle((x, 1 - (line + 1) * height), len(piece),
                                             0.9 * height, color=colour, lw=0))
        axes.text(x, 1 - (line + 0.75) * height, shown, family="monospace", fontsize=7,
                  color="white" if dark else "black", va="baseline")
        x += len(piece)


def entropy_and_acceptance(texts: Sequence[Text]) -> Figure:
    """Figure 2: entropy against acceptance rate, and against accepted length."""
    entropies, rates, _ = _compared(texts)
    lengths = np.concatenate([t.matches for t in texts])
    every = np.concatenate([[d.entropy for d in t.on] for t in texts])
    every, lengths = (column[np.isfinite(every)] for column in (every, lengths))
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _binned(left, entropies, rates, "acceptance rate, sum min(p, q)")
    _binned(right, every, lengths, "drafted tokens accepted from here")
    left.set_title("Entropy and acceptance rate")
    right.set_title("Entropy and accepted length")
    return figure


def _binned(axes: Any, x: Any, y: Any, label: str) -> None:
    axes.plot(x, y, ".", color="0.75", markersize=2, rasterized=True, label="positions")
    edges = np.quantile(x, np.linspace(0, 1, 13))
    rows = [(x[inside].mean(), *np.percentile(y[inside], (25, 75)), y[inside].mean())
            for low, high in itertools.pairwise(edges)
            if (inside := (x >= low) & (x <= high)).any()]
    centre, low, high, mean = np.array(rows).T
    axes.fill_between(centre, low, high, color=COLOURS[0], alpha=0.3, lw=0, label="quartiles")
    axes.plot(centre, mean, "o-", color=COLOURS[0], label="mean, of 12 equal shares")
    correlation = np.corrcoef(x, y)[0, 1]
    top = float(np.percentile(y, 99.5))
    axes.set(xlabel=f"draft entropy, nats (correlation {correlation:.2f})", ylabel=label,
             ylim=(-0.03 * top, 1.03 * top))
    axes.legend()


def cross_entropy_ratio(texts: Sequence[Text]) -> Figure:
    """Figure 3: histogram of H(q, p) / H(q)."""
    entropies, _, crossed = _compared(texts)
    usable = entropies > 1e-3  # below it the ratio is of rounding errors
    ratios = crossed[usable] / entropies[usable]
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.hist(ratios, bins=list(np.linspace(0.5, 6, 56)), color=COLOURS[0], edgecolor="white",
              lw=0.3)
    middle = float(np.median(ratios))
    axes.axvline(middle, color="black", ls="--", label=f"median {middle:.2f}")
    axes.axvline(1.3, color=COLOURS[5], ls=":", label="1.3, which c = 0.15 stands for")
    axes.set(xlabel=f"H(q, p) / H(q)   ({np.mean(ratios > 6):.0%} beyond 6)", ylabel="positions",
             title="Cross entropy over entropy")
    axes.legend()
    return figure


def bounds_sorted(texts: Sequence[Text]) -> Figure:
    """Figure 4: acceptance rate, Pinsker's bound, and its estimate from entropy, sorted."""
    entropies, rates, crossed = _compared(texts)
    order = np.argsort(rates)
    pinsker = 1 - np.sqrt(np.maximum(crossed - entropies, 0) / 2)
    estimate = np.array([entropy_bound(float(h), C_OF_FIGURE_4) for h in entropies])
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    x = np.linspace(0, 1, len(order))
    for values, colour, style, label in (
        (estimate, COLOURS[1], "--", f"estimate, 1 - sqrt({C_OF_FIGURE_4} H(q))"),
        (pinsker, COLOURS[2], ":", "lower bound, 1 - sqrt(KL(q||p) / 2)"),
    ):
        axes.plot(x, values[order], ".", color=colour, markersize=1.5, alpha=0.35, rasterized=True)
        axes.plot(x, _smooth(values[order]), style, color=colour, lw=2, label=f"{label}, smoothed")
    axes.plot(x, rates[order], color="black", lw=2, label="acceptance rate")
    above = np.mean(estimate > rates)
    axes.set(xlabel=f"positions, sorted   (estimate above the rate at {above:.0%})",
             ylabel="acceptance rate", ylim=(-0.55, 1.02),
             title="Acceptance rate and its lower bounds")
    axes.legend(loc="lower right")
    return figure


def _smooth(values: Any) -> Any:
    """Running mean over 5% of the values, over what there is at both ends."""
    width = max(1, len(values) // 20)
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def lengths_by_task(runs: Sequence[Run]) -> Figure:
    """Figure 5: drafted and accepted tokens a round, and acceptance rate, by task and policy."""
    arms = [arm for arm in unique(r.arm for r in runs) if arm != TARGET_ONLY]
    tasks = [*unique(r.task for r in runs), ALL]
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(arms)
    for n, arm in enumerate(arms):
        found = [summary(runs, arm, task) for task in tasks]
        x = np.arange(len(tasks)) + (n - (len(arms) - 1) / 2) * width
        colour = COLOURS[n % len(COLOURS)]
        axes.bar(x, [s.drafted_length for s in found], width, color="white", edgecolor=colour,
                 hatch=HATCHES[n % len(HATCHES)], lw=0.8)
        axes.bar(x, [s.accepted_length for s in found], width, color=colour, edgecolor="black",
                 lw=0.4, label=arm)
        for place, s in zip(x, found, strict=True):
            axes.annotate(f"{s.acceptance_rate:.0%}", (place, s.drafted_length), (0, 2),
                          textcoords="offset points", ha="center", fontsize=6, rotation=90)
    axes.set_xticks(range(len(tasks)), [task.replace(" ", "\n", 1) for task in tasks])
    axes.set(ylabel="tokens a round", title="Drafted (outline), accepted (filled), acceptance rate")
    axes.margins(y=0.12)  # for the rates
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    return figure


def threshold_sweep(texts: Sequence[Text], cost: CostModel, thresholds: Sequence[float],
                    policy: Callable[[float], str]) -> Figure:
    """Predicted speedup by threshold: on the texts of half of the prompts, and held out.

    Args:
        texts: of at least two prompts.
        cost: of the machine.
        thresholds: to try.
        policy: the text of one with a threshold.

    Raises:
        ParameterError: there is but one prompt.
    """
    names = [policy(h) for h in thresholds]
    halves = halve(texts)
    curves = [[next(r.speedup for r in found if r.policy == name) for name in names]
              for found in (replay_all(half, names, cost) for half in halves)]
    tuned, best = int(np.argmax(curves[0])), int(np.argmax(curves[1]))
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(thresholds, curves[0], "--", color=COLOURS[1], label="texts tuned on")
    axes.plot(thresholds, curves[1], "-", color=COLOURS[0], label="held-out texts")
    axes.plot(thresholds[tuned], curves[1][tuned], "D", color="black",
              label=f"tuned: {thresholds[tuned]:.2f}, {curves[1][tuned]:.3f} held out")
    axes.plot(thresholds[best], curves[1][best], "*", color=COLOURS[5], markersize=13,
              label=f"held-out optimum: {thresholds[best]:.2f}, {curves[1][best]:.3f}")
    axes.set(xlabel="threshold", ylabel="predicted speedup",
             title=f"Threshold of {policy(0.0).split('(')[0]}, by replay")
    axes.legend()
    return figure


def tokens_against_cost(found: Sequence[Replayed], step: float) -> Figure:
    """Tokens a round against what a round costs; lines of equal speedup.

    Args:
        found: policies on the same texts.
        step: seconds of a target step, the unit of cost.
    """
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    axes = figure.subplots()
    points = [(r.policy, r.summary) for r in found]
    x = np.array([s.seconds / s.rounds / step for _, s in points])
    y = np.array([s.tokens_per_round for _, s in points])
    span, top = np.array([min(0.95, x.min()), 1.05 * x.max()]), 1.05 * y.max()
    for slope in np.arange(0.2, 8.0, 0.1):
        leaves = min(span[1], top / slope)  # by the right or by the top
        if leaves > span[0] and slope * leaves > 0.95 * y.min():
            axes.plot(span, slope * span, color="0.85", lw=0.8, zorder=0)
            axes.annotate(f"{slope:.1f}", (leaves, slope * leaves), (2, 2), fontsize=7,
                          color="0.4", textcoords="offset points")
    for n, (name, _) in enumerate(points):
        axes.plot(x[n], y[n], MARKERS[n % len(MARKERS)], markersize=8,
                  color=COLOURS[n % len(COLOURS)], markeredgecolor="black",
                  label=textwrap.fill(f"{name}: {found[n].speedup:.2f}", 68))
    axes.set(xlabel="cost of a round, in target steps", ylabel="tokens a round", xlim=span,
             ylim=(0.95 * y.min(), top))
    axes.set_title("Tokens against cost, by replay (grey: equal predicted speedup)", pad=16)
    figure.legend(fontsize=7, loc="outside lower center", ncols=2)
    return figure


def speedups_by_arm(runs: Sequence[Run]) -> Figure:
    """Paired speedup over target-only decoding of each arm, with its 95% interval."""
    arms = [arm for arm in unique(r.arm for r in runs) if arm != TARGET_ONLY]
    found = [speedup(runs, arm) for arm in arms]
    figure = Figure(figsize=(7, 0.6 + 0.35 * len(arms)), layout="constrained")
    axes = figure.subplots()
    for n, ratio in enumerate(found):
        axes.plot((ratio.low, ratio.high), (n, n), color=COLOURS[0], lw=2)
        axes.plot(ratio.paired, n, "o", color="black")
    axes.axvline(1.0, color=COLOURS[5], ls="--", lw=1)
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
    axes.set(xlabel="paired speedup over target-only, 95% interval")
    return figure


def _compared(texts: Sequence[Text]) -> tuple[Any, Any, Any]:
    """Entropies, acceptance rates and cross entropies of all positions that have them."""
    rows = [(d.entropy, rate, crossed) for t in texts for d, rate, crossed in
            zip(t.on, t.acceptance_rates, t.cross_entropies, strict=False)
            if rate is not None and crossed is not None and np.isfinite(d.entropy)]
    if not rows:
        raise ParameterError("the trace lacks the distributions that Figures 2 to 4 need: record "
                             "it with 'svip trace --distributions'")
    entropies, rates, crossed = np.array(rows, dtype=float).T
    return entropies, rates, crossed
