"""Record a text that a transformers model writes, for :mod:`svip_policy.replay`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from svip_policy import signals
from svip_policy.errors import ParameterError, UnsupportedError
from svip_policy.replay import Drafted, Text
from svip_policy.trace import against

from ._hf_lean import CachedDraft, dynamic_cache

CHUNK = 64  # positions whose target logits are held at a time


def record_text(
    target: Any, draft: Any, ids: Tensor, *, max_new_tokens: int, longest: int = 40,
    prompt: str = "", task: str = "", turn: int = 0, distributions: bool = False,
) -> Text:
    """The target's greedy answer, and what the draft would draft from each position of it.

    Args:
        target: a decoder-only transformers model.
        draft: another, of the same vocabulary.
        ids: the prompt, (1, length).
        max_new_tokens: of the answer, at least 1.
        longest: how many tokens are drafted from a position, at least 1.
        prompt: its id.
        task: that it belongs to.
        turn: of the prompt.
        distributions: also compare the draft's distribution with the target's at each position.

    Raises:
        UnsupportedError: more than one sequence.
        ParameterError: ``longest`` or ``max_new_tokens`` is below 1.
    """
    if min(longest, max_new_tokens) < 1:
        raise ParameterError(f"longest is {longest}, max_new_tokens {max_new_tokens}: give at "
                             "least 1 of each")
    if ids.shape[0] != 1:
        raise UnsupportedError(f"ids have shape {tuple(ids.shape)}; give one sequence, (1, length)")
    out = target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                          max_new_tokens=max_new_tokens)
    tokens = out[0, ids.shape[1] :].tolist()
    end = _end(target)
    compared = _Compared(target, ids, tokens) if distributions else None
    on, off = draft_everywhere(draft, ids, tokens, longest, end, compared)
    return Text(prompt, task, turn, ids.shape[1], tokens, max_new_tokens, frozenset(end), longest,
                on, off, *(compared.columns if compared else ()))


class _Compared:
    """The target's distribution against the draft's, position by position in ascending order.

    By passes over many positions: in bfloat16 these round otherwise than one token at a time.
    """

    def __init__(self, target: Any, ids: Tensor, tokens: list[int]) -> None:
        self._target = CachedDraft(target, dynamic_cache(target))
        self._length = ids.shape[1]
        self._whole = torch.cat((ids, ids.new_tensor([tokens])), dim=1)
        self._rows: Tensor | None = None
        self.columns: tuple[list[float | None], list[float | None]] = ([], [])

    def __call__(self, at: int, logits: Tensor) -> None:
        """At position ``at`` the draft's are ``logits``, (vocab,)."""
        if at % CHUNK == 0:
            count = min(CHUNK, self._whole.shape[1] - self._length - at)
            self._rows = self._target.next_logits(
                self._whole[:, : self._length + at + count - 1], count)
        assert self._rows is not None
        for column, value in zip(self.columns, against(logits, self._rows[at % CHUNK]),
                                 strict=True):
            column.append(value)


def _end(target: Any) -> set[int]:
    end = target.generation_config.eos_token_id
    return set(end) if isinstance(end, list) else set() if end is None else {end}


@torch.no_grad()
def draft_everywhere(
    draft: Any, ids: Tensor, tokens: list[int], longest: int, end: Collection[int],
    see: Callable[[int, Tensor], None] | None = None,
) -> tuple[list[Drafted], dict[int, list[Drafted]]]:
    """``on`` and ``off`` of :class:`svip_policy.replay.Text`.

    Args:
        draft: the model.
        ids: the prompt, (1, length).
        tokens: the text after it.
        longest: see there.
        end: ids after which nothing is drafted.
        see: called with each position and the draft's logits there, (vocab,).
    """
    cached = CachedDraft(draft, dynamic_cache(draft))
    ids = ids.to(draft.device)
    whole = torch.cat((ids, ids.new_tensor([tokens])), dim=1)
    on, off = [], {}
    for at, token in enumerate(tokens):
        before = whole[:, : ids.shape[1] + at]
        logits = cached.next_logits(before)[0]
        on.append(_drafted(logits))
        if see is not None:
            see(at, logits)
        if on[at].token != token:
            off[at] = _astray(cached, before, on[at], longest - 1, end)
            cached.rewind(before.shape[1])
    return on, off


def _astray(cached: CachedDraft, ids: Tensor, last: Drafted, count: int, end: Collection[int]) \
        -> list[Drafted]:
    """What is drafted after a wrong token."""
    found = []
    for _ in range(count):
        if last.token in end:
            break
        ids = torch.cat((ids, ids.new_tensor([[last.token]])), dim=1)
        last = _drafted(cached.next_logits(ids)[0])
        found.append(last)
    return found


def _drafted(logits: Tensor) -> Drafted:
    token = int(logits.argmax())
    entropy, log_probability = signals.entropy_and_log_probability(logits, token)
    return Drafted(token, entropy, log_probability, signals.margin_value(logits))
