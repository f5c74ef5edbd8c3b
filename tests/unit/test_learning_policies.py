"""Policies that adapt: their sources' rules step by step, and what Marginal must do."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svip_policy import (
    AdaEDL,
    AdaptiveConfidence,
    Bandit,
    Confidence,
    Constant,
    Decision,
    DraftStep,
    DraftVerify,
    GammaTune,
    Margin,
    Marginal,
    PolicyDriver,
    RoundStart,
    TreeStep,
    bounds,
    parse,
)
from svip_policy.cost import CostModel
from svip_policy.errors import ParameterError


def step(probability=0.5, entropy=0.7, margin=0.3, position=1, previous=None):
    return DraftStep.known(position, 0, previous, entropy=entropy, margin=margin,
                           log_probability=math.log(probability))


def chain(*probabilities):
    last = None
    for n, probability in enumerate(probabilities, start=1):
        last = step(probability, position=n, previous=last)
    return last


def goes_on(policy, **signals):
    return policy.observe(step(**signals)) is Decision.CONTINUE


def test_confidence_and_margin_compare_their_signal():
    assert goes_on(Confidence(0.4), probability=0.4) and not goes_on(Confidence(0.4),
                                                                     probability=0.39)
    assert goes_on(Margin(0.2), margin=0.2) and not goes_on(Margin(0.2), margin=0.19)
    assert goes_on(Confidence(0.0), probability=1e-9) and not goes_on(Confidence(cap=1))
    assert not goes_on(Margin(), margin=math.nan)


def test_draft_verify_follows_the_acceptance_rate():
    """r is 0, 1/2, 3/4, 7/8 and at the fourth full round 15/16: only then t sinks."""
    policy, expected = DraftVerify(), 0.5
    for _ in range(3):
        policy.verified(3, 3)
        expected = 0.9 * expected + 0.1 * (expected + 0.01)
    assert policy._current == pytest.approx(expected)
    policy.verified(3, 3)
    assert policy._current == pytest.approx(expected - 0.001)
    policy.verified(8, 8)  # the cap: t stays
    assert policy._current == pytest.approx(expected - 0.001)
    policy.verified(0, 0)
    assert policy._current == pytest.approx(expected - 0.001)
    assert policy.fresh()._current == 0.5


def test_ada_edl_follows_the_acceptance_rate():
    policy = AdaEDL(threshold=0.4)
    assert goes_on(policy, entropy=1.79) and not goes_on(policy, entropy=1.81)  # .36 / .2 nats
    policy.verified(4, 2)  # r = .25: l grows
    assert policy._current == pytest.approx(0.41)
    for _ in range(3):  # r = .625, .8125, .90625
        policy.verified(1, 1)
    assert policy._current == pytest.approx(0.42)
    policy.verified(40, 40)  # the cap: l stays
    assert policy._current == pytest.approx(0.42)
    for accepted, end in ((1, 0.0), (0, 1.0)):
        for _ in range(300):
            policy.verified(1, accepted)
        assert policy._current == end


def test_gamma_tune_grows_beyond_what_was_accepted_and_else_is_its_average():
    policy = GammaTune(length=4)

    def length():
        n = 1
        while goes_on(policy, probability=0.5) and policy.observe(
                DraftStep.known(n, 0)) is Decision.CONTINUE:
            n += 1
        return n

    assert length() == 4
    policy.verified(4, 4)
    assert length() == 5
    policy.verified(5, 1)  # average 4, then 2.5
    assert length() == 2
    policy.verified(1, 1)  # cut short: not full acceptance
    assert length() == 2
    for _ in range(9):
        policy.verified(2, 0)
    assert policy._current == 1


def test_adaptive_confidence_finds_the_threshold_that_separates():
    """Accepted above .6, rejected below .5: t is the lowest accepted probability."""
    policy = AdaptiveConfidence()
    policy.learn(chain(0.9, 0.8, 0.7, 0.65, 0.66), 5, 5)
    policy.verified(5, 5)
    assert policy._current == 0.4  # not more than five yet, and all of one kind
    policy.learn(chain(0.75), 1, 1)
    policy.verified(1, 1)
    assert policy._current == 0.4  # all of one kind
    policy.learn(chain(0.6, 0.5), 2, 1)
    policy.verified(2, 1)
    assert policy._current == pytest.approx(0.6)
    assert len(policy._accepted) == 7 and len(policy._rejected) == 1
    policy.learn(chain(0.2), 1, 1)  # to keep it above would cost one false alarm in one
    policy.verified(1, 1)
    assert policy._current == pytest.approx(0.6)
    policy.learn(chain(0.45, 0.47, 0.48), 3, 3)  # 4 of 11 missed cost more, at 3 a miss
    policy.verified(3, 3)
    assert policy._current == pytest.approx(0.2)


def test_adaptive_confidence_weighs_misses_by_their_cost():
    """Of 10 accepted 4 are below all rejected: missed at cost 0, kept at cost 100."""
    for cost, expected in ((0.0, 0.9), (100.0, 0.1)):
        policy = AdaptiveConfidence(miss_cost=cost)
        for _ in range(2):
            policy.learn(chain(0.9, 0.8, 0.85, 0.1, 0.15), 5, 5)
            policy.learn(chain(0.5, 0.9), 2, 0)
            policy.learn(chain(0.5), 1, 0)
            policy.learn(chain(0.5), 1, 0)
        policy.verified(1, 0)
        assert policy._current == pytest.approx(expected)


def test_what_follows_the_first_rejected_token_is_not_learned_from():
    policy = AdaptiveConfidence()
    policy.learn(chain(0.9, 0.8, 0.7, 0.6), 4, 1)
    assert policy._accepted == pytest.approx([0.9]) and policy._rejected == pytest.approx([0.8])
    policy.learn(chain(0.9, 0.8, 0.7), 2, 2)  # a level that was not submitted
    assert len(policy._accepted) == 3 and len(policy._rejected) == 1


def test_adaptive_confidence_costs_the_same_in_a_long_text():
    policy = AdaptiveConfidence()
    for _ in range(2000):
        policy.learn(chain(0.9, 0.3), 2, 1)
    assert len(policy._accepted) == len(policy._rejected) == 256


def test_the_bandit_finds_the_better_arm_and_goes_back_to_the_other_now_and_then():
    rng = np.random.default_rng(0)
    policy = Bandit((Constant(1), Constant(6)), draft_cost=0.1)
    drafted = []
    for _ in range(400):
        n = 6 if goes_on(policy) else 1
        run = rng.geometric(0.1) - 1  # acceptance .9: six are better
        policy.verified(n, min(n, run))
        drafted.append(n)
    assert drafted[:2] == [1, 6]
    assert drafted[200:].count(6) > 180 and drafted.count(1) > 3


def test_bandit_arms_are_its_own_and_only_the_pulled_one_learns():
    arm = DraftVerify()
    policy = Bandit((arm, AdaptiveConfidence()))
    policy.learn(chain(0.9), 1, 1)
    policy.verified(1, 1)
    assert policy.policies[0]._rate == 0.5 and arm._rate == 0.0
    policy.learn(chain(0.9), 1, 1)
    policy.verified(1, 1)
    assert policy.policies[0]._rate == 0.5 and policy.policies[1]._accepted == [0.9]
    assert parse("bandit(policies=[constant(2), marginal])").policies == (Constant(2), Marginal())


@pytest.mark.parametrize("value", [(), [3], "svip", (Constant,), None])
def test_a_bandit_of_no_policies_is_refused(value):
    with pytest.raises(ParameterError, match="give a list of policies"):
        Bandit(value)


class Source:
    """Positions that are right with a chance of their own, which the draft may know."""

    def __init__(self, policy, seed, told=lambda a: a):
        self.rng, self.policy, self.told = np.random.default_rng(seed), policy, told
        self.tokens, self.spent, self.lengths = 0, 0.0, []

    def run(self, rounds, acceptance):
        """Rounds in which a token is right with chance acceptance(rng)."""
        driver = PolicyDriver(self.policy)
        for _ in range(rounds):
            chances, accepted, right, n = [], 0, True, 0
            if driver.begin(RoundStart()):
                more, last = True, None
                while more:
                    n += 1
                    chances.append(acceptance(self.rng))
                    q = min(max(self.told(chances[-1]), 1e-3), 1 - 1e-3)
                    last = DraftStep.known(n, 0, last, entropy=-math.log(q), margin=q,
                                           log_probability=math.log(q))
                    more = driver.observe_step(last)
            for chance in chances:
                right = right and self.rng.random() < chance
                accepted += right
            driver.verified(accepted, n)
            self.tokens += accepted + 1
            self.spent += 1 + n * (self.policy.draft_cost + self.policy.verify_cost)
            self.lengths.append(n)
        return self


@given(a=st.floats(0.02, 0.98), c=st.floats(0.01, 0.9))
def test_marginal_is_the_best_fixed_length_where_positions_are_independent(a, c):
    """With chances and rate known, its rule stops at the argmax of the closed form."""
    best = bounds.optimal_length(a, c, cap=400)
    policy = Marginal(draft_cost=c, verify_cost=0.0, cap=400)
    logit = math.log(a / (1 - a))
    policy._bias, policy._slope, policy._next, policy._first = logit, 0.0, a, a
    policy._tokens, policy._cost = bounds.expected_tokens(a, best), 1 + best * c
    n, last = 0, None
    more = policy.begin(RoundStart()) is Decision.CONTINUE
    while more:
        n += 1
        last = DraftStep.known(n, 0, last, entropy=0.5, margin=0.5, log_probability=-0.5)
        more = policy.observe(last) is Decision.CONTINUE
    speeds = [bounds.speedup(a, k, c) for k in (n, best)]
    assert speeds[0] == pytest.approx(speeds[1], rel=1e-9)


def test_marginal_reaches_the_best_length_by_itself():
    """Acceptance .8 at cost .3 a token: 4 in all, by the closed form 2 to 3."""
    best = bounds.optimal_length(0.8, 0.3)
    source = Source(Marginal(draft_cost=0.3, verify_cost=0.0), 0, told=lambda a: 0.8)
    source.run(600, lambda rng: 0.8)
    assert abs(np.mean(source.lengths[300:]) - best) < 1.0
    assert source.tokens / source.spent > 0.95 * bounds.speedup(0.8, best, 0.3)


def test_marginal_does_not_weigh_future_tokens():
    """At a = .95 a rule that compared the expected tokens of a whole draft would stop at 1."""
    source = Source(Marginal(draft_cost=0.1, verify_cost=0.0), 0)
    source.run(200, lambda rng: 0.95)
    best = bounds.optimal_length(0.95, 0.1)
    assert best > 8 and np.mean(source.lengths[100:]) > 0.6 * best


def test_a_free_draft_is_drafted_to_the_cap():
    source = Source(Marginal(draft_cost=0.0, verify_cost=0.0, cap=9), 0)
    assert set(source.run(50, lambda rng: 0.5).lengths) == {9}


@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9, 0.99])
def test_a_draft_as_dear_as_the_target_drafts_at_most_one(acceptance):
    source = Source(Marginal(draft_cost=1.0, verify_cost=0.0), 0)
    source.run(400, lambda rng: acceptance)
    assert max(source.lengths[100:]) <= 1


def test_a_hopeless_draft_is_skipped_but_in_one_round_of_sixteen():
    source = Source(Marginal(draft_cost=0.5, verify_cost=0.0), 0)
    source.run(600, lambda rng: 0.05)
    late = source.lengths[300:]
    assert set(late) == {0, 1} and sum(late) == pytest.approx(len(late) / 16, abs=2)


def test_calibration_finds_the_truth_behind_an_unsure_draft():
    """The draft says .5 of what is right at .9."""
    policy = Marginal(draft_cost=0.05)
    source = Source(policy, 0, told=lambda a: 0.5 if a > 0.6 else 0.2)
    source.run(500, lambda rng: rng.choice([0.9, 0.3]))
    for told, truth in ((0.5, 0.9), (0.2, 0.3)):
        assert policy._chance(math.log(told / (1 - told))) == pytest.approx(truth, abs=0.1)


def test_calibration_stays_where_the_draft_is_sure_throughout():
    """What it says is true, and hardly ever unsure: 10,000 tokens later, too."""
    policy = Marginal(draft_cost=0.05)
    Source(policy, 0).run(3000, lambda rng: rng.choice([0.8, 0.999]))
    for told in (0.8, 0.999):
        assert policy._chance(math.log(told / (1 - told))) == pytest.approx(told, abs=0.07)


@pytest.mark.parametrize("told", [0.9999, 0.999, 0.99, 0.9])
def test_a_surprise_at_a_sure_token_does_not_turn_the_calibration_round(told):
    """Sure tokens that are right at .97 among others at .6: ahead of the best fixed length."""
    def run(policy):
        source = Source(policy, 3, told=lambda a: told if a > 0.9 else 0.6)
        return source.run(800, lambda rng: rng.choice([0.97, 0.6], p=[0.6, 0.4]))

    ours = run(Marginal(draft_cost=0.15, verify_cost=0.0))
    fixed = []
    for n in range(1, 7):
        policy = Constant(n)
        object.__setattr__(policy, "draft_cost", 0.15)
        object.__setattr__(policy, "verify_cost", 0.0)
        fixed.append(run(policy))
    assert ours.tokens / ours.spent > max(f.tokens / f.spent for f in fixed)


def test_marginal_survives_a_source_that_changes_half_way():
    """Hard, then easy: its drafts grow, and it earns nearly what one that began there does."""
    hard, easy = (lambda rng: 0.2), (lambda rng: 0.9)
    changed = Source(Marginal(draft_cost=0.1), 1, told=lambda a: 0.6).run(300, hard)
    assert np.mean(changed.lengths[-100:]) < 1.6
    tokens, spent = changed.tokens, changed.spent
    changed.run(300, easy)
    anew = Source(Marginal(draft_cost=0.1), 1, told=lambda a: 0.6).run(300, easy)
    assert np.mean(changed.lengths[-100:]) > 3
    assert (changed.tokens - tokens) / (changed.spent - spent) > 0.9 * anew.tokens / anew.spent


def test_marginal_from_measured_costs():
    cost = CostModel((0, 512), (0.01, 0.03), ((0.1,) * 9, tuple(0.2 + 0.01 * n for n in range(9))))
    policy = Marginal.of(cost, length=512)
    assert policy.draft_cost == pytest.approx(0.15) and policy.verify_cost == pytest.approx(0.05)
    assert policy.cap == 8 and Marginal.of(cost, cap=3).cap == 3
    assert Marginal.of(CostModel.flat(0.5, (1.0,))) == Marginal(0.5, 0.0, cap=1)


def test_marginal_stops_at_degenerate_logits_by_itself():
    assert not goes_on(Marginal(draft_cost=0.0), probability=math.nan)
    policy = Marginal()
    policy.learn(step(probability=math.nan), 1, 0)
    policy.verified(1, 0)
    unlearned = Marginal()
    unlearned.verified(1, 0)
    assert policy == unlearned


def levels(size, count, gain=-0.3):
    """The last of so many levels of a tree, whose best path loses ``gain`` at each."""
    last = None
    for n in range(1, count + 1):
        last = TreeStep(n, np.array([[4.0, 0.0, 0.0]]), previous=last, size=size,
                        paths=lambda n=n: np.array([gain * (n - 1)]),
                        frontier=lambda n=n: np.array([gain * n]))
    return last


def test_marginal_prices_a_level_and_its_nodes():
    """The same levels, once with 30 nodes more each, once with a tree that is full already."""
    policy = Marginal(draft_cost=0.05, verify_cost=0.02)
    assert policy.observe(levels(lambda n: 8 + 30 * n, 2)) is Decision.STOP
    assert policy.observe(levels(lambda n: min(60, 8 + 30 * n), 2)) is Decision.CONTINUE
    assert policy.observe(levels(int, 2)) is Decision.CONTINUE  # one a level


def test_a_bandits_reward_counts_a_trees_nodes():
    policy = Bandit((Constant(1),), draft_cost=0.05, verify_cost=0.01)
    policy.learn(levels(lambda n: 10 * n, 2), 2, 1)
    policy.verified(2, 1)
    assert policy._rewards == [pytest.approx(2 / (1 + 2 * 0.05 + 20 * 0.01))]
    policy.verified(2, 1)  # nobody told of the steps
    assert policy._rewards == [pytest.approx(2 / 1.3 + 2 / 1.12)]


def test_what_marginal_spent_on_a_tree_are_its_levels_and_nodes():
    policy = Marginal(draft_cost=0.05, verify_cost=0.01)
    begun = policy._cost
    policy.learn(levels(lambda n: 10 * n, 3), 2, 1)  # of the third level no node was among the best
    policy.verified(2, 1)
    first = 0.98 * begun + 1 + 3 * 0.05 + 30 * 0.01
    assert policy._cost == pytest.approx(first)
    policy.verified(2, 1)  # of a round that was told of by its tokens alone
    assert policy._cost == pytest.approx(0.98 * first + 1 + 2 * 0.06)
    # The first level has ten nodes from now on: is a round worth them?
    policy = Marginal(draft_cost=0.1, verify_cost=0.06)
    assert policy.begin(RoundStart()) is Decision.CONTINUE
    policy.learn(levels(lambda n: 10 * n, 1), 1, 1)
    policy.verified(1, 1)
    assert policy.begin(RoundStart()) is Decision.STOP
