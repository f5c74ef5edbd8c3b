"""Cost-aware optimal stopping: draft another token if it gains more than it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..cost import CostModel
from ..protocol import Decision, DraftStep, RoundStart
from ._parameters import check_count, check_real, describe
from ._rules import cost_of, go_on_if, outcomes, spent

# A little more than the draft's own probability: a greedy target accepts more than it says.
_OWN = (0.5, 1.0)
# Chances before anything is known: of a round's first token, and of any other.
_FIRST, _NEXT = 0.6, 0.6
# How fast they are learned: bias and slope, and the two averages, the first one by the round.
_BIAS, _SLOPE, _ROUND, _TOKEN = 0.15, 0.1, 0.03, 0.1
# The long-run rate begins as that of three rounds of one token each, .4 of them accepted.
_BEGUN, _ACCEPTED = 3.0, 0.4
_FORGET = 0.98  # of the long-run rate, a round
_TRY = 16  # a round in so many drafts, whatever the prospects
_FEW = 8  # drafted tokens over which the slope of verification is taken
_SURE = 1e-4  # chances nearer to 0 or 1 tell no more
_FAR = math.sqrt(2.0)  # logits farther from 0 move the slope no more than this one


@dataclass(repr=False)
class Marginal:
    """Draft one token more if its chance to be accepted is worth its cost at the long-run rate.

    With s_k the chance that the first k tokens of the round are all accepted, c the cost of a
    draft step and v(k) that of verifying k tokens, in target steps, a round of length k earns
    (1 + s_1 + ... + s_k) tokens for k c + v(k). To earn the most tokens per unit of cost over
    many rounds (a renewal-reward problem) the next token is drafted iff

        s_(k+1) > rate x (c + v(k+1) - v(k)),

    where the rate is the one reached so far, all tokens over all cost, the last fifty rounds or
    so counting most. s_(k+1) is the product of the chances of the kept tokens and of the next
    one's. That of a kept token is its probability q(x), calibrated by an online logistic
    regression on logit q(x) (Platt scaling, begun near q(x) itself). The next one's is how many
    of the last ten or so were right: how hard the text is here tells much of it, and what the
    draft said of the token before it nothing more. Both learn from the tokens that were accepted
    and the first that was not; what comes after that is not known. There is no threshold. If
    the first token's chance, an average over rounds, is not worth it, nothing is drafted, but
    in each 16th round one token, to keep learning: at most (c + v(1) - v(0)) / 16 a round.

    Of a draft tree a step is a level, s_k the chance that k levels are accepted, and what the
    next level costs in verification is ``verify_cost`` for each node that it adds.

    Source: ours. Begun at SVIP's bound in place of q(x) the chances were far too low: the bound
    of a token is a bound.

    Args:
        draft_cost: c, at least 0; see :meth:`of`.
        verify_cost: v(k + 1) - v(k), at least 0; v(0) is 1. Of a tree, that of a node.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "marginal"
    draft_cost: float = 0.1
    verify_cost: float = 0.02
    cap: int = 40
    _bias: float = field(init=False, default=_OWN[0])
    _slope: float = field(init=False, default=_OWN[1])
    _next: float = field(init=False, default=_NEXT)
    _first: float = field(init=False, default=_FIRST)
    _tokens: float = field(init=False, default=_BEGUN * (1.0 + _ACCEPTED))
    _cost: float = field(init=False, default=0.0)
    _skipped: int = field(init=False, default=0)
    _width: int = field(init=False, default=1)
    _spent: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_real(self.name, "draft_cost", self.draft_cost)
        check_real(self.name, "verify_cost", self.verify_cost)
        check_count(self.name, "cap", self.cap)
        self._cost = _BEGUN * (1.0 + float(self.draft_cost) + float(self.verify_cost))

    @classmethod
    def of(cls, cost: CostModel, length: int = 256, cap: int = 40) -> Marginal:
        """With costs as measured: ``verify_cost`` is the mean slope over the first tokens.

        Args:
            cost: of draft and target.
            length: of the context, in tokens.
            cap: the most tokens drafted in a round; not more than were measured.
        """
        few = min(_FEW, cost.longest)
        one = cost.verify_seconds(0, length)
        slope = (cost.verify_seconds(few, length) - one) / few if few else 0.0
        return cls(cost.draft_seconds(1, length) / one, max(0.0, slope) / one,
                   max(1, min(cap, cost.longest)))

    def begin(self, start: RoundStart) -> Decision:
        """Draft at all if the first token's chance is worth it, and now and then anyway."""
        return go_on_if(self._worth(self._first, self._width) or self._trying)

    def observe(self, step: DraftStep) -> Decision:
        """Weigh the next token's survival against its cost; NaN compares as False and stops."""
        if step.position >= self.cap or self._trying:
            return Decision.STOP
        survival = self._next
        for kept in step.backwards():
            survival *= self._chance(_logit(kept))
        return go_on_if(self._worth(survival, step.nodes(1) - step.nodes()))

    def _chance(self, logit: float) -> float:
        """That the target accepts a token to which the draft gives q(x) of this logit."""
        total = self._bias + self._slope * logit
        # NaN as it is: min() and max() would lose it.
        return total if math.isnan(total) else 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, total))))

    @property
    def _trying(self) -> bool:
        return self._skipped >= _TRY - 1

    def _worth(self, survival: float, nodes: int) -> bool:
        price = self.draft_cost + nodes * self.verify_cost
        return survival > self._tokens / self._cost * price

    def learn(self, last: DraftStep, drafted: int, accepted: int) -> None:
        """Update the chances from the tokens whose outcome is known."""
        self._spent = cost_of(last, self.draft_cost, self.verify_cost)
        for step, right in outcomes(last, drafted, accepted):
            logit = _logit(step)
            if math.isnan(logit):
                return
            error = right - self._chance(logit)
            self._bias += _BIAS * error
            # Bounded: a surprise at a token of q = .9999 would otherwise turn it round.
            self._slope += _SLOPE * error * max(-_FAR, min(_FAR, logit))
            # First tokens too, or one that is never drafted again would not be learned of.
            self._next += _TOKEN * (right - self._next)
            if step.position == 1:
                self._width = step.nodes()
                self._first += _ROUND * (right - self._first)

    def verified(self, drafted: int, accepted: int) -> None:
        """Update the long-run rate."""
        self._skipped = 0 if drafted else self._skipped + 1
        extra = spent(self._spent, drafted, self.draft_cost, self.verify_cost)
        self._spent = None
        self._tokens = _FORGET * self._tokens + accepted + 1
        self._cost = _FORGET * self._cost + 1.0 + extra

    def fresh(self) -> Marginal:
        """The same costs, nothing learned."""
        return replace(self)

    __repr__ = describe


def _logit(step: DraftStep) -> float:
    """Of q(x), within bounds; NaN stays."""
    probability = math.exp(step.log_probability)
    sure = min(max(probability, _SURE), 1.0 - _SURE) + 0.0 * probability
    return math.log(sure / (1.0 - sure))
