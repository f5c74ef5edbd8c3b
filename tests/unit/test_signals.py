import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from svip_policy import DraftStep, signals

ARRAYS = [np.asarray, torch.tensor]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize(("logits", "expected"), [
    ([0.0, -math.inf], 0.0),
    ([0.0, 0.0, -math.inf], math.log(2)),
    ([3.0] * 7, math.log(7)),
    ([1e30, 0.0], 0.0),
])
def test_entropy_of_known_distributions(array, logits, expected):
    assert float(signals.entropy(array(logits))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("logits", [
    [math.nan, 1.0], [math.inf, 0.0], [-math.inf, -math.inf], [math.inf, math.inf],
    [math.inf, math.nan], [math.nan, -math.inf],
])
def test_degenerate_logits_give_nan_and_are_told(array, logits):
    assert math.isnan(float(signals.entropy(array(logits))))
    assert signals.is_degenerate(array(logits))
    step = DraftStep(1, array(logits), 0)
    assert step.degenerate  # without the entropy
    assert math.isnan(step.entropy) and DraftStep(1, array(logits), 0).degenerate


@pytest.mark.parametrize("array", ARRAYS)
def test_zero_probabilities_are_not_degenerate(array):
    assert not signals.is_degenerate(array([0.0, -math.inf]))


def test_half_precision_extremes_do_not_overflow():
    for values in (np.array([65504, -65504], np.float16),
                   torch.tensor([65504, -65504], dtype=torch.float16),
                   torch.tensor([3e38, -3e38], dtype=torch.bfloat16)):
        assert float(signals.entropy(values)) == 0.0


def test_entropy_against_scipy_on_many_rows():
    logits = np.random.default_rng(0).normal(scale=5, size=(50, 1000))
    expected = scipy.stats.entropy(scipy.special.softmax(logits, axis=-1), axis=-1)
    np.testing.assert_allclose(signals.entropy(logits), expected, rtol=1e-12)
    rows = signals.entropy(torch.tensor(logits, dtype=torch.float32))
    np.testing.assert_allclose(rows.numpy(), expected, rtol=2e-5)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_a_step_of_a_large_vocabulary_against_scipy(array, scale):
    logits = np.random.default_rng(0).normal(scale=scale, size=152064).astype(np.float32)
    logits[100_000:] = -np.inf
    exact = scipy.special.log_softmax(logits.astype(np.float64))
    step = DraftStep(1, array(logits), 7)
    assert step.entropy == pytest.approx(scipy.stats.entropy(np.exp(exact)), rel=1e-4, abs=1e-5)
    assert step.log_probability == pytest.approx(exact[7], rel=1e-5)
    assert DraftStep(1, array(logits), 7).log_probability == step.log_probability


@pytest.mark.parametrize("token", [2, np.int64(2), torch.tensor(2), torch.tensor([2])])
def test_log_probability_of_the_token(token):
    logits = [0.5, -1.0, 2.0, -math.inf]
    array = torch.tensor(logits) if isinstance(token, torch.Tensor) else np.array(logits)
    expected = scipy.special.log_softmax(np.array(logits))[2]
    assert DraftStep(1, array, token).log_probability == pytest.approx(expected, abs=1e-6)


def test_bfloat16_is_upcast_before_the_exponential():
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = scipy.stats.entropy(scipy.special.softmax(logits.double().numpy()))
    assert float(signals.entropy(logits)) == pytest.approx(exact, rel=1e-5)


def test_padding_logits_are_told_from_real_ones_by_the_caller():
    """Why vocabularies of different padded size are refused: padding near 0 counts."""
    real = np.random.default_rng(1).normal(scale=1.0, size=100)
    padded = np.concatenate([real, np.zeros(128)])
    masked = np.concatenate([real, np.full(128, -np.inf)])
    assert signals.entropy(masked) == pytest.approx(signals.entropy(real))
    assert signals.entropy(padded) > signals.entropy(real) + 0.5


@pytest.mark.parametrize("shape", [(), (0,), (1, 5), (2, 3, 4)])
def test_a_step_takes_the_logits_of_one_position(shape):
    with pytest.raises(ValueError, match=r"shape .*give those of one position"):
        DraftStep(1, np.zeros(shape), 0)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize(("probabilities", "expected"), [
    ([0.6, 0.3, 0.1], 0.3), ([0.1, 0.2, 0.7], 0.5), ([0.4, 0.4, 0.2], 0.0), ([1.0, 0.0], 1.0),
    ([1.0], 1.0),
])
def test_margin_of_known_distributions(array, probabilities, expected):
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities) + 7.0
    assert signals.margin_value(array(logits)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("ahead", [0.0, 0.01, 1.0])
def test_margin_of_a_large_nearly_uniform_distribution(array, ahead):
    logits = np.zeros(152064, dtype=np.float32)
    logits[77] = ahead
    expected = (math.exp(ahead) - 1.0) / (math.exp(ahead) + len(logits) - 1)
    assert signals.margin_value(array(logits)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("logits", [[math.nan, 1.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_margin_of_degenerate_logits_is_nan(array, logits):
    assert math.isnan(DraftStep(1, array(logits), 0).margin)
