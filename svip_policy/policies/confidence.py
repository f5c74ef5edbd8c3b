"""Stop after a token that the draft itself thought unlikely."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..protocol import Decision, DraftStep
from ..signals import log_probability
from ._parameters import check_count, check_real, describe
from ._rules import confident, go_on_if


@dataclass(frozen=True, repr=False)
class Confidence:
    """Stop after a token whose probability under the draft is < threshold.

    Source: Hugging Face transformers' default since 4.45 (``assistant_confidence_threshold``
    and ``num_assistant_tokens``), whose threshold is adapted where scikit-learn is installed:
    see :class:`svip_policy.AdaptiveConfidence`.

    Args:
        threshold: in [0, 1]; 0 never stops before ``cap``.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "confidence"
    threshold: float = 0.4
    cap: int = 20

    def __post_init__(self) -> None:
        check_real(self.name, "threshold", self.threshold, 0.0, 1.0)
        check_count(self.name, "cap", self.cap)

    def observe(self, step: DraftStep) -> Decision:
        """Compare the token's probability."""
        return go_on_if(step.position < self.cap and confident(step, self.threshold))

    def observe_batch(self, position: int, logits: Any, tokens: Any) -> Any:
        """See :class:`svip_policy.BatchPolicy`."""
        least = math.log(self.threshold) if self.threshold else -math.inf
        return (log_probability(logits, tokens) >= least) & (position < self.cap)

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""

    def fresh(self) -> Confidence:
        """Itself: it has no state."""
        return self

    __repr__ = describe
