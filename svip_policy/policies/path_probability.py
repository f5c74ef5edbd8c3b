"""Stop when the draft itself thinks the whole of what it drafted unlikely."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..protocol import Decision, DraftStep
from ._parameters import check_count, check_real, describe


@dataclass(frozen=True, repr=False)
class PathProbability:
    """Stop after a token when the product of q over the tokens of the round is < threshold.

    The product is the draft's own estimate that all of them will be accepted, so unlike a
    rule that looks at one token it also stops a long row of middling ones. On a tree it is
    that of the best path (see :class:`svip_policy.TreeStep`). The token itself is kept.

    Source: the value by which EAGLE-2 (arXiv 2406.16858, section 4) ranks the nodes of its
    tree, here as a rule to stop by, which EAGLE-2 has not.

    Args:
        threshold: in [0, 1]; 0 never stops before ``cap``.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "path_probability"
    threshold: float = 0.1
    cap: int = 40

    def __post_init__(self) -> None:
        check_real(self.name, "threshold", self.threshold, 0.0, 1.0)
        check_count(self.name, "cap", self.cap)

    def observe(self, step: DraftStep) -> Decision:
        """Multiply up the round; NaN compares as False and stops."""
        if step.position >= self.cap:
            return Decision.STOP
        total = sum(kept.log_probability for kept in step.backwards())
        return Decision.CONTINUE if math.exp(total) >= self.threshold else Decision.STOP

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""

    def fresh(self) -> PathProbability:
        """Itself: it has no state."""
        return self

    __repr__ = describe
