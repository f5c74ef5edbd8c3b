import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from svip_policy import Constant, Decision, PolicyDriver, RoundStart, Summary
from svip_policy.errors import DegenerateLogitsWarning
from svip_policy.summary import Round

FLAT = np.zeros(4)


@dataclass
class Spy:
    """A policy that remembers what it was shown."""

    steps: list = field(default_factory=list)
    seen: list = field(default_factory=list)

    def observe(self, step):
        self.steps.append(step)
        return Decision.CONTINUE

    def verified(self, drafted, accepted):
        self.seen.append((drafted, accepted))

    def fresh(self):
        return Spy()


def test_steps_are_chained_within_a_round_and_not_across():
    spy = Spy()
    driver = PolicyDriver(spy)
    for _ in range(2):
        assert driver.begin(RoundStart(budget=3))
        for token in range(3):
            driver.observe(FLAT, token, budget=2 - token)
        driver.verified(2)
    first, second, third = spy.steps[:3]
    assert [s.position for s in spy.steps] == [1, 2, 3, 1, 2, 3]
    assert third.previous is second and second.previous is first and first.previous is None
    assert spy.steps[3].previous is None
    assert [s.budget for s in spy.steps[:3]] == [2, 1, 0]
    assert spy.seen == [(3, 2), (3, 2)] and [r.accepted for r in driver.rounds] == [2, 2]


def test_no_budget_drafts_nothing():
    driver = PolicyDriver(Constant(5))
    assert not driver.begin(RoundStart(budget=0))
    driver.verified(0)
    assert driver.rounds[0][:2] == (0, 0)


def test_begin_can_skip_the_round():
    class Never(Spy):
        def begin(self, start):
            return Decision.STOP

    assert not PolicyDriver(Never()).begin(RoundStart(budget=5))
    assert PolicyDriver(Spy()).begin(RoundStart())


@pytest.mark.filterwarnings("error")
def test_degenerate_logits_stop_any_policy_and_warn_once():
    driver = PolicyDriver(Constant(9))
    driver.begin(RoundStart())
    assert driver.observe(FLAT, 0)
    with pytest.warns(DegenerateLogitsWarning, match="NaN or"):
        assert not driver.observe(np.array([math.nan, 0.0]), 0)
    driver.begin(RoundStart())
    assert not driver.observe(np.array([math.inf, 0.0]), 0)  # no second warning
    assert driver.degenerate == 2


@pytest.mark.parametrize("answer", [True, None, "stop"])
def test_an_answer_that_is_no_decision_is_an_error(answer):
    class Wrong(Spy):
        def observe(self, step):
            return answer

    driver = PolicyDriver(Wrong())
    driver.begin(RoundStart())
    with pytest.raises(TypeError, match=r"answer Decision\.CONTINUE"):
        driver.observe(FLAT, 0)


@pytest.mark.parametrize("accepted", [-1, 2])
def test_impossible_outcomes_are_refused(accepted):
    driver = PolicyDriver(Constant(5))
    driver.begin(RoundStart())
    driver.observe(FLAT, 0)
    with pytest.raises(ValueError, match="of 1 drafted"):
        driver.verified(accepted)


def test_accepted_length_with_and_without_the_targets_token():
    summary = Summary.of([Round(3, 2), Round(3, 0), Round(3, 3)])
    assert summary.tokens_per_round == pytest.approx(8 / 3)
    assert summary.accepted_length == pytest.approx(5 / 3)


def test_acceptance_rate_is_pooled():
    assert Summary.of([Round(1, 1), Round(9, 1)]).acceptance_rate == pytest.approx(0.2)


def test_a_draft_that_costs_more_than_it_saves_is_told():
    slow = Summary.of([Round(5, 0, draft_seconds=1.0, verify_seconds=1.0)] * 3)
    assert slow.speedup_ceiling == pytest.approx(0.5)
    assert "costs more than it saves: at most 0.50 times" in str(slow)
    good = Summary.of([Round(5, 4, draft_seconds=1.0, verify_seconds=1.0)] * 3)
    assert good.speedup_ceiling == pytest.approx(2.5) and "costs more" not in str(good)


def test_a_summary_of_nothing():
    empty = Summary.of([])
    assert empty.acceptance_rate == empty.tokens_per_round == empty.speedup_ceiling == 0
    assert "0 rounds" in str(empty)
