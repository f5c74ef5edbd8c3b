"""Vanilla speculative decoding in Hugging Face transformers, with any policy.

    with svip_adapters.hf.attach(target, "svip") as handle:
        target.generate(**inputs, assistant_model=draft, max_new_tokens=128)
    print(handle.summary())

The target's own ``generate`` and its verification run unchanged; only the object that
drafts for it is replaced. While attached, transformers' own stop rules (confidence
threshold, ``num_assistant_tokens`` and its schedule) are out of force.

Covered: decoder-only and encoder-decoder pairs, ``assistant_early_exit``, greedy and
sampling, and greedy decoding with different tokenizers (there lengths are counted in the
target's tokens). Refused: batches, sampling with different tokenizers, prompt lookup and
other drafts without a distribution, sampling with stopping criteria beyond length, time
and end of sequence.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from svip_policy import LengthPolicy, resolve

from . import _fingerprint
from ._attachments import Attachments
from ._handle import Handle, Watched, conditions
from ._patching import Patch

if TYPE_CHECKING:
    from ._fingerprint import OnUnknown

_ATTACHED = Attachments(target_logits=True)
# What the generation that is being set up in this thread or task has prepared. Older
# versions hand the candidate generator only the processors that the user passed.
_CRITERIA: ContextVar[Any] = ContextVar("svip_hf_criteria", default=())
_PROCESSORS: ContextVar[Any] = ContextVar("svip_hf_processors", default=())


def attach(
    target: Any, policy: LengthPolicy | str | None, *, lean: bool = True,
    on_unknown: OnUnknown = "raise",
) -> Handle:
    """Let ``policy`` decide how many tokens are drafted for ``target``.

    Args:
        target: the model on which ``generate(..., assistant_model=...)`` is called.
        policy: an object with the methods of :class:`svip_policy.LengthPolicy`, or its text.
            None leaves transformers' own stop rules in force and only records the rounds.
        lean: draft with our own loop where it covers the case (a decoder-only draft with a
            plain cache and no padding), which saves transformers' set-up of a ``generate``
            call a round. It applies the logits processors once, where transformers applies
            some of them, temperature among them, twice.
        on_unknown: ``"warn"`` goes on where transformers' code is not a version this
            adapter was tested with.

    Returns:
        The handle; attaching an equal policy again gives the same one.

    Raises:
        TypeError: ``target`` is no transformers model that generates.
        AlreadyAttachedError: another policy is attached to ``target``.
        UnknownUpstreamError: see ``on_unknown``.
    """
    policy = Watched() if policy is None else resolve(policy)
    if not hasattr(type(target), "_get_candidate_generator"):
        raise TypeError(
            f"target is a {type(target).__qualname__}; give a transformers model with generate()"
        )
    _fingerprint.check("transformers", on_unknown)

    def install(handle: Handle, undo: ExitStack) -> None:
        for name, wrapper in (
            ("_get_stopping_criteria", functools.partial(_remember, _CRITERIA)),
            ("_get_logits_processor", functools.partial(_remember, _PROCESSORS)),
            ("_get_candidate_generator", functools.partial(_generator, handle, lean)),
        ):
            undo.callback(Patch(target, name, wrapper).remove)

    return _ATTACHED.attach(target, policy, {"lean": lean}, install)


def _remember(
    variable: ContextVar[Any], original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    arguments = inspect.signature(original).bind(*args, **kwargs).arguments
    prepared = original(*args, **kwargs)
    # An early exit drafts by a nested generate() of the target, whose settings are not ours.
    if not getattr(arguments["generation_config"], "is_assistant", False):
        variable.set(prepared)
    return prepared


def _generator(
    handle: Handle, lean: bool, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    from . import _hf_drafting as drafting

    arguments = {**inspect.signature(original).bind(*args, **kwargs).arguments,
                 "logits_processor": _PROCESSORS.get()}
    criteria = drafting.custom_criteria(_CRITERIA.get(), arguments["generation_config"])
    _CRITERIA.set(())
    _PROCESSORS.set(())
    watched = isinstance(handle.policy, Watched)
    if not watched:
        drafting.refuse_before(arguments, criteria)
    target = getattr(original, "__self__", None)  # it drafts for itself by an early exit
    draft = arguments.get("assistant_model")
    if target is not None:
        handle.conditions = conditions(target=target, draft=target if draft is None else draft)
        handle.conditions["decoding"] = _decoding(arguments["generation_config"])
    with _unchanged(draft, target):
        framework = original(*args, **kwargs)
    if watched:
        return drafting.watch(framework, handle.new_generation())
    return drafting.replace(framework, arguments, criteria, handle.new_generation(), lean)


def _decoding(config: Any) -> str:
    return f"temperature {config.temperature or 1.0:g}" if config.do_sample else "greedy"


@contextmanager
def _unchanged(*models: Any) -> Iterator[None]:
    """Undo what some versions write into the draft's configuration, the target's settings."""
    configs = [model.generation_config for model in models if model is not None]
    saved = [(config, dict(vars(config))) for config in configs]
    try:
        yield
    finally:
        for config, before in saved:
            for name in vars(config).keys() | before.keys():
                if name not in before:
                    delattr(config, name)
                elif getattr(config, name, None) is not before[name]:
                    setattr(config, name, before[name])
