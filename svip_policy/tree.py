"""A step of a draft tree: one level, whose signals are reduced over its rows.

A policy written for chains works on trees unchanged: the entropy and the log probability of
a level are one number each, and the log probabilities of a round's steps add up, as a
chain's do, to that of the best path or of the whole frontier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from array_api_compat import array_namespace

from . import signals
from .protocol import DraftStep

Reduce = Literal["best", "weighted"]


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeStep(DraftStep):
    """One drafted level of a tree.

    Attributes:
        position: 1 for the level below the root.
        logits: raw draft logits of the nodes that this level extends, (width, vocab).
        token: None; a level has many.
        paths: called when first wanted, gives the log probability under the draft of the path
            from the root to each of these nodes, (width,), in nats; 0 for the root.
        frontier: called when first wanted, gives those of the most probable nodes of this level,
            which the next one would extend, (kept,).
        size: how many nodes are verified if drafting stops after so many levels; one a level,
            where nobody tells.
        reduce: ``"best"`` takes the row of the most probable path, ``"weighted"`` the mean
            over rows by path probability. A degenerate row counts in neither.
    """

    token: Any = None
    paths: Callable[[], Any]
    frontier: Callable[[], Any]
    size: Callable[[int], int] = int
    reduce: Reduce = "best"

    def __post_init__(self) -> None:
        shape = tuple(self.logits.shape)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"logits have shape {shape}; give those of one level, shape (width, vocab)"
            )

    def nodes(self, more: int = 0) -> int:
        """See :meth:`DraftStep.nodes`."""
        return self.size(self.position + more)

    @cached_property
    def path_log_probabilities(self) -> Any:
        """What ``paths`` gives, in float32 or better, (width,); -inf for NaN."""
        paths = signals.without_nan(signals.upcast(self.paths()))
        if tuple(paths.shape) != (self.logits.shape[0],):
            raise ValueError(f"paths have shape {tuple(paths.shape)} where the logits have "
                             f"{self.logits.shape[0]} rows; give one log probability a row")
        return paths

    @cached_property
    def entropy(self) -> float:
        """Entropy of the draft distribution in nats, reduced over rows; NaN if none is usable."""
        if self.reduce == "weighted":
            return signals.weighted_entropy(self.logits, self.path_log_probabilities)
        if self.previous is None and self.logits.shape[0] == 1:  # the root
            return signals.entropy_value(self.logits[0])
        paths = self.path_log_probabilities
        value = self._of_best(paths)
        # If the best path is degenerate, only it stops: the best of the others counts.
        return value if not math.isnan(value) else self._of_best(
            signals.usable_paths(self.logits, paths))

    @cached_property
    def margin(self) -> float:
        """Of the most probable usable path's row, however signals are reduced; see
        :attr:`DraftStep.margin`."""
        return signals.margin_value(
            self._best(signals.usable_paths(self.logits, self.path_log_probabilities)))

    @cached_property
    def log_probability(self) -> float:
        """What the level adds, at most 0, in nats; NaN if no row is usable.

        ``"best"``: log probability of the best path that ends in this level, less that of
        the best path before it. ``"weighted"``: the same of the sum over all paths of the
        frontier, which is the draft's own estimate that one of them is right.
        """
        before = self.previous.total if isinstance(self.previous, TreeStep) else 0.0
        return self.total - before

    @cached_property
    def total(self) -> float:
        """Log probability of the best path so far, or of all those of the frontier, in nats."""
        reduce = signals.log_total if self.reduce == "weighted" else signals.log_largest
        return reduce(signals.without_nan(signals.upcast(self.frontier())))

    @cached_property
    def degenerate(self) -> bool:
        """Whether the logits of every row hold NaN or +inf, or are -inf throughout."""
        # What is known already costs no second synchronisation.
        if "entropy" in self.__dict__:
            return math.isnan(self.entropy)
        # The first row is the best path of most trees; the others cost a longer look.
        return signals.is_degenerate(self.logits[0]) and signals.is_degenerate_throughout(
            self.logits)

    def _of_best(self, paths: Any) -> float:
        return signals.entropy_value(self._best(paths), array_namespace(paths).max(paths))

    def _best(self, paths: Any) -> Any:
        xp = array_namespace(paths)
        # Taken by an array: no wait for an accelerator to tell the index.
        return xp.take(self.logits, xp.reshape(xp.argmax(paths), (1,)), axis=0)[0]
