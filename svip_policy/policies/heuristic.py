"""A draft length that grows with success and shrinks with failure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..protocol import Decision, DraftStep
from ._parameters import check_count, describe


@dataclass(repr=False)
class Heuristic:
    """Draft n tokens; after a round with all n accepted n grows by 2, else it shrinks by 1.

    Source: Hugging Face transformers' "heuristic" schedule; SVIP's second baseline. Two
    differences: n starts anew with each sequence (transformers' leaks into the next call),
    and a round that the framework cut short of n, by the end of the sequence or of the
    budget, does not count as "all accepted".

    Args:
        length: n at the start, at least 1.
        grow: added to n after full acceptance, at least 0.
        shrink: taken from n otherwise, at least 0; n stays at least 1.
        cap: n stays at most this, at least ``length``.
    """

    name: ClassVar[str] = "heuristic"
    length: int = 5
    grow: int = 2
    shrink: int = 1
    cap: int = 40
    _current: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        check_count(self.name, "length", self.length)
        check_count(self.name, "grow", self.grow, low=0)
        check_count(self.name, "shrink", self.shrink, low=0)
        check_count(self.name, "cap", self.cap, low=self.length)
        self._current = self.length

    def observe(self, step: DraftStep) -> Decision:
        """Stop at the current n."""
        return Decision.STOP if step.position >= self._current else Decision.CONTINUE

    def verified(self, drafted: int, accepted: int) -> None:
        """Adapt n. A round without a draft says nothing."""
        if accepted < drafted:
            self._current = max(1, self._current - self.shrink)
        elif drafted >= self._current:
            self._current = min(self.cap, self._current + self.grow)

    def fresh(self) -> Heuristic:
        """The same parameters, n at its start."""
        return replace(self)

    __repr__ = describe
