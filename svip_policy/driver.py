"""Runs a policy over one generation; what every adapter's drafting loop calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .errors import DegenerateLogitsWarning
from .protocol import Decision, DraftStep, LengthPolicy, RoundStart
from .summary import Round
from .tree import Reduce, TreeStep

Record = Callable[[RoundStart, DraftStep | None, Round, Any], None]


@dataclass
class PolicyDriver:
    """One policy in one generation: keeps the chain of steps, counts and times.

    Call :meth:`begin`, then :meth:`observe` after each kept token until it returns False,
    then :meth:`drafted`, and :meth:`verified` when the target has verified.

    Attributes:
        policy: used as it is; pass ``policy.fresh()``.
        rounds: a record of each verified round.
        degenerate: how many steps had degenerate logits, at which drafting stops.
        record: called with each verified round, outside of what is timed; see
            :class:`svip_policy.trace.Recorder`.
    """

    policy: LengthPolicy
    rounds: list[Round] = field(default_factory=list)
    degenerate: int = 0
    record: Record | None = field(default=None, repr=False)
    _begin: Callable[[RoundStart], Decision] | None = field(default=None, init=False, repr=False)
    _learn: Callable[[DraftStep, int, int], None] | None = field(
        default=None, init=False, repr=False)
    _start: RoundStart = field(default=RoundStart(), init=False, repr=False)
    _last: DraftStep | None = field(default=None, init=False, repr=False)
    _policy_seconds: float = field(default=0.0, init=False, repr=False)
    _draft_seconds: float = field(default=0.0, init=False, repr=False)
    _since: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        # Looked up once: checking against a runtime protocol takes 20 microseconds.
        self._begin = getattr(self.policy, "begin", None)
        self._learn = getattr(self.policy, "learn", None)

    def begin(self, start: RoundStart) -> bool:
        """Start a round; False if nothing is to be drafted in it."""
        self._start, self._last, self._policy_seconds = start, None, 0.0
        self._since = perf_counter()
        if start.budget is not None and start.budget <= 0:
            return False
        if self._begin is None:
            return True
        more = self._means_continue(self._begin(start))
        self._policy_seconds = perf_counter() - self._since
        return more

    def observe(self, logits: Any, token: Any, budget: int | None = None) -> bool:
        """Report a kept token; True if another one is to be drafted.

        Args:
            logits: raw draft logits the token was chosen from, (vocab,).
            token: the token, an int or an integer array with one element.
            budget: how many tokens may still be drafted after this one.
        """
        began = perf_counter()
        return self.observe_step(DraftStep(self._next, logits, token, self._last, budget), began)

    def observe_level(
        self, logits: Any, paths: Callable[[], Any], frontier: Callable[[], Any],
        budget: int | None = None, reduce: Reduce = "best", size: Callable[[int], int] = int,
    ) -> bool:
        """Report a kept level of a draft tree; True if another one is to be drafted.

        Args:
            logits: raw draft logits of the nodes it extends, (width, vocab).
            paths: see :class:`svip_policy.TreeStep`.
            frontier: see :class:`svip_policy.TreeStep`.
            budget: how many levels may still be drafted after this one.
            reduce: how signals are reduced over rows.
            size: see :class:`svip_policy.TreeStep`.
        """
        began = perf_counter()
        step = TreeStep(self._next, logits, previous=self._last, budget=budget, paths=paths,
                        frontier=frontier, size=size, reduce=reduce)
        return self.observe_step(step, began)

    @property
    def _next(self) -> int:
        return 1 if self._last is None else self._last.position + 1

    def observe_step(self, step: DraftStep, began: float | None = None) -> bool:
        """Report a step that was made elsewhere; True if another one is to be drafted.

        Args:
            step: follows upon the one before it in the round.
            began: when the making of it did, by ``perf_counter``; now, if not given.
        """
        began = perf_counter() if began is None else began
        self._last = step
        more = self._means_continue(self.policy.observe(step))
        if step.degenerate:
            self.count_degenerate()
            more = False
        self._policy_seconds += perf_counter() - began
        return more

    def drafted(self) -> None:
        """Drafting is over and verification begins; tells the time of one from the other."""
        now = perf_counter()
        self._draft_seconds = now - self._since - self._policy_seconds
        self._since = now

    def verifying(self) -> None:
        """Verification begins now: what went by since :meth:`drafted` is not counted."""
        self._since = perf_counter()

    def verified(
        self, accepted: int, drafted: int | None = None, nodes: int | None = None,
        levels: int | None = None, target_logits: Any = None,
    ) -> None:
        """Report the outcome of verification.

        Args:
            accepted: how many drafted tokens were accepted, of a tree along its best path.
            drafted: how many were submitted, if not as many as were observed (a framework
                that re-tokenizes the draft submits another number); of a tree, the longest path.
            nodes: how many tokens of a tree were submitted; ``drafted`` for a chain.
            levels: how many levels of a tree were drafted; ``drafted`` for a chain.
            target_logits: the target's at each drafted position, (drafted, vocab), where they
                are at hand: for the record alone.
        """
        observed = 0 if self._last is None else self._last.position
        drafted = observed if drafted is None else drafted
        if not 0 <= accepted <= drafted:
            raise ValueError(f"{accepted} accepted of {drafted} drafted tokens: not possible")
        began = perf_counter()
        # Of a draft that was re-tokenized nobody can tell which of its steps were right.
        told = levels is not None or drafted == observed
        if self._learn is not None and self._last is not None and told:
            self._learn(self._last, drafted, accepted)
        self.policy.verified(drafted, accepted)
        self._policy_seconds += perf_counter() - began
        last, self._last = self._last, None  # lets go of the round's logits
        self.rounds.append(Round(drafted, accepted, draft_seconds=self._draft_seconds,
                                 verify_seconds=began - self._since,
                                 policy_seconds=self._policy_seconds,
                                 nodes=drafted if nodes is None else nodes,
                                 levels=drafted if levels is None else levels))
        if self.record is not None:
            self.record(self._start, last, self.rounds[-1], target_logits)

    def abandon(self) -> None:
        """Drafting failed, or what it drafted is not verified: let go of the round's logits."""
        self._last = None

    def _means_continue(self, decision: Decision) -> bool:
        if not isinstance(decision, Decision):
            raise TypeError(f"{self.policy!r} answered {decision!r}; answer Decision.CONTINUE or "
                            "Decision.STOP")
        return decision is Decision.CONTINUE

    def count_degenerate(self) -> None:
        """Count a position without a usable distribution; warn of the first.

        :meth:`observe` does so by itself. A loop that samples calls it where there was
        nothing to sample from, and ends the draft before that position.
        """
        self.degenerate += 1
        if self.degenerate == 1:
            warnings.warn(
                "draft logits hold NaN or +inf, or are -inf throughout: drafting stops at "
                "such a token; look at the draft model's weights and dtype",
                DegenerateLogitsWarning, stacklevel=4,
            )
