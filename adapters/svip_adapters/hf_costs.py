"""Measure what drafting and verifying cost with transformers models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from svip_policy.cost import CostModel
from svip_policy.errors import ParameterError

from ._hf_lean import CachedDraft


def measure(
    target: Any, draft: Any, *, lengths: Sequence[int] = (64, 256, 1024), longest: int = 12,
    repeats: int = 9,
) -> CostModel:
    """Medians of interleaved passes of both models.

    Args:
        target: a decoder-only transformers model.
        draft: another.
        lengths: context lengths, ascending; those beyond what either model takes are left out.
        longest: the most drafted tokens whose verification is measured.
        repeats: of each pass, after one that is not counted.

    Raises:
        ParameterError: a length, ``longest`` or ``repeats`` is below 1, or no length fits.
        UnsupportedError: a model's cache cannot go back.
    """
    if min(*lengths, longest, repeats) < 1:
        raise ParameterError(f"lengths are {tuple(lengths)}, longest {longest}, repeats "
                             f"{repeats}: give at least 1 of each")
    most = min(_positions(target), _positions(draft)) - longest - 1
    lengths = [length for length in lengths if length <= most]
    if not lengths:
        raise ParameterError(f"no context length is left: the models take {most} tokens before "
                             f"{longest} drafted ones")
    drafts, verifies = [], []
    for length in lengths:
        step = partial(_cached_pass(draft, length, 1), 1)
        verify = _cached_pass(target, length, longest + 1)
        calls = [step, *(partial(verify, count) for count in range(1, longest + 2))]
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(repeats + 1):
            for call, mine in zip(calls, times, strict=True):
                mine.append(_timed(call, target.device))
        first, *others = (median(mine[1:]) for mine in times)
        drafts.append(first)
        verifies.append(tuple(others))
    return CostModel(tuple(lengths), tuple(drafts), tuple(verifies))


def _positions(model: Any) -> float:
    """How many tokens a model takes at most."""
    return getattr(model.config, "max_position_embeddings", None) or float("inf")


@torch.no_grad()
def _cached_pass(model: Any, length: int, most: int) -> Callable[[int], None]:
    """A pass of so many new tokens, up to ``most``, after ``length`` cached ones."""
    ids = torch.full((1, length + most), 11, device=model.device)
    cached = CachedDraft(model)
    cached.next_logits(ids[:, :length])

    def call(count: int) -> None:
        with torch.no_grad():
            cached.next_logits(ids[:, : length + count], count)
        cached.rewind(length)

    return call


def _timed(call: Callable[[], None], device: Any) -> float:
    """Seconds, with all that was launched on an accelerator done."""
    _wait(device)
    began = perf_counter()
    call()
    _wait(device)
    return perf_counter() - began


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
