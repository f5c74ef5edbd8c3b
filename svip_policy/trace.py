"""Traces: a JSONL file with a first line of conditions, then one entry a line, flushed as written.

A process that is killed leaves a file that is readable up to its last whole line, and that the
same work, started again, goes on with.

Three kinds: ``rounds``, what a live generation drafted (:class:`Recorder`); ``positions``, what
a draft would draft from everywhere in a text (:mod:`svip_policy.replay`); ``runs``, the outcome
of a comparison (:mod:`svip_policy.ablation`).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import bounds
from .errors import MissingDistributionsWarning, TraceError
from .protocol import DraftStep, RoundStart
from .summary import Round

FORMAT = 1
_MARK = "svip_trace"


class TraceFile:
    """A trace to add to, taken up again where an earlier process left it.

    Args:
        path: of the file.
        kind: what its entries are.
        header: the conditions.

    Attributes:
        entries: those that were there already.

    Raises:
        TraceError: the file is something else, or was begun under other conditions.
    """

    def __init__(self, path: Path | str, kind: str, header: Mapping[str, Any]) -> None:
        self.path, self.entries = Path(path), []  # type: Path, list[dict[str, Any]]
        mine = json.loads(json.dumps({_MARK: FORMAT, "kind": kind, **header}))
        if self.path.exists() and self.path.stat().st_size:
            its, self.entries = _read(self.path, kind, cut_is_empty=True)
            other = sorted(name for name in mine.keys() | its.keys()
                           if mine.get(name) != its.get(name))
            if its and other:
                raise TraceError(
                    f"{self.path} was begun under other conditions, they differ in "
                    f"{', '.join(other)}: give another path, or delete it"
                )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # What was cut off goes; what is whole is not written anew, which could fail half-way.
        whole = self.path.read_bytes().rfind(b"\n") + 1 if self.path.exists() else 0
        with self.path.open("ab") as file:
            file.truncate(whole)
            if not whole:
                file.write(_line(mine))

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append one entry and flush it."""
        with self.path.open("ab") as file:
            file.write(_line(entry))


@dataclass(frozen=True)
class Trace:
    """A trace that was read.

    Attributes:
        header: the conditions.
        entries: one a line.
    """

    header: dict[str, Any]
    entries: list[dict[str, Any]]


def read(path: Path | str, kind: str) -> Trace:
    """The trace in ``path``, up to its last whole line.

    Args:
        path: of the file.
        kind: what it must hold.

    Raises:
        TraceError: in one line, what the file is instead and what to do.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"no trace at {path}: there is no such file")
    return Trace(*_read(path, kind))


def _read(path: Path, kind: str, cut_is_empty: bool = False) \
        -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = path.read_bytes()
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    if not data:
        raise TraceError(f"{path} is empty: record it anew")
    if not lines:
        if cut_is_empty and data.startswith(f'{{"{_MARK}"'.encode()):
            return {}, []
        raise TraceError(f"{path} is no trace, or was cut off in its first line: record it anew")
    header = _parsed(path, 1, lines[0])
    if _MARK not in header:
        raise TraceError(f"{path} is no trace of svip-policy: its first line lacks {_MARK!r}")
    if header[_MARK] != FORMAT:
        raise TraceError(f"{path} has format {header[_MARK]}, this version reads {FORMAT}: "
                         "upgrade svip-policy, or record the trace anew")
    if header.get("kind") != kind:
        raise TraceError(f"{path} is a trace of {header.get('kind')}; one of {kind} is wanted")
    return header, [_parsed(path, n, line) for n, line in enumerate(lines[1:], start=2)]


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise TraceError(f"{path}, line {number} is no JSON object: the file is damaged or no "
                         "trace; record it anew")
    return entry


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, allow_nan=False).encode() + b"\n"


@dataclass
class Recorder:
    """Writes each verified round of a generation into a trace of rounds.

    An entry holds ``policy`` (its text), ``generation`` (its number), ``decoding`` (in words,
    null where the adapter cannot tell), ``position`` (tokens in the sequence before the round),
    the fields of :class:`svip_policy.Round`, and one figure a
    step under ``entropies`` (nats), ``probabilities`` (of the token) and ``margins``; of a chain
    its ``tokens``. With ``distributions``, and where the framework hands out the target's
    logits, also ``acceptance_rates`` (sum of min(p, q)) and ``cross_entropies`` (H(q, p), nats).
    A figure that is no number is null.

    Attributes:
        file: to write to.
        policy: its text.
        generation: its number.
        decoding: greedy or at which temperature, in words.
        distributions: whether the target's are wanted.
    """

    file: TraceFile
    policy: str
    generation: int
    decoding: str | None = None
    distributions: bool = False

    def __call__(self, start: RoundStart, last: DraftStep | None, round: Round,
                 target_logits: Any) -> None:
        """Write one round.

        Args:
            start: what was known before it.
            last: its last step, which leads to those before it; None if nothing was drafted.
            round: the outcome.
            target_logits: of each drafted position, (drafted, vocab), or None.
        """
        steps = [] if last is None else list(last.backwards())[::-1]
        entry: dict[str, Any] = {
            "policy": self.policy, "generation": self.generation, "decoding": self.decoding,
            "position": start.length,
            "entropies": [number(s.entropy) for s in steps],
            "probabilities": [number(math.exp(s.log_probability)) for s in steps],
            "margins": [number(s.margin) for s in steps],
            **round._asdict(),
        }
        if all(s.token is not None for s in steps):
            entry["tokens"] = [int(s.token) for s in steps]
        if self.distributions and target_logits is not None:
            entry |= _against(steps, target_logits)
        elif self.distributions and steps:
            warnings.warn(
                "distributions are not recorded: the framework has no raw target logits at hand, "
                "because of logits processors (a temperature is one) or another tokenizer",
                MissingDistributionsWarning, stacklevel=2,
            )
        self.file.add(entry)


def _against(steps: list[DraftStep], target_logits: Any) -> dict[str, list[float | None]]:
    """What only both distributions tell of each step."""
    found = [against(step.logits, row) for step, row in zip(steps, target_logits, strict=False)]
    return {"acceptance_rates": [rate for rate, _ in found],
            "cross_entropies": [crossed for _, crossed in found]}


def against(draft_logits: Any, target_logits: Any) -> tuple[float | None, float | None]:
    """Acceptance rate, sum of min(p, q), and cross entropy H(q, p) in nats of one position.

    Args:
        draft_logits: of q, (vocab,).
        target_logits: of p, (vocab,).
    """
    q, p = probabilities(draft_logits), probabilities(target_logits)
    return number(bounds.acceptance_rate(p, q)), number(bounds.cross_entropy(q, p))


def probabilities(logits: Any) -> Any:
    """softmax of (vocab,) logits of any array library, as a float64 numpy array."""
    values = logits.detach().cpu().double().numpy() if hasattr(logits, "detach") else logits
    values = np.asarray(values, dtype=np.float64)
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def number(value: Any) -> float | None:
    """A float that JSON can hold, None for NaN and infinities."""
    value = float(value)
    return value if math.isfinite(value) else None
