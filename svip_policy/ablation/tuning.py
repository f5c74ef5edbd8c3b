"""Texts of policies with ranges, such as ``svip(threshold=0.2..0.5)``, and costs put into them:
those of a table, or those that tuning runs show."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from ..cost import CostModel
from ..errors import ParameterError, PolicyTextError
from ..policies import Bandit, Marginal, parse
from .runner import Run

_NUMBER = r"-?(?:\d+(?:\.\d+)?|\.\d+)(?:e-?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?")
POINTS = 7
_SPREAD = 1.5  # of nodes a round; less and the ends of texts decide what is fitted


def expand(text: str) -> list[str]:
    """The policies that ``text`` stands for, each as its ``repr``.

    A range ``a..b`` of whole numbers means each of them, of others POINTS evenly spaced ones;
    ``a..b..step`` those that are ``step`` apart. Several ranges are combined.

    Raises:
        PolicyTextError: a range is empty, or the text is none.
        ParameterError: a policy refuses a value.
    """
    parts = _RANGE.split(text)
    values = [_values(text, *parts[n : n + 3]) for n in range(1, len(parts), 4)]
    fixed = parts[::4]
    found = []
    for chosen in itertools.product(*values):
        pieces = itertools.zip_longest(fixed, chosen, fillvalue="")
        found.append(repr(parse("".join(itertools.chain.from_iterable(pieces)))))
    return list(dict.fromkeys(found))


def with_costs(text: str, cost: CostModel | None) -> str:
    """The ``repr`` of a policy; ``marginal`` and ``bandit``, given no costs, get those of ``cost``.

    Raises:
        PolicyTextError: the text is none.
        ParameterError: a policy refuses a value.
    """
    policy = parse(text)
    if cost is not None and policy in (Marginal(), Bandit()):
        measured = Marginal.of(cost, cap=policy.cap)
        policy = replace(policy, draft_cost=measured.draft_cost, verify_cost=measured.verify_cost,
                         cap=measured.cap)
    return repr(policy)


def measured_in(runs: Sequence[Run]) -> tuple[float, float]:
    """What a draft step and the verification of one node cost in live runs, in target steps.

    Where verification cannot be measured by itself, as a tree's in its framework: its seconds are
    fitted by so many a round and so many a node, neither below 0; a target step is the former.

    Args:
        runs: of arms that verify different numbers of nodes a round; those that draft nothing do
            not count.

    Returns:
        ``draft_cost`` and ``verify_cost`` of :class:`svip_policy.Marginal`.

    Raises:
        ParameterError: no arm verifies half as many nodes again as another, or verification
            seems to cost nothing but its nodes.
    """
    runs = [run for run in runs if run.rounds and run.levels]
    table = np.array([[len(run.rounds), run.nodes] for run in runs], dtype=float).reshape(-1, 2)
    sizes = table[:, 1] / table[:, 0]
    if not runs or sizes.max() < _SPREAD * sizes.min():
        raise ParameterError("costs cannot be told from runs that all verify about as many nodes "
                             "a round: add arms of other lengths or tree sizes")
    (step, node), _ = nnls(table, np.array([run.verify_seconds for run in runs]))
    if not step > 0:
        raise ParameterError("verification seems to cost nothing but its nodes: add arms that "
                             "verify few")
    drafted = sum(run.draft_seconds for run in runs) / sum(run.levels for run in runs)
    return float(drafted / step), float(node / step)


def _values(text: str, low: str, high: str, step: str | None) -> list[str]:
    first, last = float(low), float(high)
    whole = all(re.fullmatch(r"-?\d+", part) for part in (low, high, step or "1"))
    if last < first or (step is not None and float(step) <= 0):
        raise PolicyTextError(f"{low}..{high} in {text!r} is no range; write e.g. 0.2..0.5, or "
                              "0.2..0.5..0.1 for the step")
    if whole:
        return [str(n) for n in range(int(low), int(high) + 1, int(step or 1))]
    if step is None:
        return [f"{x:.6g}" for x in np.linspace(first, last, POINTS)]
    # Half a step more, or rounding would lose the end.
    return [f"{x:.6g}" for x in np.arange(first, last + float(step) * 1e-6, float(step))]
