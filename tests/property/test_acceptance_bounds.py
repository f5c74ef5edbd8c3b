import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from svip_policy import bounds, signals

WEIGHTS = hnp.arrays(np.float64, 6, elements=st.floats(0, 1)).filter(lambda w: w.sum() > 1e-3)
DISTRIBUTIONS = WEIGHTS.map(lambda w: w / w.sum())


@given(p=DISTRIBUTIONS, q=DISTRIBUTIONS)
def test_acceptance_is_above_pinskers_bound_for_any_pair(p, q):
    accepted = bounds.acceptance_rate(p, q)
    assert accepted == pytest.approx(1 - bounds.total_variation(p, q))
    assert accepted >= bounds.pinsker_bound(q, p) - 1e-9
    assert accepted >= bounds.bretagnolle_huber_bound(q, p) - 1e-9


@given(p=DISTRIBUTIONS, q=DISTRIBUTIONS, c=st.floats(0, 3))
def test_svips_estimate_is_conservative_where_gamma_is_small(p, q, c):
    """1 - sqrt(c H) bounds the acceptance rate where H(q, p) <= (2 c + 1) H(q)."""
    entropy = bounds.cross_entropy(q, q)
    if bounds.cross_entropy(q, p) <= (2 * c + 1) * entropy:
        assert bounds.acceptance_rate(p, q) >= bounds.entropy_bound(float(entropy), c) - 1e-9


@given(q=DISTRIBUTIONS)
def test_entropy_against_scipy(q):
    with np.errstate(divide="ignore"):
        logits = np.log(q)
    assert float(signals.entropy(logits)) == pytest.approx(scipy.stats.entropy(q), abs=1e-9)
    assert float(bounds.cross_entropy(q, q)) == pytest.approx(scipy.stats.entropy(q), abs=1e-9)


@given(p=DISTRIBUTIONS, q=DISTRIBUTIONS)
def test_divergence_against_scipy(p, q):
    assert float(bounds.kl_divergence(q, p)) == pytest.approx(scipy.stats.entropy(q, p), abs=1e-9)


@given(acceptance=st.floats(0, 0.999), cost=st.floats(0.001, 2))
def test_optimal_length_is_the_argmax(acceptance, cost):
    best = bounds.optimal_length(acceptance, cost, cap=40)
    speeds = [(1 - acceptance ** (k + 1)) / (1 - acceptance) / (1 + k * cost) for k in range(41)]
    assert speeds[best] == pytest.approx(max(speeds))
