"""Comparisons that several policies make."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..protocol import Decision, DraftStep


def go_on_if(wanted: bool) -> Decision:
    """CONTINUE if ``wanted``; comparisons with NaN are False, so degenerate logits stop."""
    return Decision.CONTINUE if wanted else Decision.STOP


def confident(step: DraftStep, threshold: float) -> bool:
    """Whether the draft gave the token itself a probability of at least ``threshold``."""
    return math.exp(step.log_probability) >= threshold


def cost_of(last: DraftStep, draft_cost: float, verify_cost: float) -> float:
    """Of drafting the steps up to ``last`` and verifying their tokens, in target steps.

    Args:
        last: step of the round.
        draft_cost: of a step.
        verify_cost: of a token that is verified; a level of a tree has many.
    """
    return last.position * draft_cost + last.nodes() * verify_cost


def spent(told: float | None, drafted: int, draft_cost: float, verify_cost: float) -> float:
    """What a round cost beyond its target step: as ``told``, by :func:`cost_of`; where nobody
    could tell of the steps, each drafted token counts as one."""
    return drafted * (draft_cost + verify_cost) if told is None else told


def outcomes(last: DraftStep, drafted: int, accepted: int) -> Iterator[tuple[DraftStep, bool]]:
    """Each step of which verification tells whether it was right, and whether it was.

    Those after the first wrong one are not known, nor those that were not submitted.

    Args:
        last: step of the round.
        drafted: how many were submitted.
        accepted: how many of them were.
    """
    for step in list(last.backwards())[::-1][: min(accepted + 1, drafted)]:
        yield step, step.position <= accepted
