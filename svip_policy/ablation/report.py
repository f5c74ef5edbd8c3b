"""Tables of recorded runs, and the report of a comparison, as Markdown.

Conventions: speedup is (all tokens / all seconds) relative to target-only decoding, unless
it says "mean of prompts"; the acceptance rate is pooled accepted / drafted; lengths are
means per round, the target's own token not counted; generated ids are counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from .. import provenance
from ..errors import ParameterError
from ..summary import Round, Summary
from .runner import FRAMEWORK, TARGET_ONLY, Run
from .statistics import Speedup, paired_speedup

ALL = "all"
LISTED = 24  # answers that part from the target's, in the text of a report


def check_provenance(header: dict[str, Any]) -> None:
    """Raise ParameterError unless ``header`` says under which conditions it was measured."""
    missing = provenance.missing(header)
    if missing:
        raise ParameterError(f"results without provenance are not reported: no {missing}")


def unique(values: Iterable[str]) -> list[str]:
    """Values in order of first appearance."""
    return list(dict.fromkeys(values))


def speedup(runs: Sequence[Run], arm: str, task: str = ALL, base: str = TARGET_ONLY) -> Speedup:
    """Paired speedup of ``arm`` over ``base`` in one task or all."""
    by_arm = {
        name: {r.prompt: r for r in runs if r.arm == name and task in (ALL, r.task)}
        for name in (arm, base)
    }
    shared = [p for p in by_arm[base] if p in by_arm[arm]]
    mine, its = ([by_arm[name][p] for p in shared] for name in (arm, base))
    return paired_speedup([r.count for r in mine], [r.seconds for r in mine],
                          [r.count for r in its], [r.seconds for r in its])


def summary(runs: Sequence[Run], arm: str, task: str = ALL) -> Summary:
    """Rounds of one arm in one task or all."""
    return Summary.of([Round(*r) for run in runs if run.arm == arm and task in (ALL, run.task)
                       for r in run.rounds])


def speedup_table(runs: Sequence[Run]) -> str:
    """Speedup over target-only decoding by task and overall: the paper's Table 1."""
    tasks, arms = unique(r.task for r in runs), unique(r.arm for r in runs)
    rows = []
    for arm in sorted(arms, key=lambda a: a != TARGET_ONLY):
        overall = speedup(runs, arm)
        interval = "" if arm == TARGET_ONLY else with_interval(overall)
        rows.append([arm, *(f"{speedup(runs, arm, t).total:.2f}" for t in tasks),
                     f"{overall.total:.2f}", f"{overall.of_means:.2f}", interval])
    return _markdown(rows, ["", *tasks, ALL, "mean of prompts", "paired, 95% interval"])


def lengths_table(runs: Sequence[Run]) -> str:
    """Drafted length / accepted length / acceptance rate by task: the paper's Figure 5."""
    tasks = [*unique(r.task for r in runs), ALL]
    rows = []
    for arm in unique(r.arm for r in runs):
        if arm == TARGET_ONLY:
            continue
        found = [summary(runs, arm, task) for task in tasks]
        rows.append([arm, *(f"{s.drafted_length:.2f} / {s.accepted_length:.2f} / "
                            f"{s.acceptance_rate:.0%}" for s in found)])
    return _markdown(rows, ["drafted / accepted / rate", *tasks])


def trees_table(runs: Sequence[Run], base: str) -> str:
    """Arms that draft trees: speedup, and means a round of levels, nodes and accepted tokens."""
    rows = []
    for arm in unique(r.arm for r in runs):
        overall, found = speedup(runs, arm), summary(runs, arm)
        nodes, levels = (sum(getattr(r, name) for r in runs if r.arm == arm)
                         for name in ("nodes", "levels"))
        interval = "" if arm == TARGET_ONLY else with_interval(overall)
        against = speedup(runs, arm, base=base)
        rows.append([arm, f"{overall.total:.2f}", interval,
                     "" if arm == base else
                     with_interval(against),
                     *(("", "", "") if not found.rounds else (
                         f"{levels / found.rounds:.2f}", f"{nodes / found.rounds:.1f}",
                         f"{found.accepted_length:.2f}"))])
    return _markdown(rows, ["", "speedup", "paired, 95% interval", f"against {base}",
                            "levels drafted", "nodes verified", "tokens accepted"])


def seconds_table(runs: Sequence[Run]) -> str:
    """Where the time went: draft, verification, policy and the rest, and tokens."""
    rows = []
    for arm in unique(r.arm for r in runs):
        mine = [r for r in runs if r.arm == arm]
        wall, tokens = sum(r.seconds for r in mine), sum(r.count for r in mine)
        parts = [sum(getattr(r, f"{part}_seconds") for r in mine)
                 for part in ("draft", "verify", "policy")]
        drafted = sum(d for r in mine for d, _ in r.rounds)
        rows.append([arm, tokens, drafted, f"{wall:.1f}", *(f"{part:.2f}" for part in parts),
                     f"{1000 * wall / tokens:.1f}"])
    return _markdown(rows, ["", "tokens", "drafted", "wall s", "draft s", "verify s", "policy s",
                            "ms per token"])


def with_interval(ratio: Speedup, digits: int = 2) -> str:
    """Such as ``1.04 (0.97 to 1.11)``."""
    low, high = (f"{value:.{digits}f}" for value in (ratio.low, ratio.high))
    return f"{ratio.paired:.{digits}f} ({low} to {high})"


def _markdown(rows: list[list[Any]], headers: list[str]) -> str:
    return str(tabulate(rows, headers, "pipe", disable_numparse=True))


def verdicts(runs: Sequence[Run]) -> list[str]:
    """Plain sentences: which arms lose to target-only decoding, and how arms compare."""
    lines = []
    for arm in unique(r.arm for r in runs):
        if arm == TARGET_ONLY:
            continue
        slow = [t for t in unique(r.task for r in runs) if speedup(runs, arm, t).total < 1]
        overall = speedup(runs, arm)
        if overall.total < 1:
            lines.append(f"{arm} is slower than target-only decoding: {overall.total:.2f} times "
                         "its speed.")
        elif slow:
            lines.append(f"{arm} is slower than target-only decoding in: {', '.join(slow)}.")
    return lines or ["No arm was slower than target-only decoding, in any task."]


def comparison(runs: Sequence[Run], arm: str, base: str) -> str:
    """One sentence: the paired speedup of one arm over another, and whether it is noise."""
    ratio = speedup(runs, arm, base=base)
    begun = f"{arm} against {base}: {ratio.paired:.2f} times its speed"
    if math.isnan(ratio.low):
        return f"{begun}, from one prompt: no interval."
    verdict = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "within noise"
    return f"{begun}, 95% interval {ratio.low:.2f} to {ratio.high:.2f}: {verdict}."


def load(path: Path) -> dict[str, Any]:
    """A result that :class:`.comparison.Comparison` wrote.

    Raises:
        ParameterError: the file is none, or does not tell its conditions.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not result["runs"]:
            raise ParameterError(f"{path} holds no runs")
        check_provenance(result["conditions"])
        render(result)
    except ParameterError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{path} is no result of a comparison ({error!r}): give the JSON that "
                             "it wrote") from error
    return dict(result)


def speedups(path: Path) -> dict[str, float]:
    """Of each arm of a result, all tokens over all seconds; errors as of :func:`load`."""
    runs = [Run(**run) for run in load(path)["runs"]]
    return {arm: speedup(runs, arm).total for arm in unique(r.arm for r in runs)}


def render(result: dict[str, Any]) -> str:
    """The report of a comparison.

    Args:
        result: its ``conditions`` may tell a ``title``, ``conventions`` (a paragraph on how to
            read the tables), ``base`` (the arm that the others are compared with), ``trees``
            (whether arms draft trees) and the ``upstream`` (name and version).
    """
    h, runs = result["conditions"], [Run(**run) for run in result["runs"]]
    fixed = (arm for arm, _ in h["tuned"].values() if arm.startswith("constant("))
    base = h.get("base") or next(fixed, TARGET_ONLY)
    others = [arm for arm in h["arms"] if arm not in (TARGET_ONLY, base)]
    first = [trees_table(runs, base), "", "By task:", ""] if h.get("trees") else []
    lengths = [] if h.get("trees") else [
        "Tokens drafted a round / accepted a round, the target's own not counted / pooled "
        "acceptance rate:", "", lengths_table(runs), ""]
    long_form = [] if not any(r.marks for r in runs) else [
        "Speedup by length of the answer:", "", marks_table(runs), ""]
    return "\n".join([
        f"## {h.get('title', 'Comparison')}, {h['models']['target']}", "", _conditions(h), "",
        *([h["conventions"], ""] if "conventions" in h else []), *first, speedup_table(runs), "",
        *lengths, *long_form, "Where the time went:", "", seconds_table(runs), "",
        *(f"- {line}" for line in [*_tuned(h), *_left_out(h),
                                   *(comparison(runs, arm, base) for arm in others),
                                   *verdicts(runs), *divergence_notes(h, result["divergences"])]),
        "",
    ])


def _conditions(h: dict[str, Any]) -> str:
    v = h["versions"]
    upstream = "".join(f", {name} {version}" for name, version in h.get("upstream", {}).items())
    return (f"{h['prompts']} prompts, up to {h['max_new_tokens']} tokens a turn, {h['decoding']} "
            f"decoding, {h['dtype']}; {h['device']}, {h['threads']} threads; torch {v['torch']}, "
            f"transformers {v['transformers']}{upstream}, commit {h['commit']}; "
            f"{', '.join(f'{role}: {name}' for role, name in h['models'].items())}.")


def _tuned(h: dict[str, Any]) -> list[str]:
    how = " by replay" if h.get("tuned_by") == "replay" else ""
    return [f"Tuned{how} on {h['tuning_prompts']} other prompts: {arm}, of {tried} tried."
            for arm, tried in h["tuned"].values()]


def _left_out(h: dict[str, Any]) -> list[str]:
    there = h.get("trees") or FRAMEWORK in h["arms"]  # trees are of other frameworks
    return [] if there else ["transformers' own rule was left out."]


def divergence_notes(h: dict[str, Any], found: list[dict[str, Any]]) -> list[str]:
    """Whether outputs were identical; if not, where they part and how near a tie it was."""
    if h["decoding"] != "greedy":
        return []
    if not found:
        return [f"In {h['dtype']} all arms gave identical greedy output."]
    ties = sum(d["gap"] <= h["tie"] for d in found)
    # The furthest first, and not all of hundreds: the JSON has every one.
    far = sorted(found, key=lambda d: -d["gap"])[:LISTED]
    listed = [f"{d['prompt']} turn {d['turn'] + 1} under {d['arm']} at token {d['position']} "
              f"(gap {d['gap']:.3f})" for d in far]
    rest = len(found) - len(far)
    return [f"In {h['dtype']} {len(found)} answers part from the target's, {ties} of them where "
            f"its logits of the two tokens are within {h['tie']}, which a pass over several tokens "
            "may round otherwise than a pass over one: " + "; ".join(listed)
            + (f"; and {rest} with gaps no larger, which the JSON lists." if rest else ".")]


def marks_table(runs: Sequence[Run]) -> str:
    """Speedup over target-only decoding at the marks of long answers, total over total."""
    arms = unique(r.arm for r in runs)
    rates = {arm: [_rate([r for r in runs if r.arm == arm], n)
                   for n in range(min(len(r.marks) for r in runs))] for arm in arms}
    heads = [str(min(r.marks[n][0] for r in runs)) for n in range(len(rates[TARGET_ONLY]))]
    return _markdown([[arm, *(f"{mine / its:.2f}" for mine, its in
                              zip(rates[arm], rates[TARGET_ONLY], strict=True))] for arm in arms],
                     ["tokens", *heads])


def _rate(runs: Sequence[Run], mark: int) -> float:
    return sum(r.marks[mark][0] for r in runs) / sum(r.marks[mark][1] for r in runs)
