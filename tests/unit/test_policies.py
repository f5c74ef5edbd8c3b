import math

import numpy as np
import pytest

from svip_policy import (
    SVIP,
    Constant,
    Decision,
    DraftStep,
    Heuristic,
    PathProbability,
    parse,
    resolve,
)
from svip_policy.errors import ParameterError, PolicyTextError


def two_way(entropy):
    """Logits over two tokens with about this entropy in nats, found by bisection."""
    low, high = 0.0, 60.0
    for _ in range(200):
        gap = (low + high) / 2
        p = 1 / (1 + math.exp(-gap))
        h = -(p * math.log(p) + (1 - p) * math.log1p(-p)) if p < 1 else 0.0
        low, high = (gap, high) if h > entropy else (low, gap)
    return np.array([low, 0.0])


@pytest.mark.parametrize(("entropy", "expected"), [
    (0.59, Decision.CONTINUE), (0.61, Decision.STOP), (0.0, Decision.CONTINUE),
])
def test_svip_stops_above_six_tenths_of_a_nat(entropy, expected):
    """The authors' code: sqrt(0.15 H) > 0.3 is H > 0.6 nats."""
    assert SVIP().observe(DraftStep(1, two_way(entropy), 0)) is expected


def test_svip_of_the_paper_stops_above_nine_hundredths():
    paper = SVIP(c=1.0)
    assert paper.observe(DraftStep(1, two_way(0.08), 0)) is Decision.CONTINUE
    assert paper.observe(DraftStep(1, two_way(0.10), 0)) is Decision.STOP


def test_svip_threshold_is_inclusive():
    """Exactly on the threshold goes on: the rule is a strict inequality."""
    uniform = DraftStep(1, np.zeros(2), 0)
    assert SVIP(threshold=math.sqrt(math.log(2)), c=1.0).observe(uniform) is Decision.CONTINUE


def lengths(policy, outcomes):
    """Drafted lengths of a policy that sees only positions, and then these outcomes."""
    drafted = []
    for accepted_all in outcomes:
        n = 1
        while policy.observe(DraftStep(n, np.zeros(2), 0)) is Decision.CONTINUE:
            n += 1
        drafted.append(n)
        policy.verified(n, n if accepted_all else n - 1)
    return drafted


def test_heuristic_grows_by_two_and_shrinks_by_one():
    assert lengths(Heuristic(5), [1, 1, 0, 0, 1, 0]) == [5, 7, 9, 8, 7, 9]


def test_heuristic_floor_and_cap():
    assert lengths(Heuristic(2), [0, 0, 0, 1]) == [2, 1, 1, 1]
    assert lengths(Heuristic(38), [1, 1, 1]) == [38, 40, 40]


def test_a_truncated_draft_is_not_full_acceptance():
    policy = Heuristic(5)
    for _ in range(10):
        policy.verified(1, 1)  # the budget cut each round to one token
    assert lengths(policy, [1]) == [5]
    policy.verified(0, 0)
    assert lengths(policy.fresh(), [1]) == [5]


def drafted(policy, probabilities):
    """Length of a draft whose tokens have these probabilities, of a vocabulary of two."""
    step = None
    for n, q in enumerate(probabilities, start=1):
        step = DraftStep(n, np.log(np.array([q, 1 - q])), 0, step)
        if policy.observe(step) is Decision.STOP:
            return n
    return len(probabilities)


def test_path_probability_multiplies_up_the_round():
    """0.6 * 0.6 * 0.6 * 0.6 is 0.13, and times 0.6 again 0.078."""
    assert drafted(PathProbability(0.1), [0.6] * 9) == 5
    assert drafted(PathProbability(0.1), [0.99] * 9) == 9
    assert drafted(PathProbability(0.1), [0.9, 0.05, 0.9]) == 2
    assert drafted(PathProbability(0.2), [0.6] * 9) == 4


def test_path_probability_threshold_is_inclusive_and_may_be_off():
    assert drafted(PathProbability(0.25), [0.5, 0.5, 0.5]) == 3
    assert drafted(PathProbability(0.0, cap=7), [1e-9] * 9) == 7
    assert drafted(PathProbability(1.0), [0.5, 0.5]) == 1


@pytest.mark.parametrize(("text", "policy"), [
    ("svip", SVIP()), (" svip ( threshold = 0.4 ) ", SVIP(0.4)), ("constant(3)", Constant(3)),
    ("svip(threshold=inf)", SVIP(math.inf)), ("heuristic(length=2, cap=9)", Heuristic(2, cap=9)),
])
def test_text_to_policy(text, policy):
    assert parse(text) == policy
    assert resolve(policy) is policy


@pytest.mark.parametrize("text", [
    "", "svip(", "svp", "3", "svip()()", "[svip]", "svip(threshold=os.name)", "lambda: 1",
    "__import__('os')", "constant(length=constant", "svip; svip", "svip(c=1, c=2)",
    "svip(threshold={[]: 1})",
])
def test_text_that_is_no_policy(text):
    with pytest.raises(PolicyTextError, match=r"svip|policy|literal"):
        parse(text)


@pytest.mark.parametrize("text", [
    "svip(thresh=1)", "constant(1, 2)", "constant('5')", "constant(2.5)", "constant(True)",
    "svip(threshold=-0.1)", "svip(c=-1)", "svip(cap=0)", "constant(0)", "heuristic(0)",
    "heuristic(9, cap=8)", "heuristic(grow=-1)", "svip(threshold='x')", "svip(threshold=None)",
    "path_probability(1.5)", "path_probability(threshold=-0.1)",
])
def test_bad_parameters_are_named(text):
    with pytest.raises(ParameterError, match=r"thresh|length|argument|c is|cap|grow"):
        parse(text)


@pytest.mark.parametrize("thing", [None, 5, object(), SVIP])
def test_what_is_no_policy_is_refused(thing):
    with pytest.raises(TypeError, match="is no length policy"):
        resolve(thing)
