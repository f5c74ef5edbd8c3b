"""Signals of a distribution given by its logits. Each formula is written once, here.

All functions take logits as an array of any library that array-api-compat knows (numpy,
torch, CuPy, JAX), of shape (..., vocab) and any float dtype; narrower dtypes than float32
are upcast first. They return an array of shape (...) on the logits' device. Entropies and
log probabilities are in nats.

A logit of -inf is a probability of 0 and contributes nothing. Logits with NaN or +inf, or
-inf throughout, give NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

_LOG2E = math.log2(math.e)
# 2 to this power is 0 in float32 and float64, and 0 times this is 0, which 0 * -inf is not.
_LOWEST = -1.0e4


def upcast(logits: Any) -> Any:
    """``logits`` in float64 if they are float64, else in float32."""
    xp = array_namespace(logits)
    if logits.dtype in (xp.float64, xp.float32):
        return logits
    return xp.astype(logits, xp.float32)


def _exponentials(logits: Any) -> tuple[Any, Any, Any, Any]:
    """Maximum (..., 1), log2 of the weights, weights, and the sum of these (...).

    Powers of 2, not of e: for arguments far below 0, of which a peaked distribution is full,
    torch's exp() on a CPU is 30 times slower than its exp2().
    """
    xp = array_namespace(logits)
    # numpy would warn of inf - inf, whose NaN is the answer that is wanted here.
    with np.errstate(invalid="ignore"):
        peak = xp.max(logits, axis=-1, keepdims=True)
        powers = logits - peak
        powers *= _LOG2E  # in place: page faults of new arrays cost more than the arithmetic
        powers = xp.clip(powers, _LOWEST, None)
        weights = xp.exp2(powers) if hasattr(xp, "exp2") else xp.pow(xp.asarray(2.0), powers)
        return peak, powers, weights, xp.sum(weights, axis=-1)


def _entropy(powers: Any, weights: Any, total: Any) -> Any:
    """In nats, (...); uses up ``powers``."""
    xp = array_namespace(weights)
    powers *= weights
    return (xp.log2(total) - xp.sum(powers, axis=-1) / total) / _LOG2E


def entropy(logits: Any) -> Any:
    """Shannon entropy of softmax(logits), in nats, between 0 and ln(vocab)."""
    _, powers, weights, total = _exponentials(upcast(logits))
    return _entropy(powers, weights, total)


def entropy_and_log_probability(logits: Any, token: Any) -> tuple[float, float]:
    """Entropy of one distribution and log probability of ``token``, as Python floats.

    One host synchronisation for both.

    Args:
        logits: (vocab,).
        token: index into the vocabulary, an int or an integer array with one element.
    """
    xp = array_namespace(logits)
    values = upcast(logits)
    peak, powers, weights, total = _exponentials(values)
    with np.errstate(invalid="ignore"):
        chosen = xp.reshape(_at(values, token) - peak, ()) - xp.log(total)
    pair: list[float] = xp.stack([_entropy(powers, weights, total), chosen]).tolist()
    return pair[0], pair[1]


def _at(values: Any, token: Any) -> Any:
    xp = array_namespace(values)
    if isinstance(token, int):
        return values[token]
    # Indexing by an array on an accelerator fetches it first; take() does not.
    return xp.take(values, xp.reshape(xp.asarray(token), (1,)))


def is_degenerate(logits: Any) -> bool:
    """True for (vocab,) logits with NaN or +inf, or -inf throughout; one reduction."""
    xp = array_namespace(logits)
    # max() lets NaN through, meets every +inf, and is -inf only where all are.
    return not bool(xp.isfinite(xp.max(logits)))
