"""What must hold for every registered policy. A new one is picked up by itself."""

import copy
import math
import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from svip_policy import (
    POLICIES,
    SVIP,
    Constant,
    Decision,
    DraftStep,
    LengthPolicy,
    PolicyDriver,
    RoundStart,
    parse,
)
from svip_policy.errors import ParameterError

VOCAB = 7
# Round numbers: an entropy may then still be near a threshold, see far_from_threshold().
LOGITS = hnp.arrays(
    np.float64, VOCAB, elements=st.floats(-20, 20, width=32) | st.just(-math.inf)
).filter(lambda x: np.isfinite(x).any())
ROUND = st.lists(st.tuples(LOGITS, st.integers(0, VOCAB - 1)), min_size=1, max_size=50)
OUTCOMES = st.lists(st.integers(0, 6).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=8)

every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def length(policy, steps, budget=None):
    """How many of these tokens the policy drafts, through the driver that adapters use."""
    driver = PolicyDriver(policy)
    assert driver.begin(RoundStart(budget))
    for n, (logits, token) in enumerate(steps, start=1):
        if not driver.observe(logits, token):
            return n
    return len(steps)


def chain(count):
    """The last of so many steps, of signals that differ."""
    last = None
    for n in range(1, count + 1):
        last = DraftStep.known(n, 0, last, entropy=0.3 * n, margin=0.9 / n,
                               log_probability=-0.2 * n)
    return last


def taught(name, outcomes):
    """A policy after rounds with these numbers of tokens drafted and accepted."""
    policy = POLICIES[name]()
    for drafted, accepted in outcomes:
        if drafted and hasattr(policy, "learn"):
            policy.learn(chain(drafted), drafted, accepted)
        policy.verified(drafted, accepted)
    return policy


def far_from_threshold(policy, steps):
    """Whether rounding decides nothing: signals a ten-thousandth off give the same length."""
    def with_signals(nudge):
        driver = PolicyDriver(policy)
        driver.begin(RoundStart())
        last = None
        for n, (logits, token) in enumerate(steps, start=1):
            step = DraftStep(n, logits, token)
            last = DraftStep.known(
                n, token, last, entropy=max(0.0, step.entropy + nudge), margin=step.margin + nudge,
                log_probability=min(0.0, step.log_probability + nudge))
            if not driver.observe_step(last):
                return n
        return len(steps)

    return len({with_signals(nudge) for nudge in (-1e-4, 0.0, 1e-4)}) == 1


@every_policy
def test_has_the_protocols_methods_and_a_cap(name):
    policy = POLICIES[name]()
    assert isinstance(policy, LengthPolicy) and policy.name == name and policy.cap >= 1


@every_policy
@given(outcomes=OUTCOMES)
def test_never_beyond_its_cap(name, outcomes):
    policy = taught(name, outcomes)
    certain = np.array([30.0, 0.0])
    assert length(policy, [(certain, 0)] * (policy.cap + 10)) <= policy.cap


@every_policy
@given(steps=ROUND, outcomes=OUTCOMES)
def test_deterministic_and_observe_changes_no_state(name, steps, outcomes):
    policy = taught(name, outcomes)
    before = copy.deepcopy(policy)
    first = length(policy, steps)
    assert policy == before
    assert length(policy, steps) == first == length(before, steps)


@every_policy
@given(steps=ROUND, outcomes=OUTCOMES, shift=st.floats(-50, 50))
def test_invariant_to_a_constant_added_to_the_logits(name, steps, outcomes, shift):
    assume(far_from_threshold(taught(name, outcomes), steps))
    moved = [(logits + shift, token) for logits, token in steps]
    assert length(taught(name, outcomes), moved) == length(taught(name, outcomes), steps)


@every_policy
@given(steps=ROUND, outcomes=OUTCOMES, order=st.permutations(range(VOCAB)))
def test_invariant_to_a_permutation_of_the_vocabulary(name, steps, outcomes, order):
    assume(far_from_threshold(taught(name, outcomes), steps))
    permuted = [(logits[list(order)], order.index(token)) for logits, token in steps]
    assert length(taught(name, outcomes), permuted) == length(taught(name, outcomes), steps)


@every_policy
@given(steps=ROUND, outcomes=OUTCOMES)
def test_same_for_numpy_and_torch_and_for_any_precision(name, steps, outcomes):
    assume(far_from_threshold(taught(name, outcomes), steps))
    expected = length(taught(name, outcomes), steps)
    for convert in (
        lambda x: x.astype(np.float32), torch.tensor,
        lambda x: torch.tensor(x, dtype=torch.float32),
    ):
        converted = [(convert(logits), token) for logits, token in steps]
        assert length(taught(name, outcomes), converted) == expected


@every_policy
@given(outcomes=OUTCOMES, steps=ROUND)
def test_fresh_forgets(name, outcomes, steps):
    policy = taught(name, outcomes)
    assert policy.fresh() == POLICIES[name]()
    assert length(policy.fresh(), steps) == length(POLICIES[name](), steps)


@every_policy
@given(outcomes=OUTCOMES)
def test_a_fresh_policy_shares_no_state_with_the_old_one(name, outcomes):
    policy = taught(name, outcomes)
    fresh = policy.fresh()
    assert fresh == POLICIES[name]()
    for drafted, accepted in outcomes:
        if drafted and hasattr(policy, "learn"):
            policy.learn(chain(drafted), drafted, accepted)
        policy.verified(drafted, accepted)
    assert fresh == POLICIES[name]()


@every_policy
@pytest.mark.filterwarnings("ignore::svip_policy.errors.DegenerateLogitsWarning")
@pytest.mark.parametrize("logits", [
    [math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf],
])
def test_degenerate_logits_stop(name, logits):
    certain = (np.array([30.0, 0.0]), 0)
    assert length(POLICIES[name](), [(np.array(logits), 0), certain, certain]) == 1


@every_policy
@given(outcomes=OUTCOMES)
def test_text_and_pickle_give_it_back(name, outcomes):
    policy = taught(name, outcomes)
    assert repr(policy).startswith(f"{name}(") and "\n" not in repr(policy)
    assert parse(repr(policy)) == policy.fresh()
    assert repr(parse(repr(policy))) == repr(policy)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert copy.deepcopy(policy) == policy


PARAMETERS = [(name, f.name) for name in sorted(POLICIES) for f in fields(POLICIES[name]) if f.init]


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, "1", None, True, [1]])
def test_bad_parameters_raise_with_name_value_and_range(name, parameter, value):
    with pytest.raises(ParameterError) as caught:
        POLICIES[name](**{parameter: value})
    message = str(caught.value)
    assert message.startswith(f"{name}: {parameter} is {value!r}; give a ")
    assert any(wanted in message for wanted in
               ("number in [", "whole number of at least", "list of policies"))


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_numpy_numbers_are_numbers(name, parameter, kind):
    """As a sweep over np.linspace gives them: the text must still parse."""
    value = getattr(POLICIES[name](), parameter)
    if not isinstance(value, int | float) or isinstance(value, int) != (kind is np.int64):
        return
    policy = POLICIES[name](**{parameter: kind(value)})
    assert parse(repr(policy)) == policy


@given(steps=ROUND, low=st.floats(0, 2), high=st.floats(0, 2))
def test_svip_higher_threshold_never_drafts_less(steps, low, high):
    low, high = sorted((low, high))
    assert length(SVIP(low), steps) <= length(SVIP(high), steps)


@given(steps=ROUND, low=st.floats(0, 2), high=st.floats(0, 2))
def test_svip_larger_factor_never_drafts_more(steps, low, high):
    low, high = sorted((low, high))
    assert length(SVIP(c=high), steps) <= length(SVIP(c=low), steps)


@given(one=LOGITS, other=LOGITS, threshold=st.floats(0, 2))
def test_svip_higher_entropy_never_drafts_more(one, other, threshold):
    low, high = sorted((DraftStep(1, x, 0) for x in (one, other)), key=lambda s: s.entropy)
    policy = SVIP(threshold)
    if policy.observe(low) is Decision.STOP:
        assert policy.observe(high) is Decision.STOP


@given(steps=ROUND, cap=st.integers(1, 60))
def test_svip_without_threshold_is_constant(steps, cap):
    assert length(SVIP(math.inf, cap=cap), steps) == length(Constant(cap), steps)


@given(steps=ROUND)
def test_svip_with_threshold_zero_goes_on_only_where_entropy_is_zero(steps):
    n = length(SVIP(0.0), steps)
    certain = [DraftStep(1, logits, 0).entropy <= 0 for logits, _ in steps]
    assert all(certain[: n - 1]) and (n == len(steps) or n == 40 or not certain[n - 1])
