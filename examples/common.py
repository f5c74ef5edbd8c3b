"""What the examples share: prompts, provenance, the command line of a comparison."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from svip_policy.ablation.comparison import Comparison
from svip_policy.ablation.prompts import read_prompts, split
from svip_policy.ablation.runner import Bench, Run
from svip_policy.ablation.tuning import measured_in
from svip_policy.provenance import collect

PROMPTS = Path(__file__).with_name("prompts.jsonl")
TASKS = 6


def digest(path: Path) -> str:
    """The first half of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def provenance(args: argparse.Namespace, models: dict[str, str], prompt_file: Path = PROMPTS,
               **others: Any) -> dict[str, Any]:
    """All that the figures depend on, but the arms and the prompts.

    Args:
        args: with dtype, seed and max_new_tokens.
        models: what each is and where from.
        prompt_file: of all prompts that may be among them.
        others: what else matters.
    """
    return collect(
        dtype=args.dtype, models=models, seed=args.seed, prompts_sha256=digest(prompt_file),
        max_new_tokens=args.max_new_tokens, decoding="greedy", **others,
    )


def up_to(tokens: list[int], end: int) -> list[int]:
    """``tokens`` up to the end of sequence, itself included."""
    return tokens[: tokens.index(end) + 1 if end in tokens else None]


def costs_text(runs: list[Run], per_token: Sequence[Run] = ()) -> str:
    """Arguments of ``marginal``, as they were measured in these runs.

    Args:
        runs: of all arms.
        per_token: where a policy sees a chain of which more nodes are verified than it has
            tokens, the runs that tell how many.
    """
    draft, verify = measured_in(runs)
    if per_token:
        verify *= sum(run.nodes for run in per_token) / sum(run.levels for run in per_token)
    return f"draft_cost={draft:.3g}, verify_cost={verify:.3g}"


def parse_args(description: str, parsed: Callable[[str], Any]) -> argparse.Namespace:
    """The command line of a comparison of tuned arms.

    Args:
        description: of the example.
        parsed: reads an arm, or raises ValueError with what is wrong.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--max-new-tokens", type=int, default=48, help="a turn")
    parser.add_argument("--prompts", type=Path, default=PROMPTS,
                        help="JSONL such as Spec-Bench's question.jsonl; of another file than ours "
                             "they are drawn")
    parser.add_argument("--prompts-per-task", type=int, default=3, help="for the comparison")
    parser.add_argument("--tuning-per-task", type=int, default=2,
                        help="for tuning: others, of our file the next ones")
    parser.add_argument("--arms", nargs="+", metavar="ARM",
                        help="compare these with what upstream ships, instead of tuning")
    parser.add_argument("--seed", type=int, default=0,
                        help="of the order of arms, and of a draw of prompts")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    args = parser.parse_args()
    try:
        for arm in args.arms or []:
            parsed(arm)
        read_prompts(args.prompts)  # a wrong file is told of before the models are loaded
    except ValueError as error:  # a ParameterError is one
        parser.error(str(error))
    return args


def comparison(bench: Bench, args: argparse.Namespace, header: dict[str, Any], name: str) \
        -> Comparison:
    """One over the first prompts of our file, tuned on the next ones; or over those of another
    file, drawn by task.

    Args:
        bench: answers.
        args: from :func:`parse_args`.
        header: from :func:`provenance`.
        name: of the files.
    """
    every, cut = read_prompts(args.prompts), args.prompts_per_task * TASKS
    if args.prompts.resolve() == PROMPTS.resolve():
        chosen, tuning = every[:cut], every[cut : cut + args.tuning_per_task * TASKS]
    else:  # with --arms, too, those that would be tuned on are left out
        chosen, tuning = split(every, args.prompts_per_task, args.tuning_per_task, args.seed,
                               tuned=args.arms is None)
    name = name if args.arms is None else f"{name}-arms"
    name = name if args.dtype == "bfloat16" else f"{name}-{args.dtype}"
    return Comparison(bench, chosen, [] if args.arms else tuning, header, args.out / name)
