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
from array_api_compat import array_namespace, device

_LOG2E = math.log2(math.e)
# 2 to this power is 0 in float32 and float64, and 0 times this is 0, which 0 * -inf is not.
_LOWEST = -1.0e4
# On a CPU a distribution is summed up in pieces: temporary arrays above 128 KiB come fresh
# from the system each time, and their page faults cost more than the arithmetic.
_CHUNK = 24_576


def upcast(logits: Any) -> Any:
    """``logits`` in float64 if they are float64, else in float32."""
    xp = array_namespace(logits)
    if logits.dtype in (xp.float64, xp.float32):
        return logits
    return xp.astype(logits, xp.float32)


def _moments(logits: Any, peak: Any) -> tuple[Any, Any]:
    """Sum of the weights 2^z, and of z 2^z, each (...), for z = log2 of exp(logits - peak).

    Powers of 2, not of e: for arguments far below 0, of which a peaked distribution is full,
    torch's exp() on a CPU is 30 times slower than its exp2().
    """
    xp = array_namespace(logits)
    powers = logits - peak
    powers *= _LOG2E
    powers = xp.clip(powers, _LOWEST, None)
    weights = xp.exp2(powers) if hasattr(xp, "exp2") else xp.pow(xp.asarray(2.0), powers)
    powers *= weights
    return xp.sum(weights, axis=-1), xp.sum(powers, axis=-1)


def _entropy(total: Any, moment: Any) -> Any:
    return (array_namespace(total).log2(total) - moment / total) / _LOG2E


def entropy(logits: Any) -> Any:
    """Shannon entropy of softmax(logits), in nats, between 0 and ln(vocab)."""
    xp, values = array_namespace(logits), upcast(logits)
    # numpy would warn of inf - inf, whose NaN is the answer that is wanted here.
    with np.errstate(invalid="ignore"):
        return _entropy(*_moments(values, xp.max(values, axis=-1, keepdims=True)))


def entropy_and_log_probability(logits: Any, token: Any) -> tuple[float, float]:
    """Entropy of one distribution and log probability of ``token``, as Python floats.

    One host synchronisation for both.

    Args:
        logits: (vocab,).
        token: index into the vocabulary, an int or an integer array with one element.
    """
    xp, values = array_namespace(logits), upcast(logits)
    size = values.shape[0]
    step = _CHUNK if str(device(values)).startswith("cpu") else size
    with np.errstate(invalid="ignore"):
        peak = xp.max(values)
        parts = [_moments(values[n : n + step], peak) for n in range(0, size, step)]
        total = sum(part for part, _ in parts)
        spread = _entropy(total, sum(part for _, part in parts))
        chosen = xp.reshape(_at(values, token), ()) - peak - xp.log(total)
    pair: list[float] = xp.stack([spread, chosen]).tolist()
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
