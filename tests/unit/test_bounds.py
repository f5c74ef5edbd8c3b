import pytest

from svip_policy import bounds
from svip_policy.errors import ParameterError


def test_closed_forms_of_the_paper():
    assert bounds.expected_tokens(0.8, 4) == pytest.approx(3.3616)
    assert bounds.speedup(0.8, 4, 0.3) == pytest.approx(1.528, abs=5e-4)


@pytest.mark.parametrize(("acceptance", "cost", "length"), [
    (0.0, 0.1, 0),  # nothing is ever accepted
    (1.0, 0.1, 64),  # all is: as long as allowed
    (0.5, 1.0, 0),  # a draft as dear as the target
])
def test_optimal_length_at_the_ends(acceptance, cost, length):
    assert bounds.optimal_length(acceptance, cost) == length


def test_acceptance_of_known_distributions():
    p, q = [0.6, 0.3, 0.1], [0.5, 0.3, 0.2]
    assert bounds.acceptance_rate(p, q) == pytest.approx(0.9)
    assert bounds.total_variation(p, q) == pytest.approx(0.1)


def test_divergence_where_the_target_has_no_mass():
    assert bounds.kl_divergence([0.5, 0.5], [1.0, 0.0]) == float("inf")
    assert bounds.bretagnolle_huber_bound([0.5, 0.5], [1.0, 0.0]) == pytest.approx(0.0)


def test_entropy_bound_of_the_authors_code():
    assert bounds.entropy_bound(0.6, 0.15) == pytest.approx(0.7)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: bounds.expected_tokens(1.5, 3), "acceptance is 1.5"),
    (lambda: bounds.expected_tokens(0.5, -1), "length is -1"),
    (lambda: bounds.speedup(0.5, 3, -0.1), "draft_cost is -0.1"),
])
def test_impossible_arguments_are_named(call, message):
    with pytest.raises(ParameterError, match=message):
        call()
