"""Which figures there are, by name; a new one: its function in figures.py, its line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .. import POLICIES, parse
from ..cost import CostModel
from ..errors import ParameterError
from ..replay import Text
from . import figures, report
from .runner import Run
from .texts import load, replay_all


def draw(
    folder: Path, trace: Path | None, result: Path | None, cost: CostModel | None, text: int,
    policies: Sequence[str] | None,
) -> Iterator[Path]:
    """Draw all figures that the files allow.

    Args:
        folder: to write to.
        trace: of texts, or None.
        result: of a comparison, or None.
        cost: of the machine, or None.
        text: which one Figure 1 shows.
        policies: on the figure of costs; all registered ones by default, and some fixed lengths.

    Yields:
        The path of each file.

    Raises:
        TraceError: ``trace`` is none.
        ParameterError: a file lacks what a figure needs, or its conditions.
    """
    if trace is not None:
        yield from _from_texts(folder, load(trace)[1], cost, text, policies)
    if result is not None:
        runs = [Run(**run) for run in report.load(result)["runs"]]
        yield from figures.save(figures.lengths_by_task(runs), folder, "figure-5-lengths")
        yield from figures.save(figures.speedups_by_arm(runs), folder, "speedups")


def _from_texts(folder: Path, texts: list[Text], cost: CostModel | None, text: int,
                policies: Sequence[str] | None) -> Iterator[Path]:
    if text >= len(texts):
        raise ParameterError(f"text {text} of {len(texts)}: count from 0")
    drawn: dict[str, Callable[[], Figure]] = {
        "figure-1-accepted-length": lambda: figures.accepted_along(texts[text]),
        "figure-2-entropy": lambda: figures.entropy_and_acceptance(texts),
        "figure-3-cross-entropy": lambda: figures.cross_entropy_ratio(texts),
        "figure-4-bounds": lambda: figures.bounds_sorted(texts),
    }
    if cost is not None:
        names = [repr(parse(p)) for p in policies or [*POLICIES, *(f"constant({n})" for n in
                                                                  (1, 2, 3, 4, 8))]]
        cap = min(40, cost.longest, *(t.longest for t in texts))
        drawn["threshold-sweep"] = lambda: figures.threshold_sweep(
            texts, cost, [float(h) for h in np.linspace(0.02, 0.9, 45)],
            lambda h: f"svip(threshold={h:.4g}, cap={cap})")
        drawn["tokens-against-cost"] = lambda: figures.tokens_against_cost(
            replay_all(texts, dict.fromkeys(names), cost), cost.verify_seconds(0, 100))
    for name, make in drawn.items():
        yield from figures.save(make(), folder, name)
