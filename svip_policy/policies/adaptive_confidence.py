"""A confidence threshold that is fitted to the record of accepted and rejected tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ..protocol import Decision, DraftStep
from ._parameters import check_count, check_real, describe
from ._rules import confident, go_on_if, outcomes

_ENOUGH = 5  # more than so many are needed for a fit, some of both kinds
_KEPT = 256  # of both kinds


@dataclass(repr=False)
class AdaptiveConfidence:
    """Stop after a token whose probability is < t, where t is fitted after each round.

    To a token that was accepted belongs a 1, to the first one rejected a 0; those after it are
    not known. Of the probabilities seen, t is the one for which false positive rate +
    ``miss_cost`` x false negative rate of "probability >= t" is least: a rejected token above t
    costs a draft step in vain, an accepted one below it a pass of the target. Fitted once more
    than 5 tokens were seen in this sequence, some of both kinds.

    Source: Hugging Face transformers, where scikit-learn is installed. Its record grows without
    end, and its t lives on in the next call; here the last 256 of both kinds count, so that a
    fit costs the same at any length, and each sequence starts anew.

    Args:
        threshold: t at the start, in [0, 1].
        miss_cost: at least 0; 3 in the source, which weighs 25% against 75%.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "adaptive_confidence"
    threshold: float = 0.4
    miss_cost: float = 3.0
    cap: int = 20
    _current: float = field(init=False, default=0.0)
    _accepted: list[float] = field(init=False, default_factory=list)
    _rejected: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        check_real(self.name, "threshold", self.threshold, 0.0, 1.0)
        check_real(self.name, "miss_cost", self.miss_cost)
        check_count(self.name, "cap", self.cap)
        self._current = float(self.threshold)

    def observe(self, step: DraftStep) -> Decision:
        """Compare the token's probability with the current t."""
        return go_on_if(step.position < self.cap and confident(step, self._current))

    def learn(self, last: DraftStep, drafted: int, accepted: int) -> None:
        """Extend the record by the round's accepted tokens and the first rejected one."""
        for step, right in outcomes(last, drafted, accepted):
            record = self._accepted if right else self._rejected
            record.append(math.exp(step.log_probability))
            del record[:-_KEPT]

    def verified(self, drafted: int, accepted: int) -> None:
        """Fit t to the record."""
        few = len(self._accepted) + len(self._rejected) <= _ENOUGH
        if few or not self._accepted or not self._rejected:
            return
        yes, no = np.sort(self._accepted), np.sort(self._rejected)
        candidates = np.concatenate((yes, no))
        above = 1.0 - np.searchsorted(no, candidates) / len(no)
        below = np.searchsorted(yes, candidates) / len(yes)
        costs = above + self.miss_cost * below
        self._current = float(candidates[costs <= costs.min()].max())

    def fresh(self) -> AdaptiveConfidence:
        """The same parameters, nothing on record."""
        return replace(self)

    __repr__ = describe
