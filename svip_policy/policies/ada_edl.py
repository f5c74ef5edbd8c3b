"""The entropy bound with a threshold that follows the acceptance rate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..bounds import entropy_bound
from ..protocol import Decision, DraftStep
from ._parameters import check_count, check_real, describe
from ._rules import go_on_if


@dataclass(repr=False)
class AdaEDL:
    """Stop after a token whose entropy bound 1 - sqrt(c H) is < l, where l follows acceptance.

    After each round r = r / 2 + accepted / drafted / 2, from r = 0; l grows by ``step`` if
    r < target_rate, else it shrinks by it, unless the round hit the cap. It stays in [0, 1].

    Source: AdaEDL (arXiv 2410.18351). Its paper tests the entropy before it samples the token,
    which it then does not draft; here the question comes after the token is kept, as in every
    policy of this package, so drafts are one token longer at the same l. Its l begins between
    0.3 and 0.9 by model and task, and shrinks only after rounds that were not wholly accepted:
    with drafts of one or two tokens that could never happen, so here it is the rule of Draft &
    Verify, from which the schedule is.

    Args:
        threshold: l at the start, in [0, 1].
        c: the factor under the root, at least 0; the paper's gamma.
        target_rate: of acceptance, in [0, 1].
        step: at least 0.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "ada_edl"
    threshold: float = 0.4
    c: float = 0.2
    target_rate: float = 0.9
    step: float = 0.01
    cap: int = 40
    _current: float = field(init=False, default=0.0)
    _rate: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_real(self.name, "threshold", self.threshold, 0.0, 1.0)
        check_real(self.name, "c", self.c)
        check_real(self.name, "target_rate", self.target_rate, 0.0, 1.0)
        check_real(self.name, "step", self.step)
        check_count(self.name, "cap", self.cap)
        self._current = float(self.threshold)

    def observe(self, step: DraftStep) -> Decision:
        """Compare the bound with the current l; NaN compares as False and stops."""
        return go_on_if(step.position < self.cap
                        and entropy_bound(step.entropy, self.c) >= self._current)

    def verified(self, drafted: int, accepted: int) -> None:
        """Move l. A round without a draft says nothing."""
        if not drafted:
            return
        self._rate = 0.5 * self._rate + 0.5 * accepted / drafted
        if self._rate < self.target_rate:
            self._current = min(1.0, self._current + self.step)
        elif drafted < self.cap:
            self._current = max(0.0, self._current - self.step)

    def fresh(self) -> AdaEDL:
        """The same parameters, l at its start."""
        return replace(self)

    __repr__ = describe
