"""The objects that draft for transformers' assisted generation under a policy.

Imported only when a generation starts: this module needs torch and transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.generation import candidate_generator as upstream
from transformers.generation import stopping_criteria as stopping

from svip_policy import PolicyDriver, RoundStart
from svip_policy.errors import UnsupportedError

Criteria = tuple[Any, ...]

# Criteria that drafting cannot overshoot: transformers handles them itself.
_HANDLED = (stopping.MaxLengthCriteria, stopping.EosTokenCriteria, stopping.MaxTimeCriteria)
# What the lean loop may leave out when it calls the draft: it sets or does not need it.
_IMPLIED = {"attention_mask", "position_ids", "cache_position", "use_cache", "logits_to_keep",
            "past_key_values", "cache", "output_attentions", "output_hidden_states",
            "return_dict"}


def custom_criteria(criteria: Iterable[Any]) -> Criteria:
    """The criteria that a drafted token in the middle of a round could meet."""
    return tuple(c for c in criteria if not isinstance(c, _HANDLED))


def refuse_before(arguments: dict[str, Any], criteria: Criteria) -> None:
    """Refuse what cannot be carried, before transformers changes anything.

    Raises:
        UnsupportedError: names what was asked for.
    """
    config, batch = arguments["generation_config"], arguments["input_ids"].shape[0]
    if batch > 1:
        raise UnsupportedError(
            f"batch size {batch}: speculative decoding in transformers takes one sequence at a "
            "time; call generate() for each"
        )
    names = ", ".join(type(c).__name__ for c in criteria)
    if criteria and config.do_sample:
        raise UnsupportedError(
            f"stopping criteria {names} with do_sample=True: the draft may run past the place "
            "where they hold, and cutting it there would bias the samples; detach, or drop them"
        )
    if arguments.get("assistant_tokenizer") is None:
        return
    if config.do_sample:
        raise UnsupportedError(
            "do_sample=True with different tokenizers: transformers then rewrites the draft's "
            "output head; use greedy decoding, or a draft that shares the target's tokenizer"
        )
    if criteria:
        raise UnsupportedError(
            f"stopping criteria {names} with different tokenizers: they read the target's "
            "tokens while the draft writes its own; drop them, or share the tokenizer"
        )


def replace(
    framework: Any, arguments: dict[str, Any], criteria: Criteria, driver: PolicyDriver, lean: bool
) -> PolicyDrafting:
    """Our generator in place of ``framework``, the one that transformers made.

    Raises:
        UnsupportedError: ``framework`` drafts in a way that gives no distribution.
    """
    known = (upstream.AssistedCandidateGenerator, upstream.EarlyExitCandidateGenerator,
             upstream.AssistedCandidateGeneratorDifferentTokenizers)
    if type(framework) not in known:
        raise UnsupportedError(
            f"{type(framework).__name__}: no draft distribution for a policy to observe at each "
            "token; detach the policy, or draft with assistant_model"
        )
    cache = lean_cache(framework) if lean else None
    if cache is None:
        return FrameworkDrafting(framework, arguments, criteria, driver)
    return LeanDrafting(framework, arguments, criteria, driver, cache)


def watch(framework: Any, driver: PolicyDriver) -> Any:
    """``framework`` itself, its rounds recorded by ``driver``."""
    draft, update = framework.get_candidates, framework.update_candidate_strategy
    submitted = 0

    def get_candidates(input_ids: Tensor, **kwargs: Any) -> Any:
        nonlocal submitted
        driver.begin(RoundStart(length=input_ids.shape[1]))
        candidates, logits = draft(input_ids, **kwargs)
        submitted = candidates.shape[1] - input_ids.shape[1]
        driver.drafted()
        return candidates, logits

    def update_candidate_strategy(input_ids: Tensor, scores: Tensor, num_matches: Any) -> None:
        update(input_ids, scores, num_matches)
        driver.verified(max(int(num_matches), 0), submitted)

    framework.get_candidates = get_candidates
    framework.update_candidate_strategy = update_candidate_strategy
    return framework


class PolicyDrafting(upstream.CandidateGenerator):  # type: ignore[misc]
    """What both ways of drafting share: the budget, the policy, the feedback."""

    def __init__(
        self, framework: Any, arguments: dict[str, Any], criteria: Criteria, driver: PolicyDriver
    ) -> None:
        self._framework = framework
        self._draft_model = framework.assistant_model
        self._config = arguments["generation_config"]
        self._processors: Any = arguments.get("logits_processor") or ()
        self._criteria = criteria
        self._driver = driver
        self._submitted = 0
        self._target_logits: Tensor | None = None

    def get_candidates(self, input_ids: Tensor, **_: Any) -> tuple[Tensor, Tensor | None]:
        """Draft for one round.

        Args:
            input_ids: the sequence so far, (1, length).

        Returns:
            The sequence with the drafted tokens, (1, length + drafted), and the logits they
            were drawn from, (1, drafted, vocab), or None where they are not needed.
        """
        length = input_ids.shape[1]
        # The target adds a token of its own to each round.
        budget = self._config.max_length - length - 1
        candidates, logits = input_ids, None
        if self._driver.begin(RoundStart(budget, length, self._target_logits)):
            candidates, logits = self._draft(input_ids, budget)
        self._submitted = candidates.shape[1] - length
        self._driver.drafted()
        return candidates, logits

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: Any) \
            -> None:
        """What transformers' verification accepted: the feedback for the policy."""
        accepted = max(int(num_matches), 0)
        self._driver.verified(accepted, self._submitted)
        # Behind processors the raw logits are not at hand.
        self._target_logits = None if self._processors else scores[0, accepted]

    def _draft(self, input_ids: Tensor, budget: int) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError

    def _met(self, candidates: Tensor) -> bool:
        """Whether a custom criterion holds, so that the last token must be the target's."""
        return any(bool(torch.as_tensor(c(candidates, None)).all()) for c in self._criteria)


class LeanDrafting(PolicyDrafting):
    """Calls the draft's forward with a cache of its own, one token at a time."""

    def __init__(
        self, framework: Any, arguments: dict[str, Any], criteria: Criteria, driver: PolicyDriver,
        cache: Any,
    ) -> None:
        super().__init__(framework, arguments, criteria, driver)
        parameters = inspect.signature(self._draft_model.forward).parameters
        self._cache = cache
        self._forward_options = {"use_cache": True, _cache_keyword(parameters): cache}
        if "logits_to_keep" in parameters:
            self._forward_options["logits_to_keep"] = 1
        end = getattr(self._config, "_eos_token_tensor", None)
        self._end = set() if end is None else set(end.flatten().tolist())
        ensemble = getattr(self._config, "assistant_ensemble_weight", None)
        self._needs_logits = self._config.do_sample or ensemble is not None

    def _draft(self, input_ids: Tensor, budget: int) -> tuple[Tensor, Tensor | None]:
        ids = input_ids.to(self._draft_model.device)
        self._rewind(ids.shape[1] - 1)
        rows = []
        for left in range(budget - 1, -1, -1):
            raw = self._next_logits(ids)
            scores = self._processors(ids, raw.clone()) if self._processors else raw
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

    def _rewind(self, length: int) -> None:
        """Forget cached positions from ``length`` on; the token there is the target's."""
        surplus = self._cache.get_seq_length() - length
        if surplus > 0:
            self._cache.crop(-surplus)  # a negative number has one meaning in all versions

    def _next_logits(self, ids: Tensor) -> Tensor:
        """Raw float32 logits of the next token, (1, vocab)."""
        new = ids[:, self._cache.get_seq_length() :]
        logits: Tensor = self._draft_model(input_ids=new, **self._forward_options).logits
        return logits[:, -1].float()

    def _choose(self, scores: Tensor) -> Tensor:
        if self._config.do_sample:
            return torch.multinomial(scores.softmax(-1), num_samples=1)
        return scores.argmax(-1, keepdim=True)


class FrameworkDrafting(PolicyDrafting):
    """Drafts by transformers' own generator, which the policy stops through a criterion."""

    def __init__(
        self, framework: Any, arguments: dict[str, Any], criteria: Criteria, driver: PolicyDriver
    ) -> None:
        super().__init__(framework, arguments, criteria, driver)
        # Only 0 turns the confidence rule off: None is refilled with the default.
        framework.generation_config.assistant_confidence_threshold = 0
        prepare = framework._prepare_generation_args

        def with_policy(*args: Any, **kwargs: Any) -> Any:
            criteria = stopping.StoppingCriteriaList([_PolicyCriterion(self._ask)])
            return {**prepare(*args, **kwargs), "stopping_criteria": criteria}

        framework._prepare_generation_args = with_policy
        self._raw: Tensor | None = None
        self._left = 0
        self._surplus = False

    def _draft(self, input_ids: Tensor, budget: int) -> tuple[Tensor, Tensor | None]:
        framework, config = self._framework, self._draft_model.config
        self._left, self._surplus = budget, False
        self._catch_up(input_ids.shape[1])
        framework.num_assistant_tokens, tokens = budget, framework.num_assistant_tokens
        layers = config.num_hidden_layers if hasattr(config, "num_hidden_layers") else None
        hook = self._draft_model.register_forward_hook(self._see)
        try:
            candidates, logits = framework.get_candidates(input_ids)
        finally:
            hook.remove()
            framework.num_assistant_tokens = tokens
            # An early exit that raises leaves the target's depth cut.
            if layers is not None:
                config.num_hidden_layers = layers
        if self._surplus:
            candidates = candidates[:, :-1]
            logits = None if logits is None else logits[:, :-1]
        return candidates, logits

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


def lean_cache(framework: Any) -> Any:
    """An empty cache for the lean loop, or None where that does not cover the case."""
    draft, kwargs = framework.assistant_model, framework.assistant_kwargs
    parameters = inspect.signature(draft.forward).parameters
    plain = (
        type(framework) is upstream.AssistedCandidateGenerator
        and framework.input_ids_key == "input_ids"
        and not any(v is not None for k, v in kwargs.items() if k not in _IMPLIED)
        and not getattr(draft, "_is_stateful", False)
        and _cache_keyword(parameters) in parameters
        and _unpadded(kwargs)
    )
    cache = _dynamic_cache(draft) if plain else None
    layers = getattr(cache, "layers", [])
    # Sliding windows and recurrent states need more than a crop to go back.
    return cache if all(type(layer).__name__ == "DynamicLayer" for layer in layers) else None


def _cache_keyword(parameters: Any) -> str:
    return "cache" if "cache" in parameters else "past_key_values"


def _unpadded(kwargs: dict[str, Any]) -> bool:
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if mask is not None and not bool((mask == 1).all()):
        return False
    if positions is None:
        return True
    count = torch.arange(positions.shape[-1], device=positions.device)
    return bool((positions == count).all())


def _dynamic_cache(draft: Any) -> Any:
    try:
        return DynamicCache(config=draft.config)
    except TypeError:  # older versions take no configuration
        return DynamicCache()
