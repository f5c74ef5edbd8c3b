"""Prompts from JSONL files of several forms, and their split into tuning and held-out ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ParameterError

# MT-Bench's categories are one task of Spec-Bench; only in files of their form.
_CONVERSATION = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem",
                 "humanities")
_NAMES = dict.fromkeys(_CONVERSATION, "conversation") | {"math_reasoning": "math"}


@dataclass(frozen=True)
class Prompt:
    """One prompt: an id, the task it belongs to, and one or more user turns."""

    id: str
    task: str
    turns: tuple[str, ...]


def read_prompts(path: Path, field: str | None = None) -> list[Prompt]:
    """Prompts of a JSONL file.

    Args:
        path: of a file with ``turns`` (ours, Spec-Bench's and MT-Bench's question.jsonl) or with
            ``prompt`` (the SVIP authors' spec-bench.jsonl), and where it has them ``id`` or
            ``question_id``, ``task`` or ``category``.
        field: where the text is, in a file of another form.

    Raises:
        ParameterError: there is no such file, or no prompt in it, or two have one id; or names
            the line that is not of this form.
    """
    if not path.is_file():
        raise ParameterError(f"no prompts at {path}: there is no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParameterError(f"{path} is not in UTF-8 ({error.reason}): convert it") from error
    prompts: dict[str, Prompt] = {}
    # Not splitlines(): JSON may hold other line separators as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line), number, field)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = f"the text {field!r}" if field else "turns or prompt"
            raise ParameterError(
                f"{path}, line {number}: give a JSON object with {wanted} ({error!r})"
            ) from error
        if prompt.id in prompts:
            raise ParameterError(f"{path}, line {number}: a second prompt with id {prompt.id!r}")
        prompts[prompt.id] = prompt
    if not prompts:
        raise ParameterError(f"{path} holds no prompts")
    return list(prompts.values())


def _prompt(entry: dict[str, Any], number: int, field: str | None) -> Prompt:
    texts = [entry[field]] if field else entry["turns"] if "turns" in entry else [entry["prompt"]]
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise TypeError("no text, or not a list of them")
    task = str(entry.get("task", entry.get("category", "all prompts")))
    if "question_id" in entry and "turns" in entry and "task" not in entry:
        task = _NAMES.get(task, task)
    return Prompt(str(entry.get("id", entry.get("question_id", number))), task, tuple(texts))


def split(
    prompts: Iterable[Prompt], per_task: int | None, tuning_per_task: int, seed: int,
    tuned: bool = True,
) -> tuple[list[Prompt], list[Prompt]]:
    """Held-out prompts and those to tune on, drawn from each task.

    Args:
        prompts: of all tasks.
        per_task: how many to hold out of each; None takes all that are not tuned on.
        tuning_per_task: how many to tune on.
        seed: of the draw.
        tuned: whether anything is; if not, those of the tuning are still left out where a task has
            enough, so that what was tuned in another run is not tested on what it was tuned on.

    Raises:
        ParameterError: a task has too few.
    """
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    held_out, tuning = [], []
    for task, mine in by_task.items():
        least = 1 if per_task is None else per_task
        first = tuning_per_task if tuned else \
            0 if per_task is None else max(0, min(tuning_per_task, len(mine) - per_task))
        if len(mine) < first + least:
            raise ParameterError(f"task {task!r} has {len(mine)} prompts, {first + least} are "
                                 "wanted: take fewer a task, or tune on fewer")
        random.Random(f"{seed} {task}").shuffle(mine)
        held_out += mine[first:None if per_task is None else first + per_task]
        tuning += mine[:first] if tuned else []
    return held_out, tuning
