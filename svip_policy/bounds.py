"""What speculative decoding accepts, what entropy says of it, and what it gains.

Distributions are numpy arrays of probabilities, (..., vocab), target p and draft q.
Sources: Leviathan et al., arXiv 2211.17192 (acceptance, expected tokens, speedup) and
Zhang et al., arXiv 2411.18462 (the entropy bound).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ParameterError

Floats = NDArray[np.float64]


def acceptance_rate(p: ArrayLike, q: ArrayLike) -> Floats:
    """Chance that a token drafted from q is accepted: sum of min(p, q) = 1 - TV(p, q)."""
    return np.asarray(np.minimum(p, q).sum(axis=-1), dtype=np.float64)


def total_variation(p: ArrayLike, q: ArrayLike) -> Floats:
    """Total variation distance, half the L1 distance, in [0, 1]."""
    return np.asarray(0.5 * np.abs(np.subtract(p, q)).sum(axis=-1), dtype=np.float64)


def cross_entropy(q: ArrayLike, p: ArrayLike) -> Floats:
    """H(q, p) = -sum q ln p in nats; inf where p is 0 and q is not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(np.asarray(q) > 0, -np.multiply(q, np.log(p)), 0.0)
    return np.asarray(terms.sum(axis=-1), dtype=np.float64)


def kl_divergence(q: ArrayLike, p: ArrayLike) -> Floats:
    """KL(q || p) = H(q, p) - H(q) in nats, at least 0."""
    return np.maximum(cross_entropy(q, p) - cross_entropy(q, q), 0.0)


def pinsker_bound(q: ArrayLike, p: ArrayLike) -> Floats:
    """Lower bound of the acceptance rate: 1 - sqrt(KL(q || p) / 2)."""
    return np.asarray(1.0 - np.sqrt(kl_divergence(q, p) / 2.0))


def bretagnolle_huber_bound(q: ArrayLike, p: ArrayLike) -> Floats:
    """Lower bound of the acceptance rate: 1 - sqrt(1 - exp(-KL(q || p)))."""
    return np.asarray(1.0 - np.sqrt(-np.expm1(-kl_divergence(q, p))))


def entropy_distance(entropy: float, c: float) -> float:
    """SVIP's estimate, from the draft's entropy alone, of the distance to the target: sqrt(c H).

    It stands for the bound sqrt(KL(q || p) / 2) of the total variation.

    Args:
        entropy: of the draft distribution, in nats; what rounding left below 0 counts as 0.
        c: at least 0; 0.15 in the authors' code, 0.18 in their Figure 4.
    """
    # Not max(entropy, 0): it would turn NaN into 0.
    return math.sqrt(c * (0.0 if entropy < 0.0 else entropy))


def entropy_bound(entropy: float, c: float) -> float:
    """SVIP's estimate of the lower bound of the acceptance rate: 1 - sqrt(c H).

    With H(q, p) = gamma H(q) it is Pinsker's bound for gamma = 2 c + 1, and conservative
    where gamma is smaller. The target is not needed, which makes it a stopping rule. The
    arguments are those of :func:`entropy_distance`.
    """
    return 1.0 - entropy_distance(entropy, c)


def expected_tokens(acceptance: float, length: int) -> float:
    """Expected tokens a round, the target's own included, for a fixed draft length.

    (1 - a^(k+1)) / (1 - a) for independent positions with acceptance rate a in [0, 1].
    """
    _check(acceptance, length)
    return sum(acceptance**j for j in range(length + 1))


def speedup(acceptance: float, length: int, draft_cost: float) -> float:
    """Expected tokens per unit of target time, against target-only decoding.

    Args:
        acceptance: rate a in [0, 1] of independent positions.
        length: fixed draft length k, at least 0.
        draft_cost: time of one draft step in units of one target step, at least 0.
    """
    if draft_cost < 0:
        raise ParameterError(f"draft_cost is {draft_cost}; give a ratio of times, at least 0")
    return expected_tokens(acceptance, length) / (1.0 + length * draft_cost)


def optimal_length(acceptance: float, draft_cost: float, cap: int = 64) -> int:
    """The fixed draft length in 0..cap with the largest :func:`speedup`."""
    return max(range(cap + 1), key=lambda k: speedup(acceptance, k, draft_cost))


def _check(acceptance: float, length: int) -> None:
    if not 0.0 <= acceptance <= 1.0:
        raise ParameterError(f"acceptance is {acceptance}; give a rate in [0, 1]")
    if length < 0:
        raise ParameterError(f"length is {length}; give a draft length of at least 0")
