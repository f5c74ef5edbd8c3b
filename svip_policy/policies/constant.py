"""A fixed draft length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..protocol import Decision, DraftStep
from ..signals import usable
from ._parameters import check_count, describe


@dataclass(frozen=True, repr=False)
class Constant:
    """Draft ``length`` tokens every round: SVIP's first baseline.

    Args:
        length: tokens a round, at least 1.
    """

    name: ClassVar[str] = "constant"
    length: int = 5

    def __post_init__(self) -> None:
        check_count(self.name, "length", self.length)

    @property
    def cap(self) -> int:
        """The most tokens it drafts in a round."""
        return self.length

    def observe(self, step: DraftStep) -> Decision:
        """Stop at ``length``."""
        return Decision.STOP if step.position >= self.length else Decision.CONTINUE

    def observe_batch(self, position: int, logits: Any, tokens: Any) -> Any:
        """See :class:`svip_policy.BatchPolicy`; degenerate logits stop, as ever."""
        return usable(logits) & (position < self.length)

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""

    def fresh(self) -> Constant:
        """Itself: it has no state."""
        return self

    __repr__ = describe
