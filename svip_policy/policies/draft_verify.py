"""A confidence threshold that follows the acceptance rate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..protocol import Decision, DraftStep
from ._parameters import check_count, check_real, describe
from ._rules import confident, go_on_if

_KEPT = 0.9  # of the threshold at each round, the rest is of its new value


@dataclass(repr=False)
class DraftVerify:
    """Stop after a token whose probability is < t, where t follows the acceptance rate.

    After each round r = r / 2 + accepted / drafted / 2, from r = 0; t moves a tenth of the way
    to t + step if r < target_rate, else to t - step, unless the round hit the cap.

    Source: Draft & Verify, self-speculative decoding (arXiv 2309.08168), and its code. There
    the threshold begins at 0.8 or 0.6 by task and lives on from one text to the next.

    Args:
        threshold: t at the start, in [0, 1].
        target_rate: of acceptance, in [0, 1].
        step: at least 0.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "draft_verify"
    threshold: float = 0.5
    target_rate: float = 0.9
    step: float = 0.01
    cap: int = 8
    _current: float = field(init=False, default=0.0)
    _rate: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_real(self.name, "threshold", self.threshold, 0.0, 1.0)
        check_real(self.name, "target_rate", self.target_rate, 0.0, 1.0)
        check_real(self.name, "step", self.step)
        check_count(self.name, "cap", self.cap)
        self._current = float(self.threshold)

    def observe(self, step: DraftStep) -> Decision:
        """Compare the token's probability with the current t."""
        return go_on_if(step.position < self.cap and confident(step, self._current))

    def verified(self, drafted: int, accepted: int) -> None:
        """Move t. A round without a draft says nothing."""
        if not drafted:
            return
        self._rate = 0.5 * self._rate + 0.5 * accepted / drafted
        wanted = self._current
        if self._rate < self.target_rate:
            wanted += self.step
        elif drafted < self.cap:
            wanted -= self.step
        moved = _KEPT * self._current + (1 - _KEPT) * wanted
        self._current = min(1.0, max(0.0, moved))

    def fresh(self) -> DraftVerify:
        """The same parameters, t at its start."""
        return replace(self)

    __repr__ = describe
