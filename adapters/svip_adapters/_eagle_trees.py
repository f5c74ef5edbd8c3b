"""How a policy enters the two kinds of EAGLE trees: what is put into the drafting function.

Of EAGLE's drafting loop only its iterable is exchanged, for a generator that sees the level
drafted last and yields only if another is wanted. So the deepest level is seen too, and the
body of the loop runs as it is.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from svip_policy import PolicyDriver
from svip_policy.errors import UnsupportedError
from svip_policy.tree import Reduce

from ._splice import expression, insert_after, loop_over, splice

STATIC_LEVELS = "len(self.tree_buffer['tree_indices'])"


@dataclass
class Levels:
    """Drafts levels as a driver wants them; one of the two kinds below.

    Attributes:
        driver: of the generation that is running.
        limit: the most levels of this round.
        begun: False where the policy wanted to skip the round; one level is drafted then.
        count: levels drafted so far in this round.
        size: nodes that are verified of a tree of so many levels.
    """

    reduce: Reduce
    driver: PolicyDriver | None = None
    limit: int = 0
    begun: bool = True
    count: int = 0
    size: Callable[[int], int] = int

    def _ask(self, logits: Tensor, paths: Callable[[], Tensor],
             frontier: Callable[[], Tensor]) -> bool:
        assert self.driver is not None
        self.count += 1
        more = self.driver.observe_level(logits, paths, frontier, self.limit - self.count,
                                         self.reduce, self.size)
        return more and self.begun and self.count < self.limit

    def restore(self) -> None:
        """Put back what was changed beside the drafting."""

    def show_mask(self) -> None:
        """Before a verification: let the target see the tree as it is."""


def _root(logits: Tensor) -> Tensor:
    return logits.new_zeros(1)


class DynamicTree(Levels):
    """EAGLE-2 and EAGLE-3: each level keeps the best nodes, the best of all are verified."""

    def spliced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``topK_genrate`` with the policy in its loop."""
        return splice(function, self._edit, {
            "__svip_levels__": self._levels, "__svip_ranked__": ranked,
            "__svip_selectable__": selectable})

    @staticmethod
    def configured(layer: Any) -> int:
        """Levels that ``layer`` drafts by itself."""
        return int(layer.depth) + 1

    @staticmethod
    def sizes(layer: Any) -> Callable[[int], int]:
        """The first level has ``top_k`` nodes, any further one the ``top_k`` of each of as many;
        the best ``total_tokens`` of all are verified."""
        width, most = int(layer.top_k), int(layer.total_tokens)
        return lambda levels: min(most, width + (levels - 1) * width**2)

    @staticmethod
    def _edit(definition: ast.FunctionDef) -> None:
        loop = loop_over(definition, "range(depth)")
        loop.iter = expression("__svip_levels__(lambda: (last_headout, scores))")
        insert_after(definition, loop.body, "cu_scores = topk_p + scores[:, None]",
                     "cu_scores = __svip_ranked__(cu_scores)")
        insert_after(definition, definition.body,
                     "scores_list = torch.cat(scores_list, dim=0).view(-1)",
                     "total_tokens = __svip_selectable__(scores_list, total_tokens)")

    def _levels(self, get: Callable[[], tuple[Tensor, Tensor]]) -> Iterator[int]:
        paths: Tensor | None = None
        while True:
            logits, scores = get()
            before = _root(logits) if paths is None else paths
            if not self._ask(logits, lambda p=before: p, lambda s=scores: s):  # type: ignore[misc]
                return
            paths = scores
            yield self.count - 1

    def submitted(self, drafted: Any, watched: bool) -> tuple[int, int]:
        """Of what ``topK_genrate`` returned: the longest path, and the nodes to be verified."""
        return int(drafted[1].shape[1]) - 1, int(drafted[0].shape[1]) - 1


def ranked(scores: Tensor) -> Tensor:
    """Scores of new nodes with NaN last: upstream's topk would put it first."""
    return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def selectable(scores: Tensor, wanted: int) -> int:
    """How many nodes to select: no more than there are, of those that have any probability."""
    usable = int((scores > -torch.inf).sum())
    # Where not one has, upstream's own choice is as good as any.
    return min(wanted, usable or scores.shape[0])


class StaticTree(Levels):
    """EAGLE-1: one tree for all rounds, here cut below the last level that was drafted."""

    def __init__(self, reduce: Reduce, model: Any) -> None:
        super().__init__(reduce)
        self._model = weakref.ref(model)
        self._layer = weakref.ref(model.ea_layer)
        self._cuts = Cuts()

    def spliced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``topK_genrate`` with the policy in its loop."""
        return splice(function, self._edit, {"__svip_levels__": self._levels})

    @staticmethod
    def configured(layer: Any) -> int:
        """Levels that ``layer`` drafts by itself."""
        return len(layer.tree_buffer["tree_indices"]) + 1

    def sizes(self, layer: Any) -> Callable[[int], int]:
        """As many nodes as the tree has paths of at most so many levels."""
        choices = getattr(self._model(), "tree_choices", None)
        if choices is None:  # a loop of the user's own
            return int
        return lambda levels: sum(len(choice) <= levels for choice in choices)

    @staticmethod
    def _edit(definition: ast.FunctionDef) -> None:
        loop = loop_over(definition, f"range({STATIC_LEVELS})")
        loop.iter = expression("__svip_levels__(lambda: (last_headout, ss_token))")

    def _levels(self, get: Callable[[], tuple[Tensor, list[Tensor]]]) -> Iterator[int]:
        layer: Any = self._layer()
        width = inspect.unwrap(type(layer).topK_genrate).__globals__["top_k"]
        paths: Callable[[], Tensor] | None = None
        before: Tensor | None = None
        while True:
            logits, tokens = get()
            if paths is None or before is None:
                paths = functools.partial(_root, logits)
            else:
                kept = layer.tree_buffer["tree_indices"][self.count - 1]
                # Kept: a level's paths want those of the levels above it.
                paths = functools.cache(functools.partial(_chosen, before, paths, tokens[-1], kept))
            if not self._ask(logits, paths, functools.partial(_best, logits, paths, width)):
                return
            before = logits
            yield self.count - 1

    def submitted(self, drafted: Any, watched: bool) -> tuple[int, int]:
        """Cut the shared buffers to the levels drafted; the longest path and the nodes of it.

        Raises:
            UnsupportedError: the loop that runs does not share them, and is not only watched.
        """
        model = self._model()
        if watched and not hasattr(model, "tree_buffers"):
            return self.count, 0  # nodes that nobody tells
        return self._cuts.cut(model, self.count)

    def restore(self) -> None:
        """Put back the whole tree."""
        self._cuts.restore(self._model())

    def show_mask(self) -> None:
        """Let the target see the mask of the cut tree: EAGLE sets its own after drafting."""
        model = self._model()
        if self._cuts.mask is not None and model is not None:
            model.base_model.model.tree_mask = self._cuts.mask


def _log_probabilities(logits: Tensor, paths: Callable[[], Tensor]) -> Tensor:
    scores: Tensor = logits.float().log_softmax(-1) + paths()[:, None]
    return scores


def _chosen(logits: Tensor, paths: Callable[[], Tensor], tokens: Tensor, kept: Tensor) -> Tensor:
    """Path log probabilities of the nodes ``kept`` among the drafted ``tokens``."""
    return _log_probabilities(logits, paths).gather(1, tokens).view(-1)[kept]


def _best(logits: Tensor, paths: Callable[[], Tensor], count: int) -> Tensor:
    """Those of the ``count`` most probable extensions, whichever the tree will take."""
    scores = ranked(_log_probabilities(logits, paths).view(-1))
    return scores.topk(min(count, scores.shape[0])).values


@dataclass
class Cuts:
    """The buffers that the loop shares, whole and cut to each depth, one set each.

    Attributes:
        mask: the tree mask of the last cut, None while the tree is whole.
    """

    mask: Tensor | None = None
    _shared: dict[str, Any] | None = None
    _depth: int = 0
    _sets: dict[int, dict[str, Any]] = field(default_factory=dict)

    def cut(self, model: Any, levels: int) -> tuple[int, int]:
        """Cut ``model.tree_buffers`` in place to the nodes of so many levels."""
        buffers = getattr(model, "tree_buffers", None)
        if buffers is None:
            raise UnsupportedError(
                "this generation keeps no tree_buffers on its EaModel, so a stop cannot cut the "
                "tree that it verifies; use eagenerate or ea_generate, or set "
                "model.tree_buffers and model.tree_choices before drafting"
            )
        if self._shared is not buffers:  # another tree, or the first generation
            self._shared = buffers
            self._depth = max(len(choice) for choice in model.tree_choices)
            self._sets = {self._depth: dict(buffers)}
            if buffers["tree_indices"].shape[0] != len(model.tree_choices) + 1:
                # A copy that was made of an attached model, while its tree was cut.
                self._sets = {self._depth: self._made(model, self._depth)}
        levels = min(levels, self._depth)
        if levels not in self._sets:
            self._sets[levels] = self._made(model, levels)
        buffers = self._sets[levels]
        self._shared.update(buffers)
        self.mask = buffers["tree_attn_mask"]
        return levels, int(buffers["tree_indices"].shape[0]) - 1

    def _made(self, model: Any, levels: int) -> dict[str, Any]:
        whole = self._sets[self._depth]
        upstream = sys.modules[owner(model).__module__]
        made: dict[str, Any] = upstream.generate_tree_buffers(
            [choice for choice in model.tree_choices if len(choice) <= levels],
            device=whole["tree_indices"].device)
        made["retrieve_indices_head"] = made["retrieve_indices"].to(
            whole["retrieve_indices_head"].device)
        return made

    def restore(self, model: Any) -> None:
        """Put the whole buffers back."""
        if self._shared is not None and self.mask is not None:
            whole = self._sets[self._depth]
            self._shared.update(whole)
            if model is not None and model.base_model.model.tree_mask is self.mask:
                model.base_model.model.tree_mask = whole["tree_attn_mask"]
        self.mask = None


def owner(model: Any) -> type:
    """The class that EAGLE itself defines, of which ``model`` may be a subclass."""
    return next((c for c in reversed(type(model).__mro__) if "eagenerate" in vars(c)), type(model))
