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

from ._hf_lean import CachedDraft
from ._patching import Patch

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
        UnsupportedError: more than one sequence, or a model whose cache cannot go back.
        ParameterError: ``longest`` or ``max_new_tokens`` is below 1, or the vocabularies differ.
    """
    same_vocabulary(target, draft)
    if min(longest, max_new_tokens) < 1:
        raise ParameterError(f"longest is {longest}, max_new_tokens {max_new_tokens}: give at "
                             "least 1 of each")
    if ids.shape[0] != 1:
        raise UnsupportedError(f"ids have shape {tuple(ids.shape)}; give one sequence, (1, length)")
    tokens, processors = _answer(target, ids, max_new_tokens)
    end = _end(target)
    compared = _Compared(target, ids, tokens) if distributions else None
    on, off = draft_everywhere(draft, ids, tokens, longest, end, compared, processors)
    return Text(prompt, task, turn, ids.shape[1], tokens, max_new_tokens, frozenset(end), longest,
                on, off, *(compared.columns if compared else ()))


def same_vocabulary(target: Any, draft: Any) -> None:
    """Raise ParameterError unless both models have as many tokens, as transformers asks for."""
    sizes = [model.config.get_text_config().vocab_size for model in (target, draft)]
    if sizes[0] != sizes[1]:
        raise ParameterError(
            f"the target has {sizes[0]} tokens and the draft {sizes[1]}: take a draft of the "
            "target's family whose vocabulary is padded to the same size"
        )


def _answer(target: Any, ids: Tensor, max_new_tokens: int) -> tuple[list[int], Any]:
    """The target's greedy answer, and the logits processors that it was written with."""
    prepared: list[Any] = []

    def remember(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        prepared.append(original(*args, **kwargs))
        return prepared[-1]

    patch = Patch(target, "_get_logits_processor", remember)
    try:
        out = target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                              max_new_tokens=max_new_tokens)
    finally:
        patch.remove()
    return out[0, ids.shape[1] :].tolist(), prepared[-1] or None


class _Compared:
    """The target's distribution against the draft's, position by position in ascending order.

    By passes over many positions: in bfloat16 these round otherwise than one token at a time.
    """

    def __init__(self, target: Any, ids: Tensor, tokens: list[int]) -> None:
        self._target = CachedDraft(target)
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
    see: Callable[[int, Tensor], None] | None = None, processors: Any = None,
) -> tuple[list[Drafted], dict[int, list[Drafted]]]:
    """``on`` and ``off`` of :class:`svip_policy.replay.Text`.

    Args:
        draft: the model.
        ids: the prompt, (1, length).
        tokens: the text after it.
        longest: see there.
        end: ids after which nothing is drafted.
        see: called with each position and the draft's logits there, (vocab,).
        processors: of logits, under which tokens are chosen; signals are of the raw logits.
    """
    cached = CachedDraft(draft)
    ids = ids.to(draft.device)
    whole = torch.cat((ids, ids.new_tensor([tokens])), dim=1)
    on, off = [], {}
    for at, token in enumerate(tokens):
        before = whole[:, : ids.shape[1] + at]
        logits = cached.next_logits(before)
        on.append(_drafted(before, logits, processors))
        if see is not None:
            see(at, logits[0])
        if on[at].token != token:
            off[at] = _astray(cached, before, on[at], longest - 1, end, processors)
            cached.rewind(before.shape[1])
    return on, off


def _astray(cached: CachedDraft, ids: Tensor, last: Drafted, count: int, end: Collection[int],
            processors: Any) -> list[Drafted]:
    """What is drafted after a wrong token."""
    found = []
    for _ in range(count):
        if last.token in end:
            break
        ids = torch.cat((ids, ids.new_tensor([[last.token]])), dim=1)
        last = _drafted(ids, cached.next_logits(ids), processors)
        found.append(last)
    return found


def _drafted(ids: Tensor, raw: Tensor, processors: Any) -> Drafted:
    scores = processors(ids, raw.clone()) if processors else raw
    token, logits = int(scores.argmax()), raw[0]
    entropy, log_probability = signals.entropy_and_log_probability(logits, token)
    return Drafted(token, entropy, log_probability, signals.margin_value(logits))
