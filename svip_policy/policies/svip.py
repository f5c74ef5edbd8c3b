"""SVIP: stop when the draft's own entropy says that the next token will be rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..bounds import entropy_distance
from ..protocol import Decision, DraftStep
from ..signals import entropy
from ._parameters import check_count, check_real, describe


@dataclass(frozen=True, repr=False)
class SVIP:
    """Stop after a token whose distribution has sqrt(c H) > threshold, H in nats.

    The estimated lower bound of the acceptance rate is 1 - sqrt(c H) (see
    :func:`svip_policy.bounds.entropy_bound`), so the rule stops where it is below
    1 - threshold. The uncertain token itself is kept and verified.

    Source: Zhang et al., arXiv 2411.18462. Their paper absorbs c and compares sqrt(H) with
    0.3, which is 0.09 nats; their code, which made the tables, tests sqrt(0.15 H) > 0.3,
    which is 0.6 nats. The defaults here follow the code.

    Args:
        threshold: h, at least 0; ``math.inf`` never stops before ``cap``.
        c: the factor under the root, at least 0.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "svip"
    threshold: float = 0.3
    c: float = 0.15
    cap: int = 40

    def __post_init__(self) -> None:
        check_real(self.name, "threshold", self.threshold)
        check_real(self.name, "c", self.c)
        check_count(self.name, "cap", self.cap)

    def observe(self, step: DraftStep) -> Decision:
        """Compare the root with the threshold; NaN entropy compares as False and stops."""
        if step.position < self.cap and entropy_distance(step.entropy, self.c) <= self.threshold:
            return Decision.CONTINUE
        return Decision.STOP

    def observe_batch(self, position: int, logits: Any, tokens: Any) -> Any:
        """See :class:`svip_policy.BatchPolicy`."""
        # Squared: rounding may leave an entropy a little below 0.
        return (self.c * entropy(logits) <= self.threshold**2) & (position < self.cap)

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""

    def fresh(self) -> SVIP:
        """Itself: it has no state."""
        return self

    __repr__ = describe
