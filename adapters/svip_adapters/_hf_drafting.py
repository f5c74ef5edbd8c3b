"""What drafts for transformers' assisted generation under a policy, and what is refused.

Imported only when a generation starts: this module needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.generation import candidate_generator as upstream
from transformers.generation import stopping_criteria as stopping

from svip_policy import PolicyDriver, RoundStart
from svip_policy.errors import UnsupportedError

Criteria = tuple[Any, ...]

def custom_criteria(criteria: Iterable[Any], config: Any) -> Criteria:
    """The criteria that a drafted token in the middle of a round could meet unnoticed."""
    return tuple(c for c in criteria if not _handled(c, config))


def end_tokens(config: Any) -> set[int]:
    """The tokens that end a sequence under a prepared generation configuration."""
    end = getattr(config, "_eos_token_tensor", None)
    return set() if end is None else set(end.flatten().tolist())


def _handled(criterion: Any, config: Any) -> bool:
    """Whether transformers itself keeps to it: those it derives from ``config``."""
    if type(criterion) is stopping.MaxLengthCriteria:
        return bool(criterion.max_length == config.max_length)
    if type(criterion) is stopping.EosTokenCriteria:
        return end_tokens(config) == set(criterion.eos_token_id.flatten().tolist())
    return type(criterion) is stopping.MaxTimeCriteria


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
    from ._hf_framework import FrameworkDrafting
    from ._hf_lean import LeanDrafting, lean_cache

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
            try:
                candidates, logits = self._draft(input_ids, budget)
            except BaseException:
                self._driver.abandon()
                raise
        else:
            self._forget(length)
        self._submitted = candidates.shape[1] - length
        self._driver.drafted()
        return candidates, logits

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: Any) \
            -> None:
        """What transformers' verification accepted: the feedback for the policy."""
        accepted = max(int(num_matches), 0)
        # Behind processors the raw logits are not at hand; and a draft with a tokenizer of its
        # own has other positions.
        theirs = type(self._framework) is upstream.AssistedCandidateGeneratorDifferentTokenizers
        raw = None if self._processors or theirs else scores[0]
        self._driver.verified(accepted, self._submitted,
                              target_logits=None if raw is None else raw[: self._submitted])
        self._target_logits = None if raw is None else raw[accepted]

    def _draft(self, input_ids: Tensor, budget: int) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError

    def _forget(self, length: int) -> None:
        """Nothing is drafted after ``length`` tokens. What was rejected before must not stay in
        the draft's cache: the next round would take it for accepted text."""
        raise NotImplementedError

    def _met(self, candidates: Tensor) -> bool:
        """Whether a custom criterion holds, so that the last token must be the target's."""
        return any(bool(torch.as_tensor(c(candidates, None)).all()) for c in self._criteria)


