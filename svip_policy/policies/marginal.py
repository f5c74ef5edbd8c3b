"""Cost-aware optimal stopping: draft another token if it gains more than it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..cost import CostModel
from ..protocol import Decision, DraftStep, RoundStart
from ._parameters import check_count, check_real, describe
from ._rules import cost_of, go_on_if, outcomes

_FIRST = 0.6  # chance of a round's first token before anything is known
_NEXT = 0.6  # and of any other, until some are known
_OWN = (0.5, 1.0)  # a little more than the draft's own probability: a target that decodes
_BIAS, _SLOPE = 0.15, 0.1  # greedily accepts more than it says; and how fast that is learned
_RECENT, _ROUNDS = 0.1, 0.03  # how fast the averages move, a token and a round
_BEGUN = 3.0  # the long-run rate begins as that of so many rounds, each with
_ACCEPTED = 0.4  # so many accepted tokens
_FEW = 8  # drafted tokens over which the slope of verification is taken
_FORGET = 0.98  # of the long-run rate, a round
_TRY = 16  # a round in so many drafts, whatever the prospects
_SURE = 1e-4  # chances nearer to 0 or 1 tell no more


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
    _cost: float = field(init=False, default=_BEGUN)
    _skipped: int = field(init=False, default=0)
    _width: int = field(init=False, default=1)
    _spent: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_real(self.name, "draft_cost", self.draft_cost)
        check_real(self.name, "verify_cost", self.verify_cost)
        check_count(self.name, "cap", self.cap)

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
        return 1.0 / (1.0 + math.exp(-self._bias - self._slope * logit))

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
            # Normalised: a surprise at a token of q = .9999 would otherwise turn it round.
            self._slope += _SLOPE * error * logit / (1.0 + 0.5 * logit * logit)
            # First tokens too, or one that is never drafted again would not be learned of.
            self._next += _RECENT * (right - self._next)
            if step.position == 1:
                self._width = step.nodes()
                self._first += _ROUNDS * (right - self._first)

    def verified(self, drafted: int, accepted: int) -> None:
        """Update the long-run rate."""
        self._skipped = 0 if drafted else self._skipped + 1
        # Where nobody could tell of the steps, each token counts as one.
        spent = drafted * (self.draft_cost + self.verify_cost) if self._spent is None \
            else self._spent
        self._spent = None
        self._tokens = _FORGET * self._tokens + accepted + 1
        self._cost = _FORGET * self._cost + 1.0 + spent

    def fresh(self) -> Marginal:
        """The same costs, nothing learned."""
        return replace(self)

    __repr__ = describe


def _logit(step: DraftStep) -> float:
    """Of q(x), within bounds; NaN stays."""
    probability = math.exp(step.log_probability)
    sure = min(max(probability, _SURE), 1.0 - _SURE) + 0.0 * probability
    return math.log(sure / (1.0 - sure))
