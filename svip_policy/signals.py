"""Signals of a distribution given by its logits. Each formula is written once, here.

All functions take logits as an array of any library that array-api-compat knows (numpy,
torch, CuPy, JAX), of shape (..., vocab) and any float dtype; narrower dtypes than float32
are upcast first. They return an array of shape (...) on the logits' device. Entropies and
log probabilities are in nats.

A logit of -inf is a probability of 0 and contributes nothing. Logits with NaN or +inf, or
-inf throughout, give NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace

# exp() of this is 0 in float32 and float64, and 0 times this is 0, which 0 * -inf is not.
_LOWEST = -1.0e4


def upcast(logits: Any) -> Any:
    """``logits`` in float64 if they are float64, else in float32."""
    xp = array_namespace(logits)
    if logits.dtype in (xp.float64, xp.float32):
        return logits
    return xp.astype(logits, xp.float32)


def _exponentials(logits: Any) -> tuple[Any, Any, Any, Any]:
    """Maximum (..., 1), shifted logits, their exponentials, and the sum of these (...)."""
    xp = array_namespace(logits)
    # numpy would warn of inf - inf, whose NaN is the answer that is wanted here.
    with np.errstate(invalid="ignore"):
        peak = xp.max(logits, axis=-1, keepdims=True)
        shifted = xp.clip(logits - peak, _LOWEST, None)
        weights = xp.exp(shifted)
        return peak, shifted, weights, xp.sum(weights, axis=-1)


def entropy(logits: Any) -> Any:
    """Shannon entropy of softmax(logits), in nats, between 0 and ln(vocab)."""
    xp = array_namespace(logits)
    _, shifted, weights, total = _exponentials(upcast(logits))
    return xp.log(total) - xp.sum(weights * shifted, axis=-1) / total


def entropy_and_log_probability(logits: Any, token: Any) -> tuple[float, float]:
    """Entropy of one distribution and log probability of ``token``, as Python floats.

    One host synchronisation for both.

    Args:
        logits: (vocab,).
        token: index into the vocabulary, an int or an integer array with one element.
    """
    xp = array_namespace(logits)
    values = upcast(logits)
    peak, shifted, weights, total = _exponentials(values)
    log_total = xp.log(total)
    spread = log_total - xp.sum(weights * shifted, axis=-1) / total
    with np.errstate(invalid="ignore"):
        chosen = values[token] - peak[0] - log_total
    pair: list[float] = xp.stack([spread, xp.reshape(chosen, ())]).tolist()
    return pair[0], pair[1]


def is_degenerate(logits: Any) -> bool:
    """True for (vocab,) logits with NaN or +inf, or -inf throughout; one reduction."""
    xp = array_namespace(logits)
    # max() lets NaN through, meets every +inf, and is -inf only where all are.
    return not bool(xp.isfinite(xp.max(logits)))
