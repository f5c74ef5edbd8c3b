"""EAGLE-1, EAGLE-2 and EAGLE-3 with any policy, on their own code.

    with svip_adapters.eagle.attach(model, "svip") as handle:
        model.eagenerate(input_ids, max_new_tokens=128)
    print(handle.summary())

``model`` is the ``EaModel`` of SafeAILab/EAGLE, of Spec-Bench's copy, or of PyPI's eagle-llm.
A step is a level of the draft tree (:class:`svip_policy.TreeStep`); signals are over the draft's
own vocabulary, which in EAGLE-3 is a part of the target's. Verification is EAGLE's own.

- EAGLE-2 and EAGLE-3 (tree built anew each round): after a stop the best of the nodes drafted so
  far are verified, at most ``total_token`` - 1 as ever. Where a short draft, or ``top_k``, leaves
  fewer, all are. Nodes that the draft gives no probability at all, or NaN, are left out.
- EAGLE-1 (static tree): a stop cuts the tree below the last level drafted. The policy is asked
  before a level's tokens are drawn; its log probability is that of the best extensions. Attach,
  detach and copy between generations: the cut tree is the one that the generation verifies.

A round's ``drafted`` is the longest path that was verified, its ``levels`` what was drafted: of
the levels of EAGLE-2 the deepest often leave no node among the best. EAGLE always drafts one level:
a policy that wants to skip a round gets just that. The tree drafted after the last verification of
a generation is not verified, and not counted.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from svip_policy import LengthPolicy, RoundStart, resolve
from svip_policy.errors import (
    ParameterError,
    UnknownUpstreamError,
    UnsupportedError,
    UpstreamDefectWarning,
)

from . import _fingerprint
from ._attachments import Attachments
from ._handle import Handle, Watched, conditions
from ._patching import Patch, replaced

if TYPE_CHECKING:
    from svip_policy.tree import Reduce

    from ._eagle_trees import DynamicTree, StaticTree
    from ._fingerprint import OnUnknown

_ATTACHED = Attachments()


def attach(
    ea_model: Any, policy: LengthPolicy | str | None, *, max_depth: int | None = None,
    reduce: Reduce = "best", on_unknown: OnUnknown = "raise",
) -> Handle:
    """Let ``policy`` decide how many levels of the draft tree ``ea_model`` drafts.

    Args:
        ea_model: an ``EaModel``.
        policy: an object with the methods of :class:`svip_policy.LengthPolicy`, or its text.
            None leaves EAGLE's fixed depth in force and only records the rounds.
        max_depth: the most levels that a policy may draft, at least 1. By default those the
            model is configured for, which is its ``depth`` + 1; EAGLE-2 and EAGLE-3 may go deeper.
        reduce: how signals of a level are reduced over its rows, ``"best"`` or ``"weighted"``.
        on_unknown: ``"warn"`` goes on where a function that is only wrapped is not of a version
            this adapter was tested with; the drafting function must be known.

    Returns:
        The handle; attaching an equal policy again gives the same one.

    Raises:
        TypeError: ``ea_model`` is no EaModel.
        ParameterError: ``max_depth`` or ``reduce`` is none of their values.
        UnsupportedError: the installed transformers is none EAGLE runs with, or ``max_depth``
            is beyond a static tree.
        AlreadyAttachedError: another policy, or other options, are attached to ``ea_model``.
        UnknownUpstreamError: see ``on_unknown``.
    """
    policy = Watched() if policy is None else resolve(policy)
    layer = _layer(ea_model)
    _check_options(max_depth, reduce)
    check_versions()

    def install(handle: Handle, undo: ExitStack) -> None:
        handle.conditions = conditions(target=ea_model.base_model, draft=ea_model.ea_layer)
        rounds = _rounds(handle, ea_model, layer, max_depth, reduce, on_unknown)
        for owner, name, wrapper in ((layer, "topK_genrate", rounds.draft),
                                     (layer, "reset_kv", rounds.reset),
                                     (ea_model, "forward", rounds.forward)):
            undo.callback(Patch(owner, name, wrapper).remove)
        undo.callback(rounds.end)

    return _ATTACHED.attach(ea_model, policy, {"max_depth": max_depth, "reduce": reduce}, install)


def check_versions() -> None:
    """Whether EAGLE runs with the installed transformers; worth a call before loading it.

    Raises:
        UnsupportedError: it does not.
    """
    version = _fingerprint.installed_version("transformers")
    if version.split(".")[0] != "4":
        raise UnsupportedError(
            f"EAGLE (SafeAILab/EAGLE and eagle-llm) runs with transformers 4, tested with 4.53.3; "
            f"installed is {version}. In version 5 rope_scaling is no longer what EAGLE reads, and "
            "its models fail with KeyError. Use an environment with transformers==4.53.3"
        )


def _layer(ea_model: Any) -> Any:
    layer = getattr(ea_model, "ea_layer", None)
    if not callable(getattr(layer, "topK_genrate", None)) or not hasattr(layer, "reset_kv"):
        raise TypeError(
            f"ea_model is a {type(ea_model).__module__}.{type(ea_model).__qualname__}; give an "
            "EaModel of EAGLE, whose ea_layer has topK_genrate and reset_kv"
        )
    return layer


def _check_options(max_depth: Any, reduce: Any) -> None:
    if max_depth is not None and (isinstance(max_depth, bool) or not isinstance(max_depth, int)
                                  or max_depth < 1):
        raise ParameterError(f"max_depth is {max_depth!r}; give the most levels, at least 1")
    if reduce not in ("best", "weighted"):
        raise ParameterError(f"reduce is {reduce!r}; give 'best' or 'weighted'")


def _rounds(
    handle: Handle, ea_model: Any, layer: Any, max_depth: int | None, reduce: Reduce,
    on_unknown: OnUnknown,
) -> _Rounds:
    from . import _eagle_trees as trees

    static = hasattr(layer, "tree_buffer")
    _check_source(ea_model, layer, "eagle-static" if static else "eagle-dynamic", on_unknown)
    tree = trees.StaticTree(reduce, ea_model) if static else trees.DynamicTree(reduce)
    if static and max_depth is not None and max_depth > tree.configured(layer):
        raise UnsupportedError(
            f"max_depth is {max_depth}; the static tree of EAGLE-1 has {tree.configured(layer)} "
            "levels. Give no more, or use EAGLE-2 or EAGLE-3"
        )
    return _Rounds(handle, tree, max_depth, tree.spliced(type(layer).topK_genrate),
                   _samples_wrongly(ea_model))


def _check_source(ea_model: Any, layer: Any, distribution: str, on_unknown: OnUnknown) -> None:
    """The functions relied on are known, and those that run are the ones in their files."""
    from ._eagle_trees import owner

    modules = {"cnets": type(layer).__module__, "ea_model": owner(ea_model).__module__,
               "utils": _utils(ea_model)}
    _fingerprint.check(distribution, on_unknown, modules, spliced={"Model.topK_genrate"})
    file = inspect.unwrap(type(layer).topK_genrate).__code__.co_filename
    expected = sys.modules[modules["cnets"]].__file__
    if file != expected or replaced(layer, "topK_genrate"):
        name = getattr(layer.topK_genrate, "__qualname__", layer.topK_genrate)
        raise UnknownUpstreamError(
            f"topK_genrate of this ea_layer is not the one of {expected}: other code has replaced "
            f"it by {name}. Undo that, then attach"
        )


def _utils(ea_model: Any) -> str:
    from ._eagle_trees import owner

    package = owner(ea_model).__module__.rpartition(".")[0]
    return f"{package}.utils" if package else "utils"


# evaluate_posterior of these versions draws the token after a path that was accepted to its end
# without temperature, top_p and top_k; that of the third one draws it wrongly altogether.
_WRONG_SAMPLING = (
    "12777e79fc6a0124dcf9361fa64365e48fcc999df780dd52a23d294d5011c319",
    "5ec25449fb33ac6c4d1b125cf82af8bb1c1848e87319b3fc44582f538325d268",
    "2cd24a70418ff22ef4de73e51da2543a62d174bf05757d37c6225ca0a983cc90",
)


def _samples_wrongly(ea_model: Any) -> bool:
    return _fingerprint.installed(_utils(ea_model), "evaluate_posterior")[1] in _WRONG_SAMPLING


class _Rounds:
    """What is wrapped around EAGLE's functions: rounds, generations, refusals."""

    def __init__(self, handle: Handle, tree: DynamicTree | StaticTree, max_depth: int | None,
                 spliced: Callable[..., Any], warn_of_sampling: bool) -> None:
        self._handle, self._tree, self._spliced = handle, tree, spliced
        self._max_depth, self._warn_of_sampling = max_depth, warn_of_sampling
        self._submitted = 0, 0

    def end(self) -> None:
        """A generation is over: what it drafted last is not verified."""
        if self._tree.driver is not None:
            self._tree.driver.abandon()
            self._tree.driver = None
        self._tree.restore()

    def reset(self, original: Callable[..., Any]) -> Any:
        """Around ``reset_kv``, with which every generation begins."""
        self.end()
        return original()

    def draft(self, original: Callable[..., Any], hidden_states: Any, input_ids: Any, head: Any,
              logits_processor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``topK_genrate``: reports what was accepted, then drafts the next tree."""
        tree, layer = self._tree, original.__self__  # type: ignore[attr-defined]
        if tree.driver is None:
            tree.driver = self._handle.new_generation()
        else:
            # Of the verified tree EAGLE hands on the features of the root and the accepted path.
            tree.driver.verified(hidden_states.shape[1] - 1, self._submitted[0],
                                 nodes=self._submitted[1], levels=tree.count)
        watched = isinstance(tree.driver.policy, Watched)
        if not watched:
            self._check_sampling(logits_processor)
        tree.limit, tree.size = tree.configured(layer), tree.sizes(layer)
        if not watched and self._max_depth is not None:
            tree.limit = self._max_depth
        tree.count = tree.limit if watched else 0
        tree.begun = tree.driver.begin(RoundStart(tree.limit, input_ids.shape[1]))
        call = original if watched else functools.partial(self._spliced, layer)
        drafted = call(hidden_states, input_ids, head, logits_processor, *args, **kwargs)
        self._submitted = tree.submitted(drafted, watched)
        tree.driver.drafted()
        return drafted

    def _check_sampling(self, logits_processor: Any) -> None:
        if self._warn_of_sampling and logits_processor:  # at temperature 1 it is empty
            self._warn_of_sampling = False
            warnings.warn(
                "this version of EAGLE draws the token after a path that was accepted to its end "
                "without the temperature, top_p and top_k asked for. Shorter trees end there "
                "more often, so a policy changes the distribution of what is written. Sample at "
                "temperature 1, decode greedily, or use SafeAILab/EAGLE from May 2025 on",
                UpstreamDefectWarning, stacklevel=2,
            )

    def forward(self, original: Callable[..., Any], input_ids: Any = None, *args: Any,
                **kwargs: Any) -> Any:
        """Around ``EaModel.forward``: one sequence at a time, and the mask of the cut tree."""
        if input_ids is not None and input_ids.shape[0] != 1:
            raise UnsupportedError(
                f"input_ids have batch size {input_ids.shape[0]}; EAGLE generates one sequence "
                "at a time: give shape (1, length)"
            )
        if self._tree.driver is not None:  # a drafted tree is verified, perhaps after a pause
            self._tree.driver.verifying()
            self._tree.show_mask()
        return original(input_ids, *args, **kwargs)
