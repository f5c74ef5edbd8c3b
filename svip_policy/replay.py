"""What any policy would have drafted on a recorded text, exactly, without the models.

Greedy speculative decoding writes the target's own text under every policy. So one pass can
record what the draft would draft from each position of it, and a policy is then evaluated by
looking it up: the same rounds as in a live run. Where two chains meet they go on alike, since a
greedy draft is a function of what precedes it: a :class:`Text` holds for each position the token
drafted there, and what would be drafted after it only where that token is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import trace
from .cost import CostModel
from .driver import PolicyDriver
from .errors import ParameterError, TraceError
from .policies import resolve
from .protocol import DraftStep, LengthPolicy, RoundStart
from .summary import Round

KIND = "positions"


class Drafted(NamedTuple):
    """A token that the draft would draft: id, entropy (nats), log probability, margin."""

    token: int
    entropy: float
    log_probability: float
    margin: float


@dataclass(frozen=True)
class Text:
    """One answer of the target, and what the draft would draft from each position of it.

    Attributes:
        prompt: id of the prompt.
        task: that it belongs to.
        turn: of the prompt, from 0.
        length: tokens before the answer.
        tokens: of the answer.
        max_new_tokens: that it was limited to.
        end: ids that end a sequence; nothing is drafted after one.
        longest: how long a draft is recorded at least.
        on: at each position, what is drafted after the text before it.
        off: where that is not the text's token, what is drafted after it, by position.
        acceptance_rates: at each position sum of min(p, q), None where that is no number; empty
            if they were not recorded.
        cross_entropies: likewise H(q, p), in nats.
        pieces: the tokens as text; empty if they were not recorded.
    """

    prompt: str
    task: str
    turn: int
    length: int
    tokens: list[int]
    max_new_tokens: int
    end: frozenset[int]
    longest: int
    on: list[Drafted]
    off: dict[int, list[Drafted]]
    acceptance_rates: list[float | None] = field(default_factory=list)
    cross_entropies: list[float | None] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is no number becomes None."""
        return {
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "end": sorted(self.end), "on": _plain(self.on),
            "off": {str(at): _plain(drafted) for at, drafted in self.off.items()},
        }

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Text:
        """From what :meth:`as_dict` gave.

        Raises:
            TraceError: it is something else.
        """
        try:
            return cls(**{
                **entry, "end": frozenset(entry["end"]), "on": _drafted(entry["on"]),
                "off": {int(at): _drafted(drafted) for at, drafted in entry["off"].items()},
            })
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"an entry is no recorded text ({error!r}): record the trace "
                                   "anew") from error

    def drafted_from(self, position: int) -> Iterator[Drafted]:
        """What the draft drafts after the text before ``position``, as far as it is recorded."""
        for at in range(position, len(self.tokens)):
            yield self.on[at]
            if self.on[at].token != self.tokens[at]:
                yield from self.off[at]
                return

    @cached_property
    def matches(self) -> list[int]:
        """How many tokens drafted from each position are the text's, up to its end."""
        found = [0]
        for drafted, token in zip(self.on[::-1], self.tokens[::-1], strict=True):
            found.append(found[-1] + 1 if drafted.token == token else 0)
        return found[:0:-1]

    def recorded(self, position: int) -> int:
        """How many tokens are recorded from there, at most to the end of the text."""
        wrong = position + self.matches[position]
        return self.matches[position] + (1 + len(self.off[wrong]) if wrong in self.off else 0)

    def budget(self, position: int) -> int:
        """How many tokens may be drafted there: the target adds one of its own."""
        return self.max_new_tokens - position - 1

    def accepted(self, position: int, drafted: int) -> int:
        """How many of ``drafted`` tokens are accepted, as transformers counts them: of a draft
        that is right up to the end of the sequence the last one counts as the target's own."""
        matches = min(self.matches[position], drafted)
        last = position + matches - 1
        return matches - (matches > 0 and self.tokens[last] in self.end)


def _plain(drafted: list[Drafted]) -> list[list[float | None]]:
    return [[d.token, *map(trace.number, d[1:])] for d in drafted]


def _drafted(entries: list[list[Any]]) -> list[Drafted]:
    return [Drafted(token, *(math.nan if value is None else value for value in signals))
            for token, *signals in entries]


def read(path: Path | str) -> tuple[dict[str, Any], list[Text]]:
    """The conditions and the texts of a trace.

    Raises:
        TraceError: the file is none.
    """
    found = trace.read(path, KIND)
    return found.header, [Text.of(entry) for entry in found.entries]


def replay(text: Text, policy: LengthPolicy | str, cost: CostModel | None = None) -> list[Round]:
    """The rounds of a live run of ``policy`` that writes ``text``.

    ``begin`` of a policy gets no target logits here.

    Args:
        text: recorded.
        policy: used in its initial state.
        cost: gives the rounds their seconds, 0 without.

    Raises:
        ParameterError: the policy drafts more than is recorded, or than ``cost`` knows.
    """
    driver = PolicyDriver(resolve(policy).fresh())
    at, rounds = 0, []
    while at < len(text.tokens):
        drafted = _draft(driver, text, at)
        accepted = text.accepted(at, drafted)
        driver.verified(accepted, drafted)
        rounds.append(_priced(text, at, drafted, accepted, cost))
        at += accepted + 1
    return rounds


def _draft(driver: PolicyDriver, text: Text, at: int) -> int:
    """How many tokens the policy drafts from a position."""
    budget, step, count = text.budget(at), None, 0
    if not driver.begin(RoundStart(budget, text.length + at)):
        return 0
    for count, drafted in enumerate(text.drafted_from(at), start=1):
        step = DraftStep.known(count, drafted.token, step, budget - count, entropy=drafted.entropy,
                               log_probability=drafted.log_probability, margin=drafted.margin)
        more = driver.observe_step(step)
        if not more or count == budget or drafted.token in text.end:
            return count
    raise ParameterError(
        f"{driver.policy!r} drafts more than the {text.longest} tokens that are recorded: give it "
        f"a cap of at most {text.longest}, or record longer drafts"
    )


def _priced(text: Text, at: int, drafted: int, accepted: int, cost: CostModel | None) -> Round:
    seconds = (0.0, 0.0) if cost is None else (
        cost.draft_seconds(drafted, text.length + at),
        cost.verify_seconds(drafted, text.length + at))
    return Round(drafted, accepted, *seconds, nodes=drafted, levels=drafted)


def first_mismatch(text: Text, cost: CostModel | None = None) -> list[Round]:
    """The rounds of an oracle that stops just before the first token that would be rejected."""
    return _by_lengths(text, lambda at: text.accepted(at, _most(text, at, cost)), cost)


def oracle(text: Text, cost: CostModel) -> list[Round]:
    """The rounds whose lengths are together the fastest under ``cost``: no policy is faster that
    stays within what is recorded and measured.

    By dynamic programming over the positions: the time from one to the end is that of the best
    first round plus that from where it leads to.
    """
    end = len(text.tokens)
    left, best = np.zeros(end + 1), [0] * end
    for at in range(end - 1, -1, -1):
        most = _most(text, at, cost)
        leads_to = at + 1 + np.array([text.accepted(at, k) for k in range(most + 1)])
        total = cost.rounds_seconds(most, text.length + at) + left[leads_to]
        best[at] = int(total.argmin())
        left[at] = total[best[at]]
    return _by_lengths(text, best.__getitem__, cost)


def _most(text: Text, at: int, cost: CostModel | None) -> int:
    """The longest draft that a policy can be replayed with from a position."""
    measured = text.budget(at) if cost is None else cost.longest
    return max(0, min(text.budget(at), text.recorded(at), measured))


def _by_lengths(text: Text, length: Any, cost: CostModel | None) -> list[Round]:
    at, rounds = 0, []
    while at < len(text.tokens):
        drafted = length(at)
        accepted = text.accepted(at, drafted)
        rounds.append(_priced(text, at, drafted, accepted, cost))
        at += accepted + 1
    return rounds


def seconds(rounds: Iterable[Round]) -> float:
    """Draft and verification of all rounds together."""
    return sum(r.draft_seconds + r.verify_seconds for r in rounds)
