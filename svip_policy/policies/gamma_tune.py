"""A draft length that follows what was accepted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..protocol import Decision, DraftStep
from ._parameters import check_count, check_real, describe
from ._rules import go_on_if


@dataclass(repr=False)
class GammaTune:
    """Draft n tokens; n is the moving average of what was accepted, or more after full acceptance.

    After a round with all n accepted n = accepted + grow, else n is the moving average of
    accepted tokens, rounded, at least 1.

    Source: GammaTune (arXiv 2504.00030). As in :class:`svip_policy.Heuristic` a round that the
    framework cut short of n does not count as full acceptance.

    Args:
        length: n at the start, and what the average begins with, at least 1.
        grow: at least 0.
        rate: weight of the newest round in the average, in [0, 1].
        cap: n stays at most this, at least ``length``.
    """

    name: ClassVar[str] = "gamma_tune"
    length: int = 5
    grow: int = 1
    rate: float = 0.5
    cap: int = 40
    _current: int = field(init=False, default=0)
    _average: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_count(self.name, "length", self.length)
        check_count(self.name, "grow", self.grow, low=0)
        check_real(self.name, "rate", self.rate, 0.0, 1.0)
        check_count(self.name, "cap", self.cap, low=self.length)
        self._current, self._average = self.length, float(self.length)

    def observe(self, step: DraftStep) -> Decision:
        """Stop at the current n."""
        return go_on_if(step.position < self._current)

    def verified(self, drafted: int, accepted: int) -> None:
        """Adapt n. A round without a draft says nothing."""
        if not drafted:
            return
        self._average += self.rate * (accepted - self._average)
        if accepted < drafted:
            self._current = max(1, round(self._average))
        elif drafted >= self._current:
            self._current = min(self.cap, accepted + self.grow)

    def fresh(self) -> GammaTune:
        """The same parameters, n at its start."""
        return replace(self)

    __repr__ = describe
