"""What this package costs on the embedded pair: the policies, and the drafting loop.

    python examples/overhead.py

First the host time of each policy per drafted token, beside one step of the draft (the
budget is 1% of it). Then drafting by the adapter's lean loop against drafting by a
``generate`` call a round, as transformers does: same tokens, paired. Writes
results/overhead.md. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from time import perf_counter

import svip_adapters
import torch
from smollm2 import pair
from tabulate import tabulate

from svip_policy import POLICIES, PolicyDriver, RoundStart

VOCABULARIES = (49152, 152064)
ROUND = 5  # drafted tokens between two verifications


def microseconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call, after some that are not counted."""
    for _ in range(repeats // 10 + 1):
        call()
    times = []
    for _ in range(repeats):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return 1e6 * median(times)


def policy_round(name: str, logits: torch.Tensor) -> Callable[[], object]:
    """One round as an adapter drives it: begin, ROUND tokens, outcome."""
    driver = PolicyDriver(POLICIES[name]())

    def call() -> None:
        driver.begin(RoundStart(budget=40))
        for token in range(ROUND):
            driver.observe(logits, token)
        driver.verified(ROUND - 1)

    return call


def draft_step(dtype: torch.dtype) -> float:
    """Microseconds of one forward of the embedded draft over one token, at 200 cached."""
    _, draft, _ = pair.load_pair(dtype)
    forward = pair.cached_pass(draft)
    return microseconds(lambda: forward(1), 200)


def loops(pairs: int, max_new_tokens: int = 48) -> list[list[str]]:
    """Milliseconds of drafting a round, and of all a token, by each loop, interleaved."""
    target, draft, tokenizer = pair.load_pair(torch.bfloat16)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Explain how a bicycle stays upright."}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True)
    figures: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for n in range(2 * (pairs + 1)):
        lean = n % 2 == 0
        with svip_adapters.attach(target, f"constant({ROUND})", lean=lean) as handle:
            began = perf_counter()
            out = target.generate(**ids, assistant_model=draft, do_sample=False,
                                  max_new_tokens=max_new_tokens)
            seconds = perf_counter() - began
        summary = handle.summary()
        tokens = out.shape[1] - ids["input_ids"].shape[1]
        if n > 1:  # the first of each warms up
            figures[lean].append((1000 * summary.draft_seconds / summary.rounds,
                                  1000 * seconds / tokens))
    rows = []
    for name, lean in (("lean", True), ("transformers'", False)):
        draft_ms, token_ms = (median(column) for column in zip(*figures[lean], strict=True))
        rows.append([name, f"{draft_ms:.1f}", f"{token_ms:.1f}"])
    ratios = [a[1] / b[1] for a, b in zip(figures[False], figures[True], strict=True)]
    return [*rows, ["paired ratio of ms per token, transformers' / lean", "",
                    f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=8, help="generations by each loop")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    args = parser.parse_args()
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        step = draft_step(dtype)
        for vocabulary in VOCABULARIES:
            logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(0)).to(dtype)
            if vocabulary == VOCABULARIES[0]:
                logits[8192:] = -torch.inf  # as the embedded draft's
            for name in POLICIES:
                cost = microseconds(policy_round(name, logits), args.repeats) / ROUND
                rows.append([str(dtype).removeprefix("torch."), vocabulary, name, f"{cost:.0f}",
                             f"{step:.0f}", f"{cost / step:.2%}"])
    table = tabulate(rows, ["logits", "vocabulary", "policy", "policy, us a token",
                            "draft step, us", "share"], "pipe", disable_numparse=True)
    text = (f"Policy time per drafted token against one step of the embedded draft (medians of "
            f"{args.repeats} rounds of {ROUND} tokens; CPU, {os.cpu_count()} cores, "
            f"{platform.machine()}, {torch.get_num_threads()} threads, torch "
            f"{metadata.version('torch')}, transformers {metadata.version('transformers')}). "
            f"The embedded draft has the vocabulary of {VOCABULARIES[0]}; a model with "
            f"{VOCABULARIES[1]} is larger, and its share smaller.\n\n{table}\n\n"
            f"Drafting constant({ROUND}) in bfloat16, medians of {args.pairs} interleaved pairs of "
            f"generations:\n\n" + tabulate(
                loops(args.pairs), ["drafting loop", "draft, ms a round", "all, ms a token"],
                "pipe", disable_numparse=True) + "\n")
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "overhead.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
