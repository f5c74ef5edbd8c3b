"""Several policies, of which experience picks one for each round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..errors import ParameterError
from ..protocol import Decision, DraftStep, LengthPolicy, RoundStart
from ._parameters import check_count, check_real, describe
from ._rules import cost_of, go_on_if, spent
from .ada_edl import AdaEDL
from .confidence import Confidence
from .margin import Margin
from .path_probability import PathProbability
from .svip import SVIP


def _arms() -> tuple[LengthPolicy, ...]:
    return Confidence(), SVIP(), AdaEDL(), Margin(), PathProbability()


@dataclass(repr=False)
class Bandit:
    """Pull one of ``policies`` a round by UCB1; its reward is tokens per unit of cost.

    The arm with the largest mean reward + exploration x sqrt(2 ln n / pulls) decides the
    round, after each was pulled once. A round of k drafted tokens costs
    1 + k (draft_cost + verify_cost) target steps. Only the pulled arm learns from the round.

    Source: TapOut (arXiv 2511.02017), BanditSpec (arXiv 2505.15141); theirs are rewards made
    of acceptance rate and length. The mean of a round's tokens per cost is not quite the speed,
    which is all tokens over all cost.

    Args:
        policies: the arms, at least one; used in their initial state.
        exploration: in units of the reward, at least 0; 1 is UCB1 for rewards in [0, 1].
        draft_cost: of a draft step, in target steps, at least 0.
        verify_cost: of verifying one token more, of a tree one node, in target steps, at least 0.
        cap: the most tokens drafted in a round, at least 1.
    """

    name: ClassVar[str] = "bandit"
    policies: tuple[LengthPolicy, ...] = field(default_factory=_arms)
    exploration: float = 0.3
    draft_cost: float = 0.1
    verify_cost: float = 0.02
    cap: int = 40
    _pulls: list[int] = field(init=False, default_factory=list)
    _rewards: list[float] = field(init=False, default_factory=list)
    _spent: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        arms = self.policies
        if not isinstance(arms, tuple | list) or not arms or not all(
                isinstance(arm, LengthPolicy) and not isinstance(arm, type) for arm in arms):
            raise ParameterError(f"{self.name}: policies is {arms!r}; give a list of policies")
        check_real(self.name, "exploration", self.exploration)
        check_real(self.name, "draft_cost", self.draft_cost)
        check_real(self.name, "verify_cost", self.verify_cost)
        check_count(self.name, "cap", self.cap)
        self.policies = tuple(arm.fresh() for arm in arms)
        self._pulls, self._rewards = [0] * len(arms), [0.0] * len(arms)

    def begin(self, start: RoundStart) -> Decision:
        """Ask the arm, if it decides whether to draft at all."""
        begin = getattr(self._arm, "begin", None)
        return begin(start) if begin is not None else Decision.CONTINUE

    def observe(self, step: DraftStep) -> Decision:
        """Ask the arm."""
        return go_on_if(step.position < self.cap
                        and self._arm.observe(step) is Decision.CONTINUE)

    def learn(self, last: DraftStep, drafted: int, accepted: int) -> None:
        """Note what the round costs; hand it on to the arm, if it learns."""
        self._spent = cost_of(last, self.draft_cost, self.verify_cost)
        learn = getattr(self._arm, "learn", None)
        if learn is not None:
            learn(last, drafted, accepted)

    def verified(self, drafted: int, accepted: int) -> None:
        """Reward the arm of this round."""
        arm = self._index
        self.policies[arm].verified(drafted, accepted)
        self._pulls[arm] += 1
        extra = spent(self._spent, drafted, self.draft_cost, self.verify_cost)
        self._spent = None
        self._rewards[arm] += (accepted + 1) / (1.0 + extra)

    @property
    def _index(self) -> int:
        """The arm in force: it follows from what was verified so far."""
        if 0 in self._pulls:
            return self._pulls.index(0)
        spread = self.exploration * math.sqrt(2.0 * math.log(sum(self._pulls)))
        bounds = [reward / pulls + spread / math.sqrt(pulls)
                  for reward, pulls in zip(self._rewards, self._pulls, strict=True)]
        return bounds.index(max(bounds))

    @property
    def _arm(self) -> LengthPolicy:
        return self.policies[self._index]

    def fresh(self) -> Bandit:
        """The same arms in their initial state, none of them pulled."""
        return replace(self)

    __repr__ = describe
