"""Run prompts under several arms, interleaved in one process, and record each run.

An arm is ``"target only"``, ``"transformers default"`` (its own assisted decoding), the text of
a policy, or what else the bench's ``answer`` knows.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from ..trace import TraceFile
from .prompts import Prompt

TARGET_ONLY = "target only"
FRAMEWORK = "transformers default"


@dataclass
class Run:
    """One prompt under one arm, all turns together. Times in seconds; ``rounds`` are (drafted,
    accepted); for the others see :mod:`svip_policy.summary`; ``marks`` are (tokens, seconds since
    the start) where a long answer was timed on its way."""

    prompt: str
    task: str
    arm: str
    tokens: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    rounds: list[tuple[int, int]] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    policy_seconds: float = 0.0
    nodes: int = 0
    levels: int = 0
    marks: list[tuple[int, float]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Tokens generated, of all turns."""
        return sum(map(len, self.tokens))


class Answered(NamedTuple):
    """An answer: its tokens, seconds, the handle that recorded its rounds, and marks of a run."""

    tokens: list[int]
    seconds: float
    handle: Any
    marks: Sequence[tuple[int, float]] = ()


Answer = Callable[[Any, str], Answered]
"""Ids (1, length) and an arm to an answer."""


def assisted(
    target: Any, draft: Any, max_new_tokens: int, temperature: float = 0.0, seed: int = 0,
    long_form: Sequence[int] = (),
) -> Answer:
    """Answers by transformers' assisted generation.

    Args:
        target: the model that answers.
        draft: for all arms but target-only decoding.
        max_new_tokens: the most of an answer.
        temperature: 0 for greedy decoding; the draft samples at the same one.
        seed: of sampling; each answer has its own, so that a resumed run gives the same.
        long_form: end of sequence is suppressed, and the time told at these numbers of tokens.
    """
    import svip_adapters
    import torch

    options: dict[str, Any] = {"do_sample": temperature > 0, "max_new_tokens": max_new_tokens}
    if temperature > 0:
        # All tokens, whatever the model's own defaults: those would not be the target's.
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    if long_form:
        options["min_new_tokens"] = max_new_tokens

    def answer(ids: Any, arm: str) -> Answered:
        assistant = None if arm == TARGET_ONLY else draft
        policy = None if arm in (TARGET_ONLY, FRAMEWORK) else arm
        torch.manual_seed(zlib.crc32(f"{seed} {arm} {ids.tolist()}".encode()))
        with svip_adapters.attach(target, policy) as handle:
            clock = _Clock(long_form)
            out = target.generate(
                ids, attention_mask=ids.new_ones(ids.shape), assistant_model=assistant,
                streamer=clock if long_form else None, **options,
            )
            seconds = perf_counter() - clock.began
        return Answered(out[0, ids.shape[1] :].tolist(), seconds, handle, clock.marks)

    return answer


class _Clock:
    """A streamer that tells when an answer had so many tokens."""

    def __init__(self, wanted: Sequence[int]) -> None:
        self._wanted = sorted(wanted)
        self._count: int | None = None
        self.marks: list[tuple[int, float]] = []
        self.began = perf_counter()

    def put(self, tokens: Any) -> None:
        """First the prompt, then what was generated."""
        self._count = 0 if self._count is None else self._count + tokens.numel()
        while self._wanted and self._count >= self._wanted[0]:
            # A round brings several tokens: the number that the time belongs to.
            self.marks.append((self._count, perf_counter() - self.began))
            del self._wanted[0]

    def end(self) -> None:
        """All were given."""


@dataclass
class Bench:
    """The models and settings that all runs share.

    Attributes:
        target: gives ``logits`` of ids (1, length), as a transformers model does.
        tokenizer: the target's.
        answer: how an arm answers, such as :func:`assisted`.
    """

    target: Any
    tokenizer: Any
    answer: Answer

    def encode(self, chat: list[dict[str, str]]) -> Any:
        """Ids of a chat up to where the model is to answer, (1, length).

        A tokenizer without a chat template gets the texts, with blank lines in between.
        """
        templated = self.tokenizer.chat_template is not None
        # As text and then as ids: the versions differ in what a template gives as ids.
        text = "\n\n".join(message["content"] for message in chat) if not templated else \
            self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        encoded = self.tokenizer(text, return_tensors="pt", add_special_tokens=not templated)
        return encoded["input_ids"].to(self.target.device)

    def warm_up(self, arms: Iterable[str]) -> None:
        """Answer once under each arm, not recorded."""
        hello = self.encode([{"role": "user", "content": "Hello"}])
        for arm in arms:
            self.answer(hello, arm)

    def run(self, prompt: Prompt, arm: str, answers: list[str]) -> Run:
        """All turns of ``prompt`` under ``arm``.

        Args:
            prompt: its later turns follow upon ``answers``, the same for every arm.
            arm: see above.
            answers: the assistant's earlier answers, one a turn but the last.
        """
        run = Run(prompt.id, prompt.task, arm)
        for turn in range(len(prompt.turns)):
            answered = self.answer(self.encode(chat_of(prompt, turn, answers)), arm)
            summary = answered.handle.summary()
            run.tokens.append(answered.tokens)
            run.seconds += answered.seconds
            run.rounds += [(r.drafted, r.accepted) for r in answered.handle.rounds]
            run.marks += answered.marks
            run.draft_seconds += summary.draft_seconds
            run.verify_seconds += summary.verify_seconds
            run.policy_seconds += summary.policy_seconds
            run.nodes += summary.nodes
            run.levels += summary.levels
        return run

    def earlier_answers(self, prompt: Prompt) -> list[str]:
        """The target's own answers to all turns but the last: the context for every arm."""
        answers: list[str] = []
        for turn in range(len(prompt.turns) - 1):
            ids = self.encode(chat_of(prompt, turn, answers))
            tokens = self.answer(ids, TARGET_ONLY).tokens
            answers.append(self.tokenizer.decode(tokens, skip_special_tokens=True))
        return answers


class Journal:
    """The runs of a comparison in a trace, written as they come; an unfinished one is gone on with.

    Args:
        path: of the file.
        header: the conditions.

    Raises:
        TraceError: the file was begun under other conditions.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self._file = TraceFile(path, "runs", header)
        self.path, self.runs = path, [Run(**entry) for entry in self._file.entries]
        self._there = {(run.prompt, run.arm) for run in self.runs}

    def add(self, run: Run) -> None:
        """Append one run and flush it."""
        self.runs.append(run)
        self._there.add((run.prompt, run.arm))
        self._file.add(asdict(run))

    def has(self, prompt: str, arm: str) -> bool:
        """Whether this run is there already."""
        return (prompt, arm) in self._there


def run_all(
    bench: Bench, prompts: Iterable[Prompt], arms: list[str], journal: Journal, seed: int,
    progress: Callable[[Iterable[Prompt]], Iterable[Prompt]] = iter,
) -> None:
    """Every prompt under every arm, in an order that is drawn anew for each prompt."""
    for prompt in progress(list(prompts)):
        missing = [arm for arm in arms if not journal.has(prompt.id, arm)]
        if not missing:
            continue
        random.Random(f"{seed} {prompt.id}").shuffle(missing)
        answers = bench.earlier_answers(prompt)
        for arm in missing:
            journal.add(bench.run(prompt, arm, answers))


def divergences(
    bench: Bench, runs: list[Run], prompts: Iterable[Prompt]
) -> Iterator[dict[str, Any]]:
    """Where an arm's tokens first differ from target-only decoding, turn by turn.

    Yields:
        prompt, arm, turn, position in the answer, and the gap between the two largest
        logits of the target there: a gap near 0 is a tie that rounding decides.
    """
    plain = {r.prompt: r for r in runs if r.arm == TARGET_ONLY}
    chats = {p.id: p for p in prompts}
    for run in runs:
        for turn, (mine, its) in enumerate(zip(run.tokens, plain[run.prompt].tokens, strict=True)):
            if mine == its:
                continue
            differs = (n for n, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b)
            position = next(differs, min(len(mine), len(its)))
            gap = _gap(bench, chats[run.prompt], plain[run.prompt], turn, position,
                       [tokens[position] for tokens in (mine, its) if position < len(tokens)])
            yield {"prompt": run.prompt, "arm": run.arm, "turn": turn, "position": position,
                   "gap": gap}


def _gap(bench: Bench, prompt: Prompt, plain: Run, turn: int, position: int, chosen: list[int]) \
        -> float:
    """How far the target's logits of two tokens are apart after ``position`` of its answer.

    Of the two that were chosen there; of its two largest where one answer had ended.
    """
    import torch

    earlier = [bench.tokenizer.decode(t, skip_special_tokens=True) for t in plain.tokens[:turn]]
    ids = bench.encode(chat_of(prompt, turn, earlier))
    answer = ids.new_tensor([plain.tokens[turn][:position]])
    with torch.no_grad():
        logits = bench.target(torch.cat([ids, answer], dim=1)).logits[0, -1].float()
    # Not always the largest ones: the end of sequence may be suppressed, a repetition punished.
    first, second = logits[chosen] if len(chosen) == 2 else logits.topk(2).values
    return abs(float(first - second))


def chat_of(prompt: Prompt, turn: int, answers: list[str]) -> list[dict[str, str]]:
    """The chat up to the user's turn ``turn``, with these answers in between."""
    chat = []
    for n in range(turn):
        chat += [{"role": "user", "content": prompt.turns[n]},
                 {"role": "assistant", "content": answers[n]}]
    return [*chat, {"role": "user", "content": prompt.turns[turn]}]
