"""Upstream EAGLE-2 on SmolLM2-135M-Instruct, with and without a policy.

    git clone https://github.com/SafeAILab/EAGLE
    SVIP_EAGLE=EAGLE python examples/eagle.py

Every prompt runs greedily under every arm, interleaved: the target alone (EAGLE's
``naivegenerate``), EAGLE as shipped, EAGLE with the fixed depth and tree size, and with the
policies' thresholds and tree sizes, that were fastest on other prompts, and the policies as they
are. Prints speedups, levels drafted, nodes verified and tokens accepted; writes the same as
Markdown and JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from quickstart import PROMPTS, TASKS, TIE, commit, digest, divergence_notes
from smollm2 import eagle_pair, pair
from svip_adapters import eagle
from tqdm import tqdm

import svip_policy
from svip_policy.ablation import report
from svip_policy.ablation.runner import (
    TARGET_ONLY,
    Answer,
    Bench,
    Journal,
    Run,
    divergences,
    read_prompts,
    run_all,
)


class Tree(NamedTuple):
    """EAGLE's own settings of a tree."""

    total_token: int = 60
    depth: int = 7
    top_k: int = 10


SHIPPED = f"as shipped on {tuple(Tree())}"
SIZES = (11, 26, 60)
# One level has top_k nodes, whatever the size.
FIXED = [f"constant({n}) on {tuple(Tree(size))}" for n in (1, 2, 3, 4)
         for size in (SIZES if n > 1 else SIZES[:1])]
TUNED = {
    "constant": FIXED,
    "svip": [f"svip(threshold={h}) on {tuple(Tree(size))}" for h in (0.3, 0.5, 0.7)
             for size in SIZES[:2]],
    "path_probability": [f"path_probability(threshold={t}) on {tuple(Tree(size))}"
                         for t in (0.1, 0.3, 0.6) for size in SIZES[:2]],
}
UNTUNED = [f"{name} on {tuple(Tree())}" for name in ("svip", "path_probability")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--max-new-tokens", type=int, default=48, help="a turn")
    parser.add_argument("--prompts-per-task", type=int, default=3, help="for the comparison")
    parser.add_argument("--tuning-per-task", type=int, default=2,
                        help="for tuning: the next ones of the file")
    parser.add_argument("--policies", nargs="+", metavar="ARM",
                        help="compare these instead of tuning, e.g. 'constant(2) on (26, 7, 10)'")
    parser.add_argument("--seed", type=int, default=0, help="of the order of arms")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    args = parser.parse_args()
    try:
        for arm in args.policies or []:
            parsed(arm)
    except ValueError as error:
        parser.error(str(error))
    return args


def parsed(arm: str) -> tuple[str | None, Tree]:
    """The policy text, None for EAGLE's own depth, and the tree of an arm."""
    match = re.fullmatch(r"(.+) on \((\d+), (\d+), (\d+)\)", arm)
    if match is None:
        raise ValueError(f"{arm!r} is no arm; write 'svip on (60, 7, 10)', a policy and EAGLE's "
                         "total_token, depth and top_k")
    policy = None if match[1] == "as shipped" else repr(svip_policy.parse(match[1]))
    return policy, Tree(*map(int, match.groups()[1:]))


def with_tree(model: Any, tree: Tree) -> None:
    """Set what ``EaModel.from_pretrained`` would have set."""
    layer = model.ea_layer
    layer.total_tokens, layer.depth, layer.top_k = tree.total_token - 1, tree.depth, tree.top_k
    layer.init_tree()


def answering(model: Any, max_new_tokens: int) -> Answer:
    """Answers by upstream's own generation.

    EAGLE ends after the round that exceeds ``max_new_tokens``, or that has the end of
    sequence in it: what it wrote beyond the end does not count.
    """
    end = model.tokenizer.eos_token_id

    def answer(ids: Any, arm: str) -> tuple[list[int], float, Any]:
        policy, tree = (None, Tree()) if arm == TARGET_ONLY else parsed(arm)
        with_tree(model, tree)
        generate: Callable[..., Any] = (
            model.naivegenerate if arm == TARGET_ONLY else model.eagenerate)
        with eagle.attach(model, policy) as handle:
            began = perf_counter()
            # It ends once it exceeds what it is given; all arms alike.
            out = generate(ids, max_new_tokens=max_new_tokens - 1)
            seconds = perf_counter() - began
        tokens = out[0, ids.shape[1] :].tolist()
        return tokens[: tokens.index(end) + 1 if end in tokens else None], seconds, handle

    return answer


class Target:
    """The target for logits of whole sequences, without EAGLE's caches."""

    def __init__(self, model: Any) -> None:
        self._model, self.device = model, model.base_model.device

    def __call__(self, ids: Any) -> Any:
        """Logits of ids (1, length), as a transformers model gives them."""
        self._model.base_model.model.tree_mask = None
        return self._model.base_model(ids)


def fastest(runs: list[Run], arms: list[str]) -> str:
    """The arm with the most tokens a second in all."""
    return max(arms, key=lambda arm: report.speedup(runs, arm).total)


def write_up(header: dict[str, Any], runs: list[Run], best: dict[str, str],
             notes: list[str]) -> str:
    """The report as Markdown."""
    report.check_provenance(header)
    v = header["versions"]
    base = best.get("constant", header["arms"][1])
    arms = [arm for arm in header["arms"] if arm not in (TARGET_ONLY, base)]
    return "\n".join([
        f"## EAGLE-2, greedy decoding, {header['models']['target']}", "",
        f"{header['prompts']} prompts, up to {header['max_new_tokens']} tokens a turn, "
        f"{header['dtype']}; {header['device']}, {header['threads']} threads; torch {v['torch']}, "
        f"transformers {v['transformers']}, EAGLE {v['EAGLE']}, commit {header['commit']}.", "",
        "An arm is a policy on EAGLE's (total_token, depth, top_k). Speedup is of all tokens over "
        "all seconds, relative to target-only decoding by EAGLE's own naivegenerate; the intervals "
        "are of the ratio prompt by prompt. Levels, nodes and accepted tokens are means a round, "
        "the target's own token not counted.", "",
        report.trees_table(runs, base), "", "By task:", "", report.speedup_table(runs), "",
        "Where the time went:", "", report.seconds_table(runs), "",
        *(f"- tuned on {header['tuning_prompts']} other prompts: {arm}, of "
          f"{len(TUNED[name])} tried." for name, arm in best.items()),
        *(f"- {report.comparison(runs, arm, base)}" for arm in arms),
        *(f"- {line}" for line in [*report.verdicts(runs), *notes]), "",
    ])


def compare(bench: Bench, prompts: list[Any], arms: list[str], header: dict[str, Any], path: Path,
            seed: int) -> Journal:
    """All runs of these arms, taken up where an earlier start was interrupted."""
    journal = Journal(path, {**header, "arms": arms, "of": [p.id for p in prompts]})
    run_all(bench, prompts, arms, journal, seed,
            lambda items: tqdm(items, f"{len(arms)} arms", unit="prompt", file=sys.stderr))
    return journal


def main() -> None:
    args = arguments()
    model = eagle_pair.load_eagle(getattr(torch, args.dtype))
    bench = Bench(Target(model), model.tokenizer, answering(model, args.max_new_tokens))
    every = read_prompts(PROMPTS)
    cut = args.prompts_per_task * TASKS
    prompts, tuning = every[:cut], every[cut : cut + args.tuning_per_task * TASKS]
    header = {
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "numpy")}
        | {"svip-policy": svip_policy.__version__, "python": platform.python_version(),
           "EAGLE": commit(eagle_pair.checkout())},
        "device": f"CPU, {os.cpu_count()} cores, {platform.machine()}", "dtype": args.dtype,
        "threads": torch.get_num_threads(), "models": {
            "target": f"SmolLM2-135M-Instruct from {pair.target_name()}",
            "head": f"examples/smollm2/eagle, SHA-256 {digest(eagle_pair.HEAD / WEIGHTS)}"},
        "seed": args.seed, "commit": commit(), "prompts": len(prompts),
        "tuning_prompts": len(tuning), "prompts_sha256": digest(PROMPTS),
        "max_new_tokens": args.max_new_tokens, "decoding": "greedy",
    }
    hello = bench.encode([{"role": "user", "content": "Hello"}])
    for arm in (TARGET_ONLY, SHIPPED, *FIXED[:2]):  # warm-up, not recorded
        bench.answer(hello, arm)
    best, journals = {}, []
    if args.policies is None:
        tried = [TARGET_ONLY, *(arm for arms in TUNED.values() for arm in arms)]
        journals.append(compare(bench, tuning, tried, header, args.out / "eagle.tuning.jsonl",
                                args.seed))
        best = {name: fastest(journals[0].runs, arms) for name, arms in TUNED.items()}
    arms = report.unique([TARGET_ONLY, SHIPPED, *(args.policies or [*best.values(), *UNTUNED])])
    header["arms"] = arms
    journals.append(compare(bench, prompts, arms, header, args.out / "eagle.partial.jsonl",
                            args.seed))
    finish(args, bench, header, best, journals, prompts)


WEIGHTS = "model.safetensors"


def finish(args: argparse.Namespace, bench: Bench, header: dict[str, Any], best: dict[str, str],
           journals: list[Journal], prompts: list[Any]) -> None:
    """Check the texts, write the results, and remove what an interrupted run would have needed."""
    runs = journals[-1].runs
    # Arms overshoot max_new_tokens by what their last round brought.
    found = list(divergences(bench, [trimmed(r, args.max_new_tokens) for r in runs], prompts))
    notes = divergence_notes(args.dtype, found)
    text = write_up(header, runs, best, notes)
    print(text)
    name = "eagle" if args.dtype == "bfloat16" else f"eagle-{args.dtype}"
    (args.out / f"{name}.md").write_text(text, encoding="utf-8")
    (args.out / f"{name}.json").write_text(json.dumps(
        {"conditions": header, "tuned": best, "notes": notes, "divergences": found,
         "runs": [asdict(r) for r in runs],
         "tuning": [asdict(r) for j in journals[:-1] for r in j.runs]}, indent=1),
        encoding="utf-8")
    for journal in journals:
        journal.path.unlink()
    print(f"Written to {args.out / name}.md and .json", file=sys.stderr)
    if any(d["top_two_gap"] > TIE[args.dtype] for d in found):
        raise SystemExit("an answer differs from the target's at a position that is no near-tie")


def trimmed(run: Run, length: int) -> Run:
    """The run with answers of at most ``length`` tokens."""
    return replace(run, tokens=[tokens[:length] for tokens in run.tokens])


if __name__ == "__main__":
    main()
