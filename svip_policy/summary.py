"""What happened in the rounds of one or more generations, in numbers.

Conventions: the acceptance rate is pooled, accepted / drafted over all rounds; the
accepted length is given with and without the target's own token of each round. Of a draft
tree, ``drafted`` is the longest path that was verified, ``accepted`` the tokens of the path
that was accepted, ``levels`` counts the levels drafted, also those of which no node was
verified, and ``nodes`` the tokens that the target verified, without the root. Of a chain,
``levels`` and ``nodes`` are ``drafted``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Round(NamedTuple):
    """One round: tokens drafted and accepted, seconds spent. Policy time is not in the
    draft's. Times are of the host's clock: on an accelerator, work that was only launched
    counts where the host next waits for it."""

    drafted: int
    accepted: int
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    policy_seconds: float = 0.0
    nodes: int = 0
    levels: int = 0


@dataclass(frozen=True)
class Summary:
    """Totals over rounds; lengths in tokens, times in seconds."""

    rounds: int
    drafted: int
    accepted: int
    draft_seconds: float
    verify_seconds: float
    policy_seconds: float
    nodes: int = 0
    levels: int = 0

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Summary:
        """Sum up ``rounds``; none at all is fine."""
        totals = [sum(column) for column in zip(*rounds, strict=True)] or [0] * len(Round._fields)
        return cls(len(rounds), *totals)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted, pooled over rounds, in [0, 1]; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def drafted_length(self) -> float:
        """Mean tokens drafted a round."""
        return self.drafted / self.rounds if self.rounds else 0.0

    @property
    def accepted_length(self) -> float:
        """Mean drafted tokens accepted a round, without the target's own token."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def nodes_per_round(self) -> float:
        """Mean drafted tokens that the target verified a round."""
        return self.nodes / self.rounds if self.rounds else 0.0

    @property
    def levels_per_round(self) -> float:
        """Mean levels drafted a round."""
        return self.levels / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens a round, the target's own included: accepted_length + 1."""
        return self.accepted_length + 1.0 if self.rounds else 0.0

    @property
    def seconds(self) -> float:
        """Draft, verification and policy together."""
        return self.draft_seconds + self.verify_seconds + self.policy_seconds

    @property
    def speedup_ceiling(self) -> float:
        """An upper bound of the speedup over target-only decoding, from these rounds alone.

        Target-only decoding needs one pass a token, and a pass over one token is not
        dearer than the passes over several that were timed here. Below 1, drafting has
        certainly cost more time than it saved.
        """
        if not self.seconds:
            return 0.0
        return self.verify_seconds * self.tokens_per_round / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """All totals and derived figures, for JSON."""
        derived = ("acceptance_rate", "drafted_length", "accepted_length", "nodes_per_round",
                   "levels_per_round", "tokens_per_round", "seconds", "speedup_ceiling")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def __str__(self) -> str:
        lines = [
            f"{self.rounds} rounds, {self.drafted} drafted, {self.accepted} accepted "
            f"(acceptance rate {self.acceptance_rate:.1%})",
            f"drafted {self.drafted_length:.2f} a round, accepted {self.accepted_length:.2f}, "
            f"with the target's own token {self.tokens_per_round:.2f}",
            f"{self.draft_seconds:.2f} s draft, {self.verify_seconds:.2f} s verify, "
            f"{self.policy_seconds:.3f} s policy",
        ]
        if self.nodes > self.drafted:
            lines.insert(1, f"trees: {self.levels_per_round:.2f} levels drafted and "
                            f"{self.nodes_per_round:.1f} nodes verified a round; drafted is "
                            "the longest path among them")
        if self.rounds and self.seconds and self.speedup_ceiling < 1.0:
            lines.append(
                f"drafting costs more than it saves: at most {self.speedup_ceiling:.2f} times "
                "the speed of the target alone"
            )
        return "\n".join(lines)
