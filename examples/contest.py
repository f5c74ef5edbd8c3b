"""Every policy against the tuned fixed length, on the embedded pair: by replay, then live.

    python examples/contest.py --prompts question.jsonl --out results/contest

Spec-Bench's question.jsonl has 480 questions of six tasks. Measures what a draft step and
verification cost, records the target's answers to all of them and what the draft would draft from
each position, chooses each policy's parameters on the answers to half of them by replay, replays
the others, and then times the chosen ones live on some of the others. Hours, most of them for the
recording; stopped, the same command goes on. Each part is a command of ``svip``, printed as it
begins.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import sys
from pathlib import Path

from svip_policy import cli

LONGEST = 20  # tokens recorded from each position: the cap of all
TUNED = [
    "constant(length=1..8)",
    f"heuristic(length=1..5, grow=1..2, shrink=1, cap={LONGEST})",
    f"gamma_tune(length=2..4, grow=1, rate=0.25..0.75..0.25, cap={LONGEST})",
    f"svip(threshold=0.2..0.7..0.05, cap={LONGEST})",
    f"ada_edl(threshold=0.2..0.7..0.1, target_rate=0.5..0.9..0.1, cap={LONGEST})",
    f"confidence(threshold=0.1..0.8..0.1, cap={LONGEST})",
    f"adaptive_confidence(miss_cost=1..6, cap={LONGEST})",
    "draft_verify(target_rate=0.3..0.9..0.1, cap=8)",
    f"path_probability(threshold=0.1..0.7..0.05, cap={LONGEST})",
    f"margin(threshold=0.1..0.7..0.1, cap={LONGEST})",
]
UNTUNED = [f"svip(cap={LONGEST})", "marginal", "bandit"]  # the last two get measured costs


def run(*arguments: str) -> str:
    """One command of ``svip``; what it printed.

    Raises:
        SystemExit: it failed.
    """
    print("$ svip", shlex.join(arguments), file=sys.stderr)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = cli.main(list(arguments))
    if status:
        raise SystemExit(status)
    print(said.getvalue())
    return said.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--out", type=Path, default=Path("results/contest"), help="folder")
    parser.add_argument("--per-task", type=int, help="record so many questions a task, not all")
    parser.add_argument("--live-per-task", type=int, default=10, help="0: no live part")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    costs, trace = args.out / "costs.json", args.out / "texts.jsonl"
    prompts = ["--prompts", str(args.prompts)]
    tokens = ["--max-new-tokens", str(args.max_new_tokens)]
    tune = [part for text in TUNED for part in ("--tune", text)]
    policies = [part for text in UNTUNED for part in ("--policy", text)]
    if not costs.exists():
        run("doctor", "--costs", str(costs), "--longest", str(LONGEST))
    run("trace", str(trace), *prompts, *tokens, "--longest", str(LONGEST),
        *(["--per-task", str(args.per_task)] if args.per_task else []))
    replayed = args.out / "replay.md"
    replayed.write_text(run("replay", str(trace), "--costs", str(costs), *policies, *tune),
                        encoding="utf-8")
    if args.live_per_task:
        run("bench", *prompts, *tokens, "--per-task", str(args.live_per_task), "--no-fixed",
            "--costs", str(costs), "--tuned-by", str(trace), *policies, *tune,
            "--out", str(args.out / "live"))


if __name__ == "__main__":
    main()
