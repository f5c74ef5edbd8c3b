"""What the examples share: prompts, provenance, tuned arms, the report of a comparison."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from svip_policy.ablation import report
from svip_policy.ablation.runner import (
    TARGET_ONLY,
    Bench,
    Journal,
    Prompt,
    Run,
    divergences,
    read_prompts,
    run_all,
)
from svip_policy.provenance import collect, versions

PROMPTS = Path(__file__).with_name("prompts.jsonl")
TASKS = 6
# Logits of 16 to 32, which are the largest here, are 0.125 apart in bfloat16.
TIE = {"bfloat16": 0.5, "float32": 1e-3}


def digest(path: Path) -> str:
    """The first half of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def provenance(args: argparse.Namespace, models: dict[str, str],
               others: dict[str, str] | None = None) -> dict[str, Any]:
    """All that the figures depend on, but the arms and the prompts.

    Args:
        args: with dtype, seed and max_new_tokens.
        models: what each is and where from.
        others: versions beside those of torch, transformers, numpy and this package.
    """
    return collect(
        versions=others or {}, dtype=args.dtype, models=models, seed=args.seed,
        prompts_sha256=digest(PROMPTS), max_new_tokens=args.max_new_tokens, decoding="greedy",
    )


def divergence_notes(dtype: str, found: list[dict[str, Any]]) -> list[str]:
    """Whether outputs were identical; if not, where they part and how near a tie it was."""
    if not found:
        return [f"In {dtype} all arms gave identical greedy output."]
    listed = [f"{d['prompt']} turn {d['turn'] + 1} under {d['arm']} at token {d['position']} "
              f"(top-two gap {d['top_two_gap']:.3f})" for d in found]
    ties = sum(d["top_two_gap"] <= TIE[dtype] for d in found)
    return [f"In {dtype} {len(found)} answers part from the target's, {ties} of them where its two "
            f"largest logits are within {TIE[dtype]}, which a pass over several tokens may round "
            "otherwise than a pass over one: " + "; ".join(listed) + "."]


def refuse_large_gaps(dtype: str, found: list[dict[str, Any]]) -> None:
    """End with an error if an answer parts from the target's where there is no near-tie."""
    if any(d["top_two_gap"] > TIE[dtype] for d in found):
        raise SystemExit("an answer differs from the target's at a position that is no near-tie")


def up_to(tokens: list[int], end: int) -> list[int]:
    """``tokens`` up to the end of sequence, itself included."""
    return tokens[: tokens.index(end) + 1 if end in tokens else None]


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
    parser.add_argument("--prompts-per-task", type=int, default=3, help="for the comparison")
    parser.add_argument("--tuning-per-task", type=int, default=2,
                        help="for tuning: the next ones of the file")
    parser.add_argument("--arms", nargs="+", metavar="ARM",
                        help="compare these with what upstream ships, instead of tuning")
    parser.add_argument("--seed", type=int, default=0, help="of the order of arms")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    args = parser.parse_args()
    try:
        for arm in args.arms or []:
            parsed(arm)
    except ValueError as error:
        parser.error(str(error))
    return args


class Comparison:
    """Arms on some prompts, some of them chosen on others; written as it goes, resumable.

    Args:
        bench: answers.
        args: from :func:`parse_args`.
        header: from :func:`provenance`.
        name: of the files.
    """

    def __init__(self, bench: Bench, args: argparse.Namespace, header: dict[str, Any],
                 name: str) -> None:
        self.bench, self.args, self.header = bench, args, header
        self.name = name if args.dtype == "bfloat16" else f"{name}-{args.dtype}"
        every, cut = read_prompts(PROMPTS), args.prompts_per_task * TASKS
        self.prompts = every[:cut]
        self._others = every[cut : cut + args.tuning_per_task * TASKS]
        self._journals: list[Journal] = []
        self.best: dict[str, str] = {}
        self.tried: dict[str, int] = {}

    def warm_up(self, arms: Iterable[str]) -> None:
        """Answer once under each arm, not recorded."""
        hello = self.bench.encode([{"role": "user", "content": "Hello"}])
        for arm in arms:
            self.bench.answer(hello, arm)

    def tune(self, families: dict[str, list[str]]) -> None:
        """Find the arm of each family with the most tokens a second on the other prompts."""
        arms = [TARGET_ONLY, *(arm for family in families.values() for arm in family)]
        runs = self._run(self._others, arms, "tuning")
        self.best = {name: max(family, key=lambda arm: report.speedup(runs, arm).total)
                     for name, family in families.items()}
        self.tried = {name: len(family) for name, family in families.items()}

    def compare(self, arms: list[str]) -> list[Run]:
        """All arms, and target-only decoding, on the prompts of the comparison."""
        self.header |= {"arms": report.unique([TARGET_ONLY, *arms]), "prompts": len(self.prompts),
                        "tuning_prompts": len(self._others) if self.best else 0}
        return self._run(self.prompts, self.header["arms"], "partial")

    def _run(self, prompts: list[Prompt], arms: list[str], kind: str) -> list[Run]:
        journal = Journal(self.args.out / f"{self.name}.{kind}.jsonl",
                          {**self.header, "arms": arms, "of": [p.id for p in prompts]})
        self._journals.append(journal)
        run_all(self.bench, prompts, arms, journal, self.args.seed,
                lambda items: tqdm(items, f"{len(arms)} arms", unit="prompt", file=sys.stderr))
        return journal.runs

    def finish(self, title: str, conventions: str, base: str) -> None:
        """Check the texts, write Markdown and JSON, remove what a resumption would have needed.

        Args:
            title: of the report.
            conventions: a paragraph on how to read it.
            base: the arm that the others are compared with.
        """
        report.check_provenance(self.header)
        order = self.header["arms"].index
        runs = sorted(self._journals[-1].runs, key=lambda r: order(r.arm))
        # Arms overshoot max_new_tokens by what their last round brought.
        length = self.args.max_new_tokens
        cut = [replace(r, tokens=[tokens[:length] for tokens in r.tokens]) for r in runs]
        found = list(divergences(self.bench, cut, self.prompts))
        text = self._text(title, conventions, base, runs, found)
        print(text)
        place = self.args.out / self.name
        place.with_suffix(".md").write_text(text, encoding="utf-8")
        place.with_suffix(".json").write_text(json.dumps(
            {"conditions": self.header, "tuned": self.best, "divergences": found,
             "runs": [asdict(r) for r in runs],
             "tuning": [asdict(r) for j in self._journals[:-1] for r in j.runs]}),
            encoding="utf-8")
        for journal in self._journals:
            journal.path.unlink()
        print(f"Written to {place}.md and .json", file=sys.stderr)
        refuse_large_gaps(self.args.dtype, found)

    def _text(self, title: str, conventions: str, base: str, runs: list[Run],
              found: list[dict[str, Any]]) -> str:
        h, v = self.header, self.header["versions"]
        arms = [arm for arm in h["arms"] if arm not in (TARGET_ONLY, base)]
        known = versions()
        upstream = "".join(f", {name} {v[name]}" for name in v if name not in known)
        return "\n".join([
            f"## {title}, {h['models']['target']}", "",
            f"{h['prompts']} prompts, up to {h['max_new_tokens']} tokens a turn, {h['dtype']}; "
            f"{h['device']}, {h['threads']} threads; torch {v['torch']}, transformers "
            f"{v['transformers']}{upstream}, commit {h['commit']}.", "", conventions, "",
            report.trees_table(runs, base), "", "By task:", "", report.speedup_table(runs), "",
            "Where the time went:", "", report.seconds_table(runs), "",
            *(f"- Tuned on {h['tuning_prompts']} other prompts: {arm}, of {self.tried[name]} tried."
              for name, arm in self.best.items()),
            *(f"- {report.comparison(runs, arm, base)}" for arm in arms),
            *(f"- {line}" for line in [*report.verdicts(runs),
                                       *divergence_notes(h["dtype"], found)]), "",
        ])
