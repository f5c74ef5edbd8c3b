"""The protocol between a drafting loop and a draft length policy.

One *round* of speculative decoding drafts some tokens, has the target verify them in one
pass, and keeps the accepted ones plus one token of the target's own. The drafting loop
keeps a token, then asks the policy whether to draft another.

The exactness contract
----------------------
The output of speculative decoding has exactly the target's distribution, whatever the
policy, as long as the draft length is a stopping time of the draft: the decision to stop
after a token may use that token, those before it and their distributions, and *a token
that was drafted is always submitted for verification*. Dropping a drafted token because
of its own probability is not exact: with target p = (.6, .3, .1), draft q = (.5, .3, .2)
and "drop the token if q(x) < .4", the output is (.8, .15, .05).

The protocol has no way to take a token back, so no policy can break the contract; a
framework adapter keeps it by asking only after a token was kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from . import signals


class Decision(Enum):
    """What a policy answers."""

    CONTINUE = "continue"
    STOP = "stop"


@dataclass(frozen=True, eq=False)
class DraftStep:
    """One drafted and kept token, and all that was known when it was drafted.

    Attributes:
        position: 1 for the first token of the round.
        logits: raw draft logits the token was chosen from, (vocab,), of any array library
            and float dtype, before temperature and other processors.
        token: the drafted token, an int or an integer array with one element.
        previous: the step before this one in the round, None for the first.
        budget: how many tokens may still be drafted in this round after this one, None
            if the framework sets no limit.
    """

    position: int
    logits: Any
    token: Any
    previous: DraftStep | None = None
    budget: int | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.logits.shape)
        if len(shape) != 1 or shape[0] == 0:
            raise ValueError(
                f"logits have shape {shape}; give those of one position, shape (vocab,)"
            )

    @classmethod
    def known(
        cls, position: int, token: int, previous: DraftStep | None = None,
        budget: int | None = None, **signals: float,
    ) -> DraftStep:
        """A step of which the signals are known and the logits are not: these are None.

        Args:
            position: see above, and so on.
            token: likewise.
            previous: likewise.
            budget: likewise.
            signals: values of ``entropy``, ``log_probability`` and ``margin``.
        """
        step = object.__new__(cls)
        step.__dict__.update(position=position, logits=None, token=token, previous=previous,
                             budget=budget, **signals)
        return step

    def nodes(self, more: int = 0) -> int:
        """Drafted tokens that are verified if drafting stops after ``more`` further steps: in a
        chain one a step, in a tree as many as it has."""
        return self.position + more

    def backwards(self) -> Iterator[DraftStep]:
        """This step and those before it in the round, the first one last."""
        at: DraftStep | None = self
        while at is not None:
            yield at
            at = at.previous

    @cached_property
    def entropy(self) -> float:
        """Entropy of the draft distribution in nats; NaN for degenerate logits."""
        return signals.entropy_value(self.logits)

    @cached_property
    def log_probability(self) -> float:
        """ln q(token), at most 0; NaN for degenerate logits."""
        # The entropy comes with the same synchronisation; some rules want both.
        entropy, log_probability = signals.entropy_and_log_probability(self.logits, self.token)
        self.__dict__["entropy"] = entropy
        return log_probability

    @cached_property
    def margin(self) -> float:
        """Probability of the most probable token less that of the next, in [0, 1]; NaN for
        degenerate logits."""
        return signals.margin_value(self.logits)

    @cached_property
    def degenerate(self) -> bool:
        """Whether the logits hold NaN or +inf, or are -inf throughout."""
        # A signal that is there already tells, and costs no second synchronisation.
        for name in ("entropy", "margin"):
            if name in self.__dict__:
                return math.isnan(self.__dict__[name])
        return signals.is_degenerate(self.logits)


@dataclass(frozen=True)
class RoundStart:
    """What is known before the first token of a round is drafted.

    Attributes:
        budget: how many tokens may be drafted in this round, None if there is no limit.
        length: tokens in the sequence so far, the prompt included, None if not known.
        target_logits: the target's raw logits of the token emitted last, (vocab,), None
            where the framework does not have them at hand.
    """

    budget: int | None = None
    length: int | None = None
    target_logits: Any = None


@runtime_checkable
class LengthPolicy(Protocol):
    """Decides how many tokens to draft. Extend by writing these three methods.

    All that concerns the current round is in the chain of steps, so a policy keeps no
    per-round state; what it learns over a sequence changes in :meth:`verified` only.
    """

    def observe(self, step: DraftStep) -> Decision:
        """Called after each kept token: draft another one or stop. Changes no state."""
        ...

    def verified(self, drafted: int, accepted: int) -> None:
        """Called after each verification: ``accepted`` of ``drafted`` tokens were right."""
        ...

    def fresh(self) -> LengthPolicy:
        """A policy with the same parameters in its initial state; one is made for each
        generation, so that nothing leaks from one sequence to the next."""
        ...


@runtime_checkable
class RoundPolicy(LengthPolicy, Protocol):
    """A policy that also decides whether to draft at all in a round."""

    def begin(self, start: RoundStart) -> Decision:
        """Called before the first token of a round: STOP drafts nothing in it."""
        ...


@runtime_checkable
class BatchPolicy(LengthPolicy, Protocol):
    """A policy that can answer for many sequences at once, on the device of their logits.

    For policies whose answer depends on the position, the token and its distribution alone:
    they have no state, and :meth:`LengthPolicy.fresh` gives an equal one.
    """

    def observe_batch(self, position: int, logits: Any, tokens: Any) -> Any:
        """Which sequences draft another token.

        Args:
            position: see :class:`DraftStep`, the same for all.
            logits: raw draft logits, (sequences, vocab).
            tokens: drafted by each, integers (sequences,).

        Returns:
            Booleans (sequences,), True where :meth:`LengthPolicy.observe` would give CONTINUE.
        """
        ...


@runtime_checkable
class LearningPolicy(LengthPolicy, Protocol):
    """A policy that learns from the signals of the tokens that were verified."""

    def learn(self, last: DraftStep, drafted: int, accepted: int) -> None:
        """Called before :meth:`verified`, of a round in which something was drafted.

        Args:
            last: step of the round, which leads to those before it.
            drafted: how many of them were submitted.
            accepted: how many were right.
        """
        ...
