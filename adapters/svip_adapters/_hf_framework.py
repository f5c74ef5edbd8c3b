"""Drafting by transformers' own generator, for what the lean loop does not cover."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.generation import candidate_generator as upstream
from transformers.generation import stopping_criteria as stopping

from svip_policy import PolicyDriver

from ._hf_drafting import Criteria, PolicyDrafting


class FrameworkDrafting(PolicyDrafting):
    """Drafts by transformers' own generator, which the policy stops through a criterion."""

    def __init__(
        self, framework: Any, arguments: dict[str, Any], criteria: Criteria, driver: PolicyDriver
    ) -> None:
        super().__init__(framework, arguments, criteria, driver)
        # Only 0 turns the confidence rule off: None is refilled with the default.
        framework.generation_config.assistant_confidence_threshold = 0
        # These are among our criteria; the draft's own generate() has no tokenizer for them.
        framework.generation_config.stop_strings = None
        prepare = framework._prepare_generation_args

        def with_policy(*args: Any, **kwargs: Any) -> Any:
            criteria = stopping.StoppingCriteriaList([_PolicyCriterion(self._ask)])
            return {**prepare(*args, **kwargs), "stopping_criteria": criteria}

        framework._prepare_generation_args = with_policy
        self._raw: Tensor | None = None
        self._left = self._thread = 0
        self._surplus = False

    def _draft(self, input_ids: Tensor, budget: int) -> tuple[Tensor, Tensor | None]:
        framework, config = self._framework, self._draft_model.config
        self._left, self._surplus = budget, False
        self._catch_up(input_ids.shape[1])
        framework.num_assistant_tokens, tokens = budget, framework.num_assistant_tokens
        # Or the draft's own end of sequence would stop it where the target has none.
        own = self._draft_model.generation_config
        end = own.eos_token_id
        if type(framework) is not upstream.AssistedCandidateGeneratorDifferentTokenizers:
            own.eos_token_id = self._config.eos_token_id
        layers = getattr(config, "num_hidden_layers", None)
        self._thread = threading.get_ident()
        hook = self._draft_model.register_forward_hook(self._see)
        try:
            candidates, logits = framework.get_candidates(input_ids)
        finally:
            hook.remove()
            framework.num_assistant_tokens = tokens
            own.eos_token_id = end
            # An early exit that raises leaves the target's depth cut.
            if layers is not None:
                config.num_hidden_layers = layers
        if self._surplus:
            candidates = candidates[:, :-1]
            logits = None if logits is None else logits[:, :-1]
        return candidates, logits

    def _forget(self, length: int) -> None:
        if type(self._framework) is upstream.AssistedCandidateGeneratorDifferentTokenizers:
            return  # compares the texts
        kwargs = self._framework.assistant_kwargs
        cache: Any = kwargs.get("cache", kwargs.get("past_key_values"))  # the name by version
        if cache is not None and not hasattr(cache, "get_seq_length"):  # a tuple, by model
            kwargs["past_key_values"] = upstream._crop_past_key_values(
                self._draft_model, cache, length - 1)
            return
        surplus = 0 if cache is None else cache.get_seq_length() - (length - 1)
        if surplus > 0:
            cache.crop(-surplus)

    def _catch_up(self, length: int) -> None:
        """Extend mask and positions over rounds in which the policy drafted nothing, which
        transformers, that drafts in every round, does not expect."""
        if type(self._framework) is upstream.AssistedCandidateGeneratorDifferentTokenizers:
            return  # makes its own
        for name in ("_prepare_attention_mask", "_prepare_position_ids"):
            prepare = getattr(upstream, name, None)  # older versions have no second one
            if prepare is not None:
                self._framework.assistant_kwargs = prepare(
                    self._framework.assistant_kwargs, length,
                    self._draft_model.config.is_encoder_decoder)

    def _see(self, module: Any, inputs: Any, output: Any) -> None:
        if threading.get_ident() == self._thread:  # another may run the same draft
            self._raw = output.logits[:, -1].float()

    def _ask(self, input_ids: Tensor) -> bool:
        """Whether to stop after the last of ``input_ids``."""
        if self._criteria and self._met(input_ids):
            self._surplus = True
            return True
        assert self._raw is not None
        self._left -= 1
        return not self._driver.observe(self._raw[0], int(input_ids[0, -1]), self._left)


class _PolicyCriterion(stopping.StoppingCriteria):  # type: ignore[misc]
    def __init__(self, stop: Callable[[Tensor], bool]) -> None:
        self._stop = stop

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), self._stop(input_ids), device=input_ids.device)


