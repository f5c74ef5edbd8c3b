"""Cost-aware optimal stopping: draft another token if it gains more than it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..cost import CostModel
from ..protocol import Decision, DraftStep, RoundStart
from ._parameters import check_count, check_real, describe
from ._rules import cost_of, go_on_if, outcomes

Signals = tuple[float, float, float]

_FIRST = 0.6  # chance of a round's first token before anything is known
_OWN = (0.5, 1.0, 0.0)  # a little more than the draft's own probability: a target that decodes
_NEXT = (0.4, 0.0, 0.0)  # greedily accepts more than it says; and 0.6, whatever came before
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
    so counting most. s_(k+1) is the product of the chances of the kept tokens, each from its own
    probability q(x), and of the next one's chance, from the token before it. Both are online
    logistic regressions, the one on logit q(x) (Platt scaling, begun near q(x) itself), the
    other on logit q(x) and sqrt(H) (begun at 0.6). They learn from the tokens that were accepted
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
    _own: list[float] = field(init=False, default_factory=lambda: list(_OWN))
    _next: list[float] = field(init=False, default_factory=lambda: list(_NEXT))
    _first: float = field(init=False, default=_FIRST)
    _learned: int = field(init=False, default=0)
    _tokens: float = field(init=False, default=1.0)
    _cost: float = field(init=False, default=1.0)
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
        survival = _chance(self._next, _signals(step))
        for kept in step.backwards():
            survival *= _chance(self._own, _signals(kept))
        return go_on_if(self._worth(survival, step.nodes(1) - step.nodes()))

    @property
    def _trying(self) -> bool:
        return self._skipped >= _TRY - 1

    def _worth(self, survival: float, nodes: int) -> bool:
        price = self.draft_cost + nodes * self.verify_cost
        return survival > self._tokens / self._cost * price

    def learn(self, last: DraftStep, drafted: int, accepted: int) -> None:
        """Update the chances from the tokens whose outcome is known."""
        self._spent = cost_of(last, self.draft_cost, self.verify_cost)
        before: Signals | None = None
        for step, right in outcomes(last, drafted, accepted):
            signals = _signals(step)
            if math.isnan(sum(signals)):
                return
            self._learned += 1
            rate = 0.05 + 0.05 / (1.0 + self._learned / 10.0)
            _update(self._own, signals[:2], right, rate)
            if before is None:
                self._width = step.nodes()
                self._first += 0.03 * (right - self._first)
            else:
                _update(self._next, before, right, rate)
            before = signals

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


def _signals(step: DraftStep) -> Signals:
    probability = math.exp(step.log_probability)  # first: it brings the entropy with it
    sure = min(max(probability, _SURE), 1.0 - _SURE) + 0.0 * probability  # NaN stays
    return 1.0, math.log(sure / (1.0 - sure)), math.sqrt(max(step.entropy, 0.0))


def _chance(weights: list[float], signals: tuple[float, ...]) -> float:
    total = sum(w * x for w, x in zip(weights, signals, strict=False))
    if math.isnan(total):
        return total  # min() and max() would lose it
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, total))))


def _update(weights: list[float], signals: tuple[float, ...], right: bool, rate: float) -> None:
    """A step of stochastic gradient ascent on the likelihood of the outcome.

    Normalised: a surprise at a token of q = .9999, whose logit is 9, would otherwise turn the
    slope round.
    """
    step = rate * (right - _chance(weights, signals)) / (0.5 + 0.5 * sum(x * x for x in signals))
    for n, x in enumerate(signals):
        weights[n] += step * x
