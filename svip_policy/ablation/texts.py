"""Texts recorded for replay, and policies on them: predicted speeds beside the oracle's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from .. import provenance
from ..cost import CostModel
from ..errors import ParameterError
from ..replay import KIND, Text, first_mismatch, oracle, read, replay, seconds
from ..summary import Round, Summary
from ..trace import TraceFile
from . import report
from .models import Models
from .prompts import Prompt
from .runner import TARGET_ONLY, Answered, Bench, chat_of
from .statistics import Speedup, paired_speedup

ORACLE, FIRST_MISMATCH = "oracle", "stop at first mismatch"


def record(
    models: Models, prompts: Iterable[Prompt], path: Path, header: dict[str, Any], *,
    max_new_tokens: int, longest: int, distributions: bool,
    progress: Callable[[Iterable[Prompt]], Iterable[Prompt]] = iter,
) -> int:
    """Record every turn of ``prompts`` that the trace does not hold yet; how many it holds then.

    Args:
        models: both.
        prompts: each turn follows upon the target's own earlier answers.
        path: of the trace.
        header: the conditions.
        max_new_tokens: of an answer.
        longest: how many tokens are drafted from a position.
        distributions: see :func:`svip_adapters.hf_text.record_text`.
        progress: wraps the prompts.
    """
    from svip_adapters.hf_text import record_text

    file = TraceFile(path, KIND, header)
    bench = Bench(models.target, models.tokenizer, _never)
    there = {(entry["prompt"], entry["turn"]): entry["tokens"] for entry in file.entries}
    for prompt in progress(list(prompts)):
        answers: list[str] = []
        for turn in range(len(prompt.turns)):
            if (prompt.id, turn) not in there:
                ids = bench.encode(chat_of(prompt, turn, answers))
                text = record_text(
                    models.target, models.draft, ids, max_new_tokens=max_new_tokens,
                    longest=longest, prompt=prompt.id, task=prompt.task, turn=turn,
                    distributions=distributions)
                pieces = [models.tokenizer.decode([token]) for token in text.tokens]
                file.add(replace(text, pieces=pieces).as_dict())
                there[prompt.id, turn] = text.tokens
            answers.append(models.tokenizer.decode(there[prompt.id, turn],
                                                   skip_special_tokens=True))
    return len(there)


def load(path: Path) -> tuple[dict[str, Any], list[Text]]:
    """The conditions and the texts of a trace that tells them.

    Raises:
        TraceError: the file is none.
        ParameterError: it holds no text, or does not tell its conditions.
    """
    header, texts = read(path)
    absent = provenance.missing(header)
    if absent:
        raise ParameterError(f"{path} does not tell its conditions: no {absent}")
    if not texts:
        raise ParameterError(f"{path} holds no texts: record some with 'svip trace'")
    return header, texts


def conditions(trace: Mapping[str, Any], texts: Sequence[Text], costs: Mapping[str, Any]) \
        -> list[str]:
    """What a replay is of, in sentences.

    Args:
        trace: header of the texts.
        texts: all of them.
        costs: conditions under which costs were measured.

    Raises:
        ParameterError: they are of other models, or another dtype or device, than the texts.
    """
    same_conditions(trace, costs, "the trace", "the costs")
    models = ", ".join(f"{role}: {name}" for role, name in trace["models"].items())
    prompts = len({text.prompt for text in texts})
    return [f"{prompts} prompts, {len(texts)} answers of up to {trace['max_new_tokens']} tokens, "
            f"greedy, {trace['dtype']}, {trace['device']}; {models}.",
            "Predicted from measured costs, prompts' first passes and the framework's own time "
            "not counted."]


def same_conditions(one: Mapping[str, Any], other: Mapping[str, Any], its: str, their: str) -> None:
    """Whether two are of the same models, dtype and device.

    Args:
        one: conditions.
        other: conditions.
        its: name of the first, in a message.
        their: name of the second.

    Raises:
        ParameterError: they are not.
    """
    differ = [name for name in ("models", "dtype", "device") if one[name] != other.get(name)]
    if differ:
        raise ParameterError("; ".join(
            f"{its} is of {name} {one[name]}, {their} of {other.get(name)}" for name in differ)
            + ": take both with the same models, dtype and device")


def _never(ids: Any, arm: str) -> Answered:
    raise AssertionError("answers are recorded, not benched")


@dataclass(frozen=True)
class Replayed:
    """A policy on all texts.

    Attributes:
        policy: its text, or the name of an oracle.
        each: the rounds of each text.
        texts: that they are of.
        plain_seconds: of target-only decoding, predicted.
    """

    policy: str
    each: list[list[Round]]
    texts: Sequence[Text]
    plain_seconds: float

    @property
    def rounds(self) -> list[Round]:
        """Of all texts."""
        return [r for rounds in self.each for r in rounds]

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(len(text.tokens) for text in self.texts)

    def against(self, base: Replayed) -> Speedup:
        """Predicted speed over that of another policy, paired by prompt."""
        tokens: dict[str, int] = {}
        mine, its = dict[str, float](), dict[str, float]()
        for text, ours, theirs in zip(self.texts, self.each, base.each, strict=True):
            tokens[text.prompt] = tokens.get(text.prompt, 0) + len(text.tokens)
            mine[text.prompt] = mine.get(text.prompt, 0.0) + seconds(ours)
            its[text.prompt] = its.get(text.prompt, 0.0) + seconds(theirs)
        counts = list(tokens.values())
        return paired_speedup(counts, list(mine.values()), counts, list(its.values()))

    @property
    def summary(self) -> Summary:
        """Totals."""
        return Summary.of(self.rounds)

    @property
    def speedup(self) -> float:
        """Predicted, over target-only decoding, prompts' first passes not counted."""
        return self.plain_seconds / seconds(self.rounds)


def halve(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """The texts of every other prompt, to tune on, and those of the others.

    Raises:
        ParameterError: there is but one prompt.
    """
    first = set(list(dict.fromkeys(text.prompt for text in texts))[::2])
    halves = [t for t in texts if t.prompt in first], [t for t in texts if t.prompt not in first]
    if not halves[1]:
        raise ParameterError("what is tuned on some prompts is tested on others: record two")
    return halves


def tuned(texts: Sequence[Text], families: Mapping[str, list[str]], cost: CostModel) \
        -> dict[str, str]:
    """The policy of each family that is the fastest on ``texts``."""
    best = {}
    for name, family in families.items():
        speeds = {r.policy: r.speedup for r in replay_all(texts, family, cost)}
        best[name] = max(family, key=speeds.__getitem__)
    return best


def replay_all(texts: Sequence[Text], policies: Iterable[str], cost: CostModel) -> list[Replayed]:
    """Each policy on all texts, and the oracles; the best first."""
    plain = sum(cost.verify_seconds(0, text.length + at) for text in texts
                for at in range(len(text.tokens)))
    arms: dict[str, Callable[[Text], list[Round]]] = {
        ORACLE: lambda text: oracle(text, cost),
        FIRST_MISMATCH: lambda text: first_mismatch(text, cost),
    }
    for policy in policies:
        arms[policy] = lambda text, policy=policy: replay(text, policy, cost)  # type: ignore[misc]
    found = [Replayed(name, [run(text) for text in texts], texts, plain)
             for name, run in arms.items()]
    return sorted(found, key=lambda r: -r.speedup)


def replay_table(found: Sequence[Replayed], measured: Mapping[str, float] | None = None,
                 base: str | None = None) -> str:
    """Predicted speedups, and the share of the oracle's gain that each policy reaches.

    Args:
        found: with the oracle.
        measured: speedup of live runs by policy, to stand beside the prediction.
        base: a policy that the others are compared with, prompt by prompt.
    """
    measured = measured or {}
    its = next((r for r in found if r.policy == base), None)
    best = next(r for r in found if r.policy == ORACLE).speedup
    rows = []
    for r in found:
        s = r.summary
        share = f"{(r.speedup - 1) / (best - 1):.0%}" if best > 1 else ""
        live = [f"{measured[r.policy]:.3f}" if r.policy in measured else ""] if measured else []
        ratio = [] if its is None else [
            "" if r is its else report.with_interval(r.against(its), 3)]
        rows.append([r.policy, f"{r.speedup:.3f}", *live, *ratio, share, s.rounds,
                     f"{s.drafted_length:.2f}", f"{s.accepted_length:.2f}",
                     f"{s.acceptance_rate:.0%}"])
    plain = ["1.000"] if measured else []
    rows.append([TARGET_ONLY, "1.000", *plain, *([] if its is None else [""]), "0%",
                 found[0].tokens, "", "", ""])
    return str(tabulate(rows, ["", "predicted speedup", *(["measured"] if measured else []),
                               *([] if its is None else [f"against {base}, 95% interval"]),
                               "of the oracle's gain", "rounds",
                               "drafted a round", "accepted a round", "acceptance rate"],
                        "pipe", disable_numparse=True))
