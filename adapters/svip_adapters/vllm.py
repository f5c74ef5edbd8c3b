"""vLLM with any policy: a draft length for each request, in stock vLLM, as a plugin.

    SVIP_POLICY="svip(threshold=0.3)" vllm serve ... --speculative-config '{...}' \\
        --no-async-scheduling

or, before the engine is made, in the process that makes it:

    svip_adapters.vllm.configure("svip")

or, where the engine runs in this process:

    with svip_adapters.vllm.attach(llm, "svip") as handle:
        llm.generate(prompts)
    print(handle.summary())

For the draft-model, EAGLE, EAGLE-3 and MTP proposers of the V1 model runner with synchronous
scheduling; what else is refused is in :func:`refusals`. Four methods of the engine's own objects
are wrapped, none is copied. Each request has a policy of its own. All of a batch draft together;
a request whose policy stops is cut there, and the draft ends early once all have stopped. Where
no request wants to draft, the draft model only reads what was verified.

A policy that raises stops drafting for its request, which goes on without; it is logged once.
Waiting for the decisions takes one host synchronisation a step for policies with
``observe_batch``, and one a step and request for others; one more a round tells what was accepted.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from svip_policy import LengthPolicy, resolve
from svip_policy.errors import AlreadyAttachedError, UnsupportedError

from . import _fingerprint
from ._attachments import Attachments
from ._handle import Handle, Watched, conditions
from ._patching import Patch
from ._vllm_handle import EngineHandle
from ._vllm_rounds import LOGGER, Rounds

if TYPE_CHECKING:
    from ._fingerprint import OnUnknown

VARIABLE = "SVIP_POLICY"
METHODS = ("draft_model", "eagle", "eagle3", "mtp")
# What a proposer of another class does otherwise, we do not know.
_OWN = ("propose", "_sample_draft_tokens", "_sample_from_logits", "_greedy_sample")
_ATTACHED = Attachments(kind=EngineHandle)


def attach(llm: Any, policy: LengthPolicy | str | None, *,
           on_unknown: OnUnknown = "raise") -> Handle:
    """Let ``policy`` decide how many tokens are drafted for each request of this engine.

    Args:
        llm: a ``vllm.LLM`` or ``LLMEngine`` whose worker runs in this process.
        policy: an object with the methods of :class:`svip_policy.LengthPolicy`, or its text.
            None drafts as many tokens as the engine is told to, and only records the rounds.
        on_unknown: ``"warn"`` goes on where vLLM's code is of no version that this adapter was
            tested with.

    Returns:
        The handle; attaching an equal policy again gives the same one. ``num_speculative_tokens``
        of the engine caps every policy.

    Raises:
        UnsupportedError: the engine is in another process, or has a setting that is refused.
        AlreadyAttachedError: another policy is attached to this engine.
        UnknownUpstreamError: see ``on_unknown``.
    """
    wanted = Watched() if policy is None else resolve(policy)
    return _attach(_runner_of(llm), wanted, on_unknown)


def configure(policy: LengthPolicy | str, *, on_unknown: OnUnknown = "raise") -> Configuration:
    """Attach ``policy`` to each engine whose worker is made in this process from now on.

    Args:
        policy: see :func:`attach`.
        on_unknown: see :func:`attach`.

    Returns:
        Has the handles of the engines, and ``remove()``; for an equal policy the same one again.

    Raises:
        AlreadyAttachedError: another policy is configured.
    """
    policy = resolve(policy)
    if _CONFIGURED:
        there = _CONFIGURED[0]
        if there.policy == policy:
            return there
        raise AlreadyAttachedError(f"{there.policy!r} is configured for vLLM's engines; remove() "
                                   f"it before {policy!r}")
    made = Configuration(policy, on_unknown)
    _CONFIGURED.append(made)
    return made


def register() -> None:
    """vLLM's plugin: what ``SVIP_POLICY`` says, and nothing where it is not set.

    Raises:
        ParameterError: it holds no policy.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        configure(text)


@dataclass(eq=False)
class Configuration:
    """A policy for all engines of this process that are made while it is in force.

    Attributes:
        policy: of each request a fresh one.
        on_unknown: see :func:`attach`.
        handles: of the engines made so far.
    """

    policy: LengthPolicy
    on_unknown: OnUnknown
    handles: list[Handle] = field(default_factory=list)
    _undo: ExitStack = field(default_factory=ExitStack, repr=False)

    def __post_init__(self) -> None:
        from vllm.v1.worker.worker_base import WorkerBase

        self._undo.callback(Patch(WorkerBase, "__init__", self._made).remove)

    def remove(self) -> None:
        """Detach from the engines made so far, and leave vLLM as it was before."""
        for handle in self.handles:
            handle.detach()
        self._undo.close()
        if self in _CONFIGURED:
            _CONFIGURED.remove(self)

    def _made(self, original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> None:
        """Around ``WorkerBase.__init__``: the model runner is made later, by ``init_device``."""
        original(worker, *args, **kwargs)
        if worker.vllm_config.speculative_config is None:
            LOGGER.warning("%r waits for an engine with a speculative_config; this one has none "
                           "and is left alone", self.policy)
            return
        refuse(worker.vllm_config)  # before anything is loaded
        self._undo.callback(Patch(worker, "init_device", self._initialised).remove)

    def _initialised(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        worker = original.__self__  # type: ignore[attr-defined]
        if hasattr(worker.model_runner, "drafter"):  # on the last stage of a pipeline only
            self.handles.append(_attach(worker.model_runner, self.policy, self.on_unknown))
            LOGGER.info("%r decides the draft length of each request", self.policy)
        return result


_CONFIGURED: list[Configuration] = []


def refusals(config: Any) -> list[str]:
    """What of a ``VllmConfig`` stands against a policy, each with the remedy."""
    spec = config.speculative_config
    if spec is None:
        return ["there is no speculative_config: give one"]
    parallel = config.parallel_config
    against = {
        "the V2 model runner drafts by other code: set VLLM_USE_V2_MODEL_RUNNER=0":
            config.use_v2_model_runner,
        "with async_scheduling the scheduler plans before lengths are known: set "
        "async_scheduling=False, on the command line --no-async-scheduling":
            config.scheduler_config.async_scheduling,
        f"data_parallel_size is {parallel.data_parallel_size}, whose ranks must draft alike: run "
        "one engine a replica, with data_parallel_size=1": parallel.data_parallel_size > 1,
        f"method is {spec.method!r}: a policy wants a draft distribution, one token after the "
        f"other: use one of {', '.join(METHODS)}": spec.method not in METHODS,
        "parallel_drafting drafts all tokens at once: set it to False": spec.parallel_drafting,
        "use_local_argmax_reduction never makes the draft's distribution: set it to False":
            spec.use_local_argmax_reduction,
        "use_heterogeneous_vocab changes the draft's distribution after the fact: set it to False, "
        "with a draft of the target's vocabulary": spec.use_heterogeneous_vocab,
    }
    return [sentence for sentence, holds in against.items() if holds]


def refuse(config: Any) -> None:
    """Raise UnsupportedError with each of :func:`refusals`."""
    found = refusals(config)
    if found:
        raise UnsupportedError("no policy can be attached to this engine: " + "; ".join(found))


def _attach(runner: Any, policy: LengthPolicy, on_unknown: OnUnknown) -> Handle:
    refuse(runner.vllm_config)

    def install(handle: Handle, undo: ExitStack) -> None:
        assert isinstance(handle, EngineHandle)
        from vllm.distributed import get_tp_group

        _fingerprint.check("vllm", on_unknown)
        drafter = runner.drafter
        _check_proposer(type(drafter))
        handle.conditions = conditions(target=runner.get_model(), draft=drafter.model) \
            if getattr(drafter, "model", None) is not None else {}
        rounds = Rounds(handle, weakref.ref(runner), weakref.ref(drafter), get_tp_group())
        for owner, name, wrapper in (
            (runner, "_update_states_after_model_execute", rounds.sampled),
            (runner, "take_draft_token_ids", rounds.take),
            (drafter, "propose", rounds.propose),
            (drafter, "_sample_draft_tokens", rounds.sample),
        ):
            undo.callback(Patch(owner, name, wrapper).remove)

    return _ATTACHED.attach(runner, policy, {}, install)


def _check_proposer(proposer: type) -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    other = [name for name in _OWN
             if getattr(proposer, name, None) is not getattr(SpecDecodeBaseProposer, name)]
    if other:
        raise UnsupportedError(
            f"{proposer.__name__} has its own {', '.join(other)}, which this adapter does not "
            "know: use a draft model, EAGLE, EAGLE-3 or an MTP head that drafts by "
            "SpecDecodeBaseProposer's"
        )


def _runner_of(llm: Any, last: str = "model_runner") -> Any:
    """The model runner of an engine, or what it is reached by."""
    engine = getattr(llm, "llm_engine", llm)
    at = engine
    for name in ("engine_core", "engine_core", "model_executor", "driver_worker", "worker",
                 "model_runner"):
        at = getattr(at, name, None)
        if at is None:
            raise UnsupportedError(
                f"the worker of this {type(llm).__name__} is not in this process: set "
                "VLLM_ENABLE_V1_MULTIPROCESSING=0 and distributed_executor_backend='uni' before "
                f"it is made, or the environment variable {VARIABLE} to a policy"
            )
        if name == last:
            break
    return at
