"""Tables of recorded runs, as Markdown.

Conventions: speedup is (all tokens / all seconds) relative to target-only decoding, unless
it says "mean of prompts"; the acceptance rate is pooled accepted / drafted; lengths are
means per round, the target's own token not counted; generated ids are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate

from .. import provenance
from ..errors import ParameterError
from ..summary import Round, Summary
from .runner import TARGET_ONLY, Run
from .statistics import Speedup, paired_speedup

ALL = "all"


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
        interval = "" if arm == TARGET_ONLY else _with_interval(overall)
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
        interval = "" if arm == TARGET_ONLY else _with_interval(overall)
        against = speedup(runs, arm, base=base)
        rows.append([arm, f"{overall.total:.2f}", interval,
                     "" if arm == base else
                     _with_interval(against),
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


def _with_interval(ratio: Speedup) -> str:
    return f"{ratio.paired:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


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
