"""Stop where the draft hesitates between two tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..protocol import Decision, DraftStep
from ._parameters import check_count, check_real, describe
from ._rules import go_on_if


@dataclass(frozen=True, repr=False)
class Margin:
    """Stop after a token where the most probable one leads the next by < threshold.

    Source: one of the rules that TapOut chooses between (arXiv 2511.02017).

    Args:
        threshold: difference of probabilities, in [0, 1]; 0 never stops before ``cap``.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "margin"
    threshold: float = 0.2
    cap: int = 40

    def __post_init__(self) -> None:
        check_real(self.name, "threshold", self.threshold, 0.0, 1.0)
        check_count(self.name, "cap", self.cap)

    def observe(self, step: DraftStep) -> Decision:
        """Compare the margin; NaN compares as False and stops."""
        return go_on_if(step.position < self.cap and step.margin >= self.threshold)

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""

    def fresh(self) -> Margin:
        """Itself: it has no state."""
        return self

    __repr__ = describe
