"""The lean drafting loop: the draft's forward, a cache of its own, one token at a time."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.generation import candidate_generator as upstream

from svip_policy import PolicyDriver
from svip_policy.errors import UnsupportedError
from svip_policy.signals import is_degenerate

from ._hf_drafting import Criteria, PolicyDrafting, end_tokens

# What the loop may leave out when it calls the draft: it sets or does not need it.
_IMPLIED = {"attention_mask", "position_ids", "cache_position", "use_cache", "logits_to_keep",
            "past_key_values", "cache", "output_attentions", "output_hidden_states",
            "return_dict"}


class LeanDrafting(PolicyDrafting):
    """Calls the draft's forward with a cache of its own, one token at a time."""

    def __init__(
        self, framework: Any, arguments: dict[str, Any], criteria: Criteria, driver: PolicyDriver,
        cache: Any,
    ) -> None:
        super().__init__(framework, arguments, criteria, driver)
        self._cached = CachedDraft(self._draft_model, cache)
        self._end = end_tokens(self._config)
        ensemble = getattr(self._config, "assistant_ensemble_weight", None)
        self._needs_logits = self._config.do_sample or ensemble is not None

    def _draft(self, input_ids: Tensor, budget: int) -> tuple[Tensor, Tensor | None]:
        ids = input_ids.to(self._draft_model.device)
        self._cached.rewind(ids.shape[1] - 1)
        rows = []
        for left in range(budget - 1, -1, -1):
            raw = self._cached.next_logits(ids)
            scores = self._processors(ids, raw.clone()) if self._processors else raw
            if self._config.do_sample and is_degenerate(scores[0]):
                # Nothing to sample from. Decided by the distribution alone: still exact.
                if is_degenerate(raw[0]):
                    self._driver.count_degenerate()
                break
            chosen = self._choose(scores)
            longer = torch.cat([ids, chosen], dim=1)
            if self._criteria and self._met(longer):
                break
            ids, token = longer, int(chosen)
            rows.append(scores)
            more = self._driver.observe(raw[0], token, left)
            if not more or token in self._end:
                break
        logits = torch.stack(rows, dim=1) if self._needs_logits and rows else None
        return ids, logits

    def _forget(self, length: int) -> None:
        self._cached.rewind(length - 1)

    def _choose(self, scores: Tensor) -> Tensor:
        if self._config.do_sample:
            return torch.multinomial(scores.softmax(-1), num_samples=1)
        return scores.argmax(-1, keepdim=True)


class CachedDraft:
    """A decoder-only model with a cache of its own, which tells the next token's logits.

    Args:
        draft: the model.
        cache: an empty one for it; made if not given.

    Raises:
        UnsupportedError: it has no cache that can go back to an earlier length.
    """

    def __init__(self, draft: Any, cache: Any = None) -> None:
        cache = plain_cache(draft) if cache is None else cache
        if cache is None:
            raise UnsupportedError(
                f"{type(draft).__qualname__} has no cache that can forget its last tokens (a "
                "sliding window, a recurrent state): take another model"
            )
        parameters = inspect.signature(draft.forward).parameters
        self._draft, self._cache = draft, cache
        self._options = {"use_cache": True, _cache_keyword(parameters): cache}
        self._keeps = "logits_to_keep" in parameters

    def rewind(self, length: int) -> None:
        """Forget cached positions from ``length`` on: others follow there."""
        surplus = self._cache.get_seq_length() - length
        if surplus > 0:
            self._cache.crop(-surplus)  # a negative number has one meaning in all versions

    def next_logits(self, ids: Tensor, count: int = 1) -> Tensor:
        """Raw float32 logits of the token after each of the last ``count`` ``ids``.

        Args:
            ids: the sequence, (1, length); at least ``count`` of it not yet in the cache.
            count: how many.

        Returns:
            (count, vocab).
        """
        new = ids[:, self._cache.get_seq_length() :]
        keep = {"logits_to_keep": count} if self._keeps else {}
        logits: Tensor = self._draft(input_ids=new, **self._options, **keep).logits
        return logits[0, -count:].float()


def lean_cache(framework: Any) -> Any:
    """An empty cache for the lean loop, or None where that does not cover the case."""
    draft, kwargs = framework.assistant_model, framework.assistant_kwargs
    plain = (
        type(framework) is upstream.AssistedCandidateGenerator
        and framework.input_ids_key == "input_ids"
        and not any(v is not None for k, v in kwargs.items() if k not in _IMPLIED)
        and _unpadded(kwargs)
    )
    return plain_cache(draft) if plain else None


def plain_cache(model: Any) -> Any:
    """An empty cache for ``model`` that a crop brings back to any length, or None."""
    parameters = inspect.signature(model.forward).parameters
    plain = (
        not getattr(model, "_is_stateful", False)
        and _takes_dynamic_cache(model)
        and _cache_keyword(parameters) in parameters
    )
    cache = dynamic_cache(model) if plain else None
    layers = getattr(cache, "layers", [])
    # Sliding windows and recurrent states need more than a crop to go back.
    return cache if all(type(layer).__name__ == "DynamicLayer" for layer in layers) else None


def _cache_keyword(parameters: Any) -> str:
    return "cache" if "cache" in parameters else "past_key_values"


def _takes_dynamic_cache(draft: Any) -> bool:
    ask = getattr(draft, "_supports_default_dynamic_cache", None)
    return ask is None or bool(ask())  # newer versions: all that are not stateful do


def _unpadded(kwargs: dict[str, Any]) -> bool:
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if mask is not None and not bool((mask == 1).all()):
        return False
    if positions is None:
        return True
    count = torch.arange(positions.shape[-1], device=positions.device)
    return bool((positions == count).all())


def dynamic_cache(draft: Any) -> Any:
    """An empty cache for ``draft``."""
    try:
        return DynamicCache(config=draft.config)
    except TypeError:  # older versions take no configuration
        return DynamicCache()
