"""GliDe & CaPE with any policy, on upstream's own code.

    with glide_cape.importable(tokenizer="path/to/tokenizer"):
        from glide.glideModel import smallLlamaForCausalLM
        ...load draft and target...
        with glide_cape.attach(draft, "svip", target=target) as handle:
            draft.medusa_generate(input_ids, large_model=target, max_steps=128)
    print(handle.summary())

Upstream (github.com/NonvolatileMemory/GliDe_with_a_CaPE_ICML_24) drafts four tokens a round. Here
the policy decides, up to ``max_draft``; everything else, CaPE's widening of each drafted position
and the verification included, is upstream's. A round's ``drafted`` is the length of the chain and
its ``nodes`` what CaPE made of it.

GliDe always drafts one token: a policy that wants to skip a round gets just that. The draft made
after the last verification of a generation is not verified, and not counted.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svip_policy import LengthPolicy, PolicyDriver, RoundStart, resolve
from svip_policy.errors import ParameterError, UnsupportedError

from . import _fingerprint
from ._attachments import Attachments
from ._handle import Handle, Watched, conditions
from ._patching import Patch

if TYPE_CHECKING:
    from ._fingerprint import OnUnknown

AUTHORS_HOME = "/home/ducunxiao/"
# Imported by upstream's modules, and not called at inference.
STAND_INS = {
    "flash_attn": ("flash_attn_func", "flash_attn_varlen_func"),
    "flash_attn.bert_padding": ("pad_input", "unpad_input", "index_first_axis"),
    "flash_attn.flash_attn_interface": ("flash_attn_func", "flash_attn_varlen_kvpacked_func"),
    "flash_attn.ops": (),
    "flash_attn.ops.rms_norm": ("rms_norm",),
}
# Upstream makes its table of rotary embeddings 32 positions longer than the target's cache.
MOST = 32
_ATTACHED = Attachments()


def attach(
    draft_model: Any, policy: LengthPolicy | str | None, *, target: Any, max_draft: int = 16,
    on_unknown: OnUnknown = "raise",
) -> Handle:
    """Let ``policy`` decide how many tokens GliDe drafts.

    Args:
        draft_model: a ``smallLlamaForCausalLM``, on which ``medusa_generate`` is called.
        policy: an object with the methods of :class:`svip_policy.LengthPolicy`, or its text.
            None leaves upstream's length of four in force and only records the rounds.
        target: the ``large_model`` that it is called with.
        max_draft: the most tokens a round, 1 to 32.
        on_unknown: ``"warn"`` goes on where upstream's code is not a version this adapter was
            tested with.

    Returns:
        The handle; attaching an equal policy again gives the same one.

    Raises:
        TypeError: ``draft_model`` or ``target`` is none of GliDe's models.
        ParameterError: ``max_draft`` is out of its range.
        AlreadyAttachedError: another policy, or other options, are attached.
        UnknownUpstreamError: see ``on_unknown``.
    """
    policy = Watched() if policy is None else resolve(policy)
    _check_models(draft_model, target)
    if isinstance(max_draft, bool) or not isinstance(max_draft, int) or not 1 <= max_draft <= MOST:
        raise ParameterError(f"max_draft is {max_draft!r}; give the most tokens, 1 to {MOST}")

    def install(handle: Handle, undo: ExitStack) -> None:
        handle.conditions = conditions(target=target, draft=draft_model) | {"decoding": "greedy"}
        module = _checked_module(draft_model, on_unknown)
        rounds = _Rounds(handle, draft_model, target, max_draft,
                         module.update_inference_inputs_joint_llama)
        for owner, name, wrapper in (
            (draft_model, "medusa_generate", rounds.generate),
            (draft_model, "medusa_generate_stream", rounds.generate),
            # Upstream calls these as globals of its module: ours pass on what is not ours.
            (module, "greedy_search", rounds.draft),
            (module, "update_inference_inputs_joint_llama", rounds.verified),
        ):
            undo.callback(Patch(owner, name, wrapper).remove)

    # By identity, and no reference: the handle must not keep the target alive.
    options = {"max_draft": max_draft, "target": f"<{type(target).__name__} {id(target):#x}>"}
    return _ATTACHED.attach(draft_model, policy, options, install)


def _check_models(draft_model: Any, target: Any) -> None:
    if not callable(getattr(type(draft_model), "medusa_forward", None)):
        raise TypeError(
            f"draft_model is a {type(draft_model).__module__}.{type(draft_model).__qualname__}; "
            "give GliDe's smallLlamaForCausalLM, which has medusa_forward"
        )
    if not hasattr(getattr(target, "model", None), "layers"):
        raise TypeError(
            f"target is a {type(target).__module__}.{type(target).__qualname__}; give the model "
            "that medusa_generate gets as large_model"
        )


def _checked_module(draft_model: Any, on_unknown: OnUnknown) -> Any:
    """The module whose globals upstream's loop calls; its functions are known."""
    module = sys.modules[type(draft_model).__module__]
    package = module.__name__.rpartition(".")[0]
    _fingerprint.check("glide", on_unknown, {
        "glideModel": module.__name__,
        "generation_utils": f"{package}.utils.generation_utils",
        "speculation_utils": f"{package}.utils.speculation_utils",
    })
    return module


class _Rounds:
    """What is wrapped around upstream's functions: rounds, generations, refusals."""

    def __init__(self, handle: Handle, draft_model: Any, target: Any, max_draft: int,
                 update: Callable[..., Any]) -> None:
        self._handle, self._max_draft = handle, max_draft
        self._signature = inspect.signature(update)
        self._model, self._target = weakref.ref(draft_model), weakref.ref(target)
        self._driver: PolicyDriver | None = None
        self._drafted = 0

    def generate(self, original: Callable[..., Any], input_ids: Any, large_model: Any,
                 *args: Any, **kwargs: Any) -> Any:
        """Around ``medusa_generate`` and its stream, with which a generation begins."""
        self._driver = None
        if args:
            raise TypeError("give medusa_generate all but input_ids and large_model by name: its "
                            "two forms order them differently")
        if large_model is not self._target():
            raise UnsupportedError("large_model is not the target that was given to attach()")
        batch = max(input_ids.shape[0], kwargs.get("batch_size", 1))
        if batch != 1:
            raise UnsupportedError(f"the batch size is {batch}; a policy drafts for one sequence "
                                   "at a time: give input_ids of shape (1, length)")
        for mode, plain in (("num_beams", 1), ("expand_cape", False)):
            if kwargs.get(mode, plain) != plain:
                raise UnsupportedError(
                    f"{mode} is {kwargs[mode]}; a policy needs one chain of drafted tokens: use "
                    f"{mode}={plain}, or detach()"
                )
        return original(input_ids, large_model, **kwargs)

    def draft(self, original: Callable[..., Any], model: Any, input_ids: Any, *args: Any,
              **kwargs: Any) -> Any:
        """Around ``greedy_search``: one draft, ended by the policy."""
        if model is not self._model():
            return original(model, input_ids, *args, **kwargs)
        if self._driver is None:
            self._driver = self._handle.new_generation()
        driver = self._driver
        budget = self._budget(model, input_ids)
        begun = driver.begin(RoundStart(budget, input_ids.shape[1]))
        if not isinstance(driver.policy, Watched):
            kwargs["stopping_criteria"] = _Criterion(driver, budget, begun)
        result = original(model, input_ids, *args, **kwargs)
        driver.drafted()
        self._drafted = len(result["scores"])
        return result

    def _budget(self, model: Any, input_ids: Any) -> int:
        """What still fits into upstream's cache, whose size is fixed."""
        room = int(model.past_key_values_data.shape[-2]) - int(input_ids.shape[1]) - 1
        return max(1, min(self._max_draft, room))

    def verified(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around ``update_inference_inputs_joint_llama``, which gets what was accepted."""
        given = self._signature.bind(*args, **kwargs).arguments
        model = self._model()
        ours = getattr(model, "past_key_values_data", None)
        if self._driver is not None and given["small_past_key_values_data"] is ours:
            self._driver.verified(int(given["accept_length"]), self._drafted,
                                  int(given["retrieve_indices"].max()))
        return original(*args, **kwargs)


@dataclass
class _Criterion:
    """In place of upstream's list of stopping criteria: asks the policy after each token."""

    driver: PolicyDriver
    budget: int
    begun: bool

    def __call__(self, input_ids: Any, scores: Any) -> bool:
        self.budget -= 1
        # Upstream's scores are the raw logits: it applies no processor to them.
        more = self.driver.observe(scores[-1][0], input_ids[0, -1:], self.budget)
        return not (more and self.begun and self.budget > 0)


@contextmanager
def importable(tokenizer: str | Path) -> Iterator[list[str]]:
    """Let upstream be imported and run, which it cannot be as it is.

    Within the block, and only there:

    - ``AutoTokenizer.from_pretrained`` of a path in the author's home folder, which upstream
      calls at import and at each generation, loads ``tokenizer`` instead;
    - where flash_attn is not installed, its names that upstream imports are stand-ins that
      raise if ever called.

    Args:
        tokenizer: a folder, or a name on the hub: the target's.

    Yields:
        A list of sentences that say what was redirected; more are added as it happens.
    """
    from transformers import AutoTokenizer

    said: list[str] = []

    def redirect(original: Callable[..., Any], cls: Any, path: Any, *args: Any,
                 **kwargs: Any) -> Any:
        if str(path).startswith(AUTHORS_HOME):
            sentence = f"AutoTokenizer.from_pretrained({str(path)!r}) loads {str(tokenizer)!r}"
            if sentence not in said:
                said.append(sentence)
            path = tokenizer
        return original(cls, path, *args, **kwargs)

    with ExitStack() as undo:
        undo.callback(Patch(AutoTokenizer, "from_pretrained", redirect).remove)
        if importlib.util.find_spec("flash_attn") is None:
            for name, functions in STAND_INS.items():
                sys.modules[name] = _stand_in(name, functions)
                undo.callback(sys.modules.pop, name, None)
            said.append("flash_attn is not installed: its functions raise if called")
        yield said


def _stand_in(name: str, functions: tuple[str, ...]) -> types.ModuleType:
    module = types.ModuleType(name)
    # Other libraries look for flash_attn by its spec.
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for function in functions:
        setattr(module, function, _absent(f"{name}.{function}"))
    return module


def _absent(name: str) -> Callable[..., Any]:
    def absent(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} was called, and flash_attn is not installed: install it")

    return absent


def check_versions() -> None:
    """Whether GliDe runs with the installed transformers; worth a call before importing it.

    Raises:
        UnsupportedError: it does not.
    """
    version = _fingerprint.installed_version("transformers")
    if not version.startswith("4.36."):
        raise UnsupportedError(
            f"GliDe & CaPE runs with transformers 4.36 and numpy < 2, tested with 4.36.2; "
            f"installed is transformers {version}. Use an environment with transformers==4.36.2"
        )
