"""Draft length policies on a real model: SmolLM2-135M-Instruct and a draft of ours.

    python examples/quickstart.py            # under 6 minutes on two cores
    python examples/quickstart.py --full     # all prompts, longer answers

Every prompt runs under every arm, interleaved, greedily: the target alone, transformers'
own assisted decoding, and the policies. Prints how fast each arm was, what it drafted, and
whether its output was the target's; writes the same as Markdown and JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from common import PROMPTS, TASKS, digest, provenance
from smollm2 import pair
from tqdm import tqdm

import svip_policy
from svip_policy.ablation import report
from svip_policy.ablation.comparison import TIE, refuse_large_gaps
from svip_policy.ablation.prompts import Prompt, read_prompts
from svip_policy.ablation.runner import (
    FRAMEWORK,
    TARGET_ONLY,
    Bench,
    Journal,
    Run,
    assisted,
    divergences,
    run_all,
)

POLICIES = ["constant(5)", "heuristic(5)", "svip"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true",
                        help="all prompts, 128 tokens a turn, equality on all of them")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--max-new-tokens", type=int, help="a turn; default 48, --full 128")
    parser.add_argument("--prompts-per-task", type=int, help="default 3, --full all")
    parser.add_argument("--policies", nargs="+", default=POLICIES, metavar="POLICY",
                        help="as text, e.g. 'constant(2)' 'svip(threshold=0.4)'")
    parser.add_argument("--seed", type=int, default=0, help="of the order of arms")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    args = parser.parse_args()
    if args.max_new_tokens is None:
        args.max_new_tokens = 128 if args.full else 48
    if args.prompts_per_task is None and not args.full:
        args.prompts_per_task = 3
    if args.max_new_tokens < 1 or (args.prompts_per_task is not None and args.prompts_per_task < 1):
        parser.error("--max-new-tokens and --prompts-per-task must be at least 1")
    try:
        args.policies = report.unique(repr(svip_policy.parse(text)) for text in args.policies)
    except svip_policy.errors.SvipError as error:
        parser.error(str(error))
    return args


def chosen(args: argparse.Namespace) -> list[Prompt]:
    """The prompts; a prefix of the file holds the tasks in equal shares."""
    count = args.prompts_per_task
    return read_prompts(PROMPTS)[: None if count is None else count * TASKS]


def conditions(args: argparse.Namespace, arms: list[str], prompts: list[Prompt]) -> dict:
    """All that the figures depend on."""
    return provenance(args, {
        "target": f"SmolLM2-135M-Instruct from {pair.target_name()}",
        "draft": f"examples/smollm2/draft.safetensors, SHA-256 {digest(pair.DRAFT_WEIGHTS)}",
    }) | {"arms": arms, "prompts": len(prompts)}


def bench(dtype: str, max_new_tokens: int) -> Bench:
    target, draft, tokenizer = pair.load_pair(getattr(torch, dtype))
    return Bench(target, tokenizer, assisted(target, draft, max_new_tokens))


def assert_equal_in_float32(
    args: argparse.Namespace, arms: list[str], prompts: list[Prompt]
) -> tuple[str, Cost]:
    """Every arm's greedy output is the target's. Returns a sentence, and the target's cost."""
    some = prompts if args.full else [p for p in prompts if len(p.turns) == 1][:3]
    setup = bench("float32", args.max_new_tokens if args.full else 24)
    for prompt in tqdm(some, "float32 equality", file=sys.stderr):
        answers = setup.earlier_answers(prompt)
        plain, *others = (setup.run(prompt, arm, answers) for arm in arms)
        for other in others:
            if other.tokens != plain.tokens:
                raise SystemExit(f"{other.arm} differs from the target on {prompt.id}: "
                                 f"{other.tokens} against {plain.tokens}")
    return (f"In float32 all arms gave the target's own tokens on {len(some)} prompts.",
            cost(setup.target))


class Cost(NamedTuple):
    """Milliseconds of one pass of the target over 1 and over 8 new tokens."""

    one: float
    eight: float


def cost(target: Any) -> Cost:
    """Medians over 15 passes each, interleaved, at 200 tokens of context."""
    times: dict[int, list[float]] = {1: [], 8: []}
    forward = pair.cached_pass(target)
    for count in [1, 8] * 16:
        began = perf_counter()
        forward(count)
        times[count].append(1000 * (perf_counter() - began))
    return Cost(*(median(times[count][1:]) for count in (1, 8)))


def write_up(header: dict, runs: list[Run], notes: list[str]) -> str:
    """The report as Markdown."""
    report.check_provenance(header)
    v = header["versions"]
    policies = [arm for arm in header["arms"] if arm not in (TARGET_ONLY, FRAMEWORK)]
    svip = [arm for arm in policies if arm.startswith("svip")]
    constant = [arm for arm in policies if arm.startswith("constant")]
    compared = [report.comparison(runs, s, base) for s in svip for base in [TARGET_ONLY, *constant]]
    return "\n".join([
        f"## Greedy decoding, {header['models']['target']}", "",
        f"{header['prompts']} prompts, up to {header['max_new_tokens']} tokens a turn, "
        f"{header['dtype']}; {header['device']}, {header['threads']} threads; torch "
        f"{v['torch']}, transformers {v['transformers']}, commit {header['commit']}.", "",
        "Speedup over target-only decoding (tokens per second, all tokens over all seconds):", "",
        report.speedup_table(runs), "",
        "Tokens drafted a round / accepted a round (the target's own not counted) / pooled "
        "acceptance rate:", "", report.lengths_table(runs), "", "Where the time went:", "",
        report.seconds_table(runs), "",
        *(f"- {line}" for line in [*compared, *report.verdicts(runs), *notes]), "",
    ])


def main() -> None:
    args = arguments()
    warnings.filterwarnings("ignore", message=".*generation_config.*")
    arms, prompts = [TARGET_ONLY, FRAMEWORK, *args.policies], chosen(args)
    header = conditions(args, arms, prompts)
    print("Loading the models (the first start converts the target, about 20 s)", file=sys.stderr)
    equality, float32 = assert_equal_in_float32(args, arms, prompts)
    bfloat16 = cost(pair.load_target(torch.bfloat16)[0])
    setup = bench(args.dtype, args.max_new_tokens)
    journal = Journal(args.out / "quickstart.partial.jsonl", header)
    setup.warm_up(arms)
    run_all(setup, prompts, arms, journal, args.seed,
            lambda items: tqdm(items, f"{len(arms)} arms", unit="prompt", file=sys.stderr))
    found = list(divergences(setup, journal.runs, prompts))
    notes = [equality, *report.divergence_notes(header | {"tie": TIE[args.dtype]}, found),
             f"One pass of the target over 1 and over 8 tokens: {bfloat16.one:.0f} and "
             f"{bfloat16.eight:.0f} ms in bfloat16, {float32.one:.0f} and {float32.eight:.0f} ms "
             f"in float32. One token alone is "
             f"{'faster' if float32.one < bfloat16.one else 'slower'} in float32 here; verifying "
             "several at little more than the cost of one, as a GPU "
             "does, is what bfloat16 gives."]
    text = write_up(header, journal.runs, notes)
    print(text)
    name = "quickstart" if args.dtype == "bfloat16" else f"quickstart-{args.dtype}"
    (args.out / f"{name}.md").write_text(text, encoding="utf-8")
    (args.out / f"{name}.json").write_text(json.dumps(
        {"conditions": header, "notes": notes, "divergences": found,
         "runs": [asdict(r) for r in journal.runs]}, indent=1), encoding="utf-8")
    journal.path.unlink()
    print(f"Written to {args.out / name}.md and .json", file=sys.stderr)
    refuse_large_gaps(args.dtype, found)


if __name__ == "__main__":
    main()
