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
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

_LOG2E = math.log2(math.e)
# 2 to this power is 0 in float32 and float64, and 0 times this is 0, which 0 * -inf is not.
_LOWEST = -1.0e4


def upcast(logits: Any) -> Any:
    """``logits`` in float64 if they are float64, else in float32."""
    xp = array_namespace(logits)
    if logits.dtype in (xp.float64, xp.float32):
        return logits
    return xp.astype(logits, xp.float32)


def entropy(logits: Any) -> Any:
    """Shannon entropy of softmax(logits), in nats, between 0 and ln(vocab)."""
    with _quiet(logits):
        xp, powers, _ = _powers(upcast(logits))
        weights = xp.exp2(powers)
        total = xp.sum(weights, axis=-1)
        powers *= weights
        return (xp.log2(total) - xp.sum(powers, axis=-1) / total) / _LOG2E


def log_probability(logits: Any, tokens: Any) -> Any:
    """Log probability of one token of each row under softmax(logits), in nats, (rows,).

    Args:
        logits: (rows, vocab).
        tokens: indices into the vocabulary, integers (rows,).
    """
    values = upcast(logits)
    rows, vocabulary = values.shape
    with _quiet(logits):
        xp, powers, peak = _powers(values)
        places = xp.arange(rows, device=device(values)) * vocabulary + tokens
        chosen = xp.take(xp.reshape(values, (-1,)), places, axis=0)
        return chosen - peak[:, 0] - xp.log(xp.sum(xp.exp2(powers), axis=-1))


def entropy_value(logits: Any, path: Any = None) -> float:
    """Entropy of one distribution, (vocab,), as a Python float; one host synchronisation.

    Args:
        logits: (vocab,).
        path: log probability of what leads to it, shape (), or None; where it is -inf there
            is no distribution, and the entropy is NaN.
    """
    with _quiet(logits):
        xp, powers, _ = _powers(upcast(logits))
        weights = xp.exp2(powers)
        # Few calls: between two passes of a model each costs ten times its time in a loop.
        total = xp.sum(weights)
        if path is not None:
            total = total + 0.0 * path  # NaN if it is -inf
        total, weighted = xp.stack([total, weights @ powers]).tolist()
    return _entropy(total, weighted)


def weighted_entropy(logits: Any, paths: Any) -> float:
    """Mean entropy of rows in nats, weighted by softmax(paths); one host synchronisation.

    Args:
        logits: (width, vocab).
        paths: log probability of the path to each row, (width,).

    Returns:
        NaN if no row is usable; a degenerate row counts nothing.
    """
    xp = array_namespace(logits)
    each = entropy(logits)
    paths = xp.where(xp.isnan(each), -xp.inf, paths)
    with _quiet(paths):
        weights = xp.exp(paths - xp.max(paths))
        counted = xp.where(xp.isnan(each), 0.0, each)
        return float(xp.sum(weights * counted) / xp.sum(weights))


def without_nan(paths: Any) -> Any:
    """``paths`` with -inf for NaN, which then counts as no probability."""
    xp = array_namespace(paths)
    return xp.where(xp.isnan(paths), -xp.inf, paths)


def usable_paths(logits: Any, paths: Any) -> Any:
    """``paths`` with -inf where the row of ``logits`` is degenerate."""
    xp = array_namespace(logits)
    return xp.where(usable(logits), paths, -xp.inf)


def usable(logits: Any) -> Any:
    """Which rows of (..., vocab) logits are a distribution, (...)."""
    xp = array_namespace(logits)
    # max() lets NaN through, meets every +inf, and is -inf only where all are.
    return xp.isfinite(xp.max(logits, axis=-1))


def log_largest(paths: Any) -> float:
    """The largest of (width,) log probabilities; NaN if all are -inf."""
    value = float(array_namespace(paths).max(paths))
    return value if math.isfinite(value) else math.nan


def log_total(paths: Any) -> float:
    """Log of the sum of the probabilities of (width,) paths; NaN if all are -inf."""
    xp = array_namespace(paths)
    peak = xp.max(paths)
    with _quiet(paths):
        return float(peak + xp.log(xp.sum(xp.exp(paths - peak))))


def entropy_and_log_probability(logits: Any, token: Any) -> tuple[float, float]:
    """Entropy of one distribution and log probability of ``token``, as Python floats.

    One host synchronisation for both.

    Args:
        logits: (vocab,).
        token: index into the vocabulary, an int or an integer array with one element.
    """
    values = upcast(logits)
    with _quiet(logits):
        xp, powers, peak = _powers(values)
        weights = xp.exp2(powers)
        chosen = xp.reshape(_at(values, token) - peak, ())
        sums = xp.stack([xp.sum(weights), weights @ powers, chosen]).tolist()
    return _entropy(sums[0], sums[1]), sums[2] - math.log(sums[0])


def margin_value(logits: Any) -> float:
    """How much more probable the most probable token is than the next, (vocab,), in [0, 1].

    As a Python float; one host synchronisation. NaN for degenerate logits.
    """
    with _quiet(logits):
        xp, powers, peak = _powers(upcast(logits))
        weights = xp.exp2(powers)
        total = xp.sum(weights)
        # The peak's weight is 1. Two of them: no lead, which a mask by value would hide.
        others = xp.where(powers < 0.0, weights, 0.0)
        second = xp.where(total - xp.sum(others) > 1.5, 1.0, xp.max(others))
        # A peak that is infinite makes the powers NaN in places only.
        margin = (1.0 - second) / total + 0.0 * peak
    return float(xp.reshape(margin, ()))


def _quiet(logits: Any) -> AbstractContextManager[Any]:
    """Against numpy's warning of inf - inf, whose NaN is the answer that is wanted here."""
    return np.errstate(invalid="ignore") if isinstance(logits, np.ndarray) else nullcontext()


def _powers(values: Any) -> tuple[Any, Any, Any]:
    """The namespace, log2 of the weights relative to the peak, and the peak (..., 1).

    Powers of 2, not of e: for arguments far below 0, of which a peaked distribution is full,
    torch's exp() on a CPU is 30 times slower than its exp2().
    """
    xp = array_namespace(values)
    peak = xp.max(values, axis=-1, keepdims=True)
    powers = values - peak
    powers *= _LOG2E  # in place: page faults of new arrays cost more than the arithmetic
    return xp, xp.clip(powers, _LOWEST, None), peak


def _entropy(total: float, weighted: float) -> float:
    return (math.log2(total) - weighted / total) / _LOG2E


def _at(values: Any, token: Any) -> Any:
    xp = array_namespace(values)
    if isinstance(token, int):
        return values[token]
    # Indexing by an array on an accelerator fetches it first; take() does not.
    return xp.take(values, xp.reshape(xp.asarray(token), (1,)))


def is_degenerate(logits: Any) -> bool:
    """True for (vocab,) logits with NaN or +inf, or -inf throughout; one reduction."""
    return not math.isfinite(float(array_namespace(logits).max(logits)))


def is_degenerate_throughout(logits: Any) -> bool:
    """True if each row of (width, vocab) logits is degenerate."""
    xp = array_namespace(logits)
    return not bool(xp.any(usable(logits)))
