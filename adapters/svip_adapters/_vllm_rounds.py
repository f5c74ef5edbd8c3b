"""The rounds of vLLM's requests: what is wrapped around its model runner and its proposer."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from svip_policy import BatchPolicy, PolicyDriver, RoundStart

from ._handle import Watched
from ._vllm_handle import EngineHandle

# Below vLLM's own logger, whose handlers and level it shares.
LOGGER = logging.getLogger("vllm.svip")


class _EnoughError(Exception):
    """All requests have stopped: ends the proposer's loop."""


@dataclass
class _Request:
    """One request: its policy, and its draft that is not verified yet, None if there is none."""

    driver: PolicyDriver
    drafted: int | None = None
    failed: bool = False
    degenerate: int = 0


@dataclass
class _Draft:
    """The draft of a batch while it is made.

    Attributes:
        most: the tokens that the engine wants.
        requests: of the batch, in its order.
        asked: which of them take part: not those whose prompt is still being read.
        active: which of them still draft.
        lengths: of their drafts so far.
        tokens: drafted, an array (requests,) for each step.
        probabilities: as the proposer gives them, for each step.
        policy_seconds: spent on decisions.
    """

    most: int
    requests: list[_Request]
    asked: list[bool]
    active: list[bool]
    lengths: list[int]
    tokens: list[Any] = field(default_factory=list)
    probabilities: list[Any] = field(default_factory=list)
    policy_seconds: float = 0.0


class Rounds:
    """What is wrapped around the methods of one model runner and its proposer.

    Args:
        handle: for policies and counts.
        runner: of the engine.
        drafter: its proposer.
        group: the tensor parallel one, of which rank 0 decides.
    """

    def __init__(self, handle: EngineHandle, runner: weakref.ref[Any],
                 drafter: weakref.ref[Any], group: Any) -> None:
        self._handle, self._runner, self._drafter = handle, runner, drafter
        self._group = group
        made: Any = runner()
        self._propose_signature = inspect.signature(made.drafter.propose)
        # Without padding vLLM drafts after it has counted the new tokens.
        self._counted = bool(made.speculative_config.disable_padded_drafter_batch)
        self._requests: dict[str, _Request] = {}
        self._draft: _Draft | None = None
        self._lengths: dict[str, int] | None = None
        self._new_tokens: list[int] = []
        self._drafted_at: float | None = None

    def sampled(self, original: Callable[..., Any], output_token_ids: Any,
                scheduler_output: Any) -> Any:
        """Around ``_update_states_after_model_execute``, which every step calls with what was
        sampled, -1 in place of what was rejected."""
        ids = self._runner().input_batch.req_ids  # type: ignore[union-attr]
        counts = (output_token_ids != -1).sum(dim=1).tolist()
        self._new_tokens = [0] * len(counts) if self._counted else counts
        submitted = scheduler_output.scheduled_spec_decode_tokens
        if submitted and self._drafted_at is not None:
            self._handle.spent(verify=perf_counter() - self._drafted_at)
        for req_id, count in zip(ids, counts, strict=False):
            if req_id in self._requests:
                self._verified(self._requests[req_id], len(submitted.get(req_id, ())), count)
        self._forget(scheduler_output)
        return original(output_token_ids, scheduler_output)

    def _verified(self, request: _Request, submitted: int, count: int) -> None:
        """Tell a policy how much of its draft was accepted, where ``count`` tokens are new."""
        drafted, request.drafted = request.drafted, None
        if drafted is None or (drafted and not submitted):
            return  # none of ours, or thrown away: by a grammar, or for want of room
        drafted = min(submitted, drafted)
        accepted = max(0, min(drafted, count - 1))
        self._guarded(request, lambda: request.driver.verified(accepted, drafted))
        request.driver.rounds.clear()
        degenerate = request.driver.degenerate - request.degenerate
        request.degenerate = request.driver.degenerate
        self._handle.count(drafted, accepted, degenerate, self._group.rank_in_group == 0)

    def _forget(self, scheduled: Any) -> None:
        """Drop the policies of requests that have ended, or must begin anew."""
        runner: Any = self._runner()
        # An id may be used anew in the very step in which its request has ended.
        gone = {*(scheduled.preempted_req_ids or ()), *scheduled.finished_req_ids}
        for req_id in [r for r in self._requests if r not in runner.requests or r in gone]:
            del self._requests[req_id]

    def propose(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around ``propose``: one draft for the whole batch, which all requests may end early."""
        bound = self._propose_signature.bind(*args, **kwargs)
        drafter: Any = self._drafter()
        began = perf_counter()
        draft = self._draft = self._begun(int(bound.arguments["num_speculative_tokens"]))
        try:
            if not any(draft.active):
                bound.arguments["num_speculative_tokens"] = 0
            drafted = original(*bound.args, **bound.kwargs)
        except _EnoughError:
            drafted = torch.stack(draft.tokens, dim=1)
            if draft.probabilities[0] is not None:
                drafter._last_draft_probs = torch.stack(draft.probabilities, dim=1).contiguous()
        finally:
            self._draft = None
        self._submit(draft)
        self._drafted_at = perf_counter()
        self._handle.spent(draft=self._drafted_at - began - draft.policy_seconds,
                           policy=draft.policy_seconds)
        return drafted

    def _begun(self, most: int) -> _Draft:
        """A draft of the requests that are in the batch now."""
        runner: Any = self._runner()
        began = perf_counter()
        requests = [self._known(req_id) for req_id in runner.input_batch.req_ids]
        count = len(requests)
        asked = [most > 0 and not flag for flag in runner.discard_request_mask.np[:count]]
        lengths = [int(n) + new for n, new in zip(
            runner.input_batch.num_tokens_no_spec[:count], self._new_tokens, strict=True)]
        active = self._shared(lambda: [
            wanted and bool(self._guarded(request, lambda r=request, n=n:  # type: ignore[misc]
                                          r.driver.begin(RoundStart(most, n))))
            for request, wanted, n in zip(requests, asked, lengths, strict=True)])
        return _Draft(most, requests, asked, active, [0] * count,
                      policy_seconds=perf_counter() - began)

    def _known(self, req_id: str) -> _Request:
        """The request of this id, with a policy of its own if it is new."""
        if req_id not in self._requests:
            request = self._requests[req_id] = _Request(PolicyDriver(Watched()))
            driver = self._guarded(request, self._handle.new_generation)
            request.driver = driver or request.driver
        return self._requests[req_id]

    def _submit(self, draft: _Draft) -> None:
        """Note what will be verified of the draft."""
        runner: Any = self._runner()
        for request, asked, length in zip(draft.requests, draft.asked, draft.lengths, strict=True):
            request.driver.drafted()
            request.drafted = length if asked else None
        self._lengths = dict(zip(runner.input_batch.req_ids, draft.lengths, strict=True))

    def sample(self, original: Callable[..., Any], hidden_states: Any, sampling_metadata: Any) \
            -> Any:
        """Around ``_sample_draft_tokens``: one step of all requests, of which the policies see
        the logits that the tokens are chosen from.

        Raises:
            _EnoughError: no request wants another one.
        """
        draft, drafter = self._draft, self._drafter()
        if draft is None or drafter is None:
            return original(hidden_states, sampling_metadata)
        # What the original does with them is this: the logits are made once.
        logits = drafter.model.compute_logits(hidden_states)
        probabilistic = drafter._enable_probabilistic_draft_probs
        # Where it samples, it divides by the temperature in place.
        raw = logits.clone() if probabilistic and not sampling_metadata.all_greedy else logits
        tokens, probabilities = drafter._sample_from_logits(logits, sampling_metadata)
        draft.tokens.append(tokens)
        draft.probabilities.append(probabilities)
        began = perf_counter()
        draft.lengths = [n + on for n, on in zip(draft.lengths, draft.active, strict=True)]
        draft.active = self._shared(lambda: self._decisions(draft, raw, tokens))
        draft.policy_seconds += perf_counter() - began
        if len(draft.tokens) < draft.most and not any(draft.active):
            raise _EnoughError
        return tokens, probabilities

    def _decisions(self, draft: _Draft, logits: Any, tokens: Any) -> list[bool]:
        """Which requests go on drafting, of those that do."""
        position = len(draft.tokens)
        drafting = [r for r, on in zip(draft.requests, draft.active, strict=True) if on]
        policy = drafting[0].driver.policy
        recorded = any(request.driver.record is not None for request in drafting)
        if isinstance(policy, Watched):
            if recorded:
                self._each(draft, logits, tokens)
            return draft.active
        if isinstance(policy, BatchPolicy) and not recorded and all(
                request.driver.policy == policy for request in drafting):
            try:
                more = policy.observe_batch(position, logits, tokens).tolist()
                return [a and bool(b) for a, b in zip(draft.active, more, strict=True)]
            except Exception as error:
                for request in drafting:
                    self._fail(request, error)
                return [False] * len(draft.active)
        return self._each(draft, logits, tokens)

    def _each(self, draft: _Draft, logits: Any, tokens: Any) -> list[bool]:
        """The decisions of one request after the other."""
        budget = draft.most - len(draft.tokens)
        return [
            on and bool(self._guarded(request, lambda r=request, n=n:  # type: ignore[misc]
                                      r.driver.observe(logits[n], tokens[n], budget)))
            for n, (request, on) in enumerate(zip(draft.requests, draft.active, strict=True))]

    def take(self, original: Callable[..., Any]) -> Any:
        """Around ``take_draft_token_ids``: what the scheduler gets of the draft."""
        found, lengths = original(), self._lengths
        self._lengths = None
        if found is None or (lengths is None and isinstance(self._handle.policy, Watched)):
            return found
        # Where nothing was drafted in this step, vLLM has zeros to offer.
        lengths = lengths or {}
        return type(found)(found.req_ids, [
            tokens[: lengths.get(req_id, 0)]
            for req_id, tokens in zip(found.req_ids, found.draft_token_ids, strict=True)])

    def _shared(self, decide: Callable[[], list[bool]]) -> list[bool]:
        """What rank 0 of a tensor parallel group decides: its ranks must draft alike."""
        group = self._group
        if group.world_size == 1:
            return decide()
        decided = decide() if group.rank_in_group == 0 else None
        shared: list[bool] = group.broadcast_object(decided, src=0)
        return shared

    def _guarded(self, request: _Request, call: Callable[[], Any]) -> Any:
        """What ``call`` gives; None, now and from then on, if it raises."""
        if request.failed:
            return None
        try:
            return call()
        except Exception as error:
            self._fail(request, error)
            return None

    def _fail(self, request: _Request, error: Exception) -> None:
        if request.failed:
            return
        request.failed = True
        request.driver.abandon()
        self._handle.failed += 1
        if self._handle.failed == 1:
            LOGGER.error(
                "%r raised %r: this request goes on without drafting, and others for which it "
                "does too, of which nothing more is said", self._handle.policy, error,
                exc_info=error)
