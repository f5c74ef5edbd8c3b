"""What a policy costs: host time per drafted token, beside one step of the embedded draft.

    python examples/policy_cost.py

Writes results/policy_cost.md. The budget is 1% of a draft step. Run it on a quiet machine.
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

import torch
from smollm2 import pair
from tabulate import tabulate
from transformers import DynamicCache

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
    cache = DynamicCache()
    token = torch.tensor([[11]])

    def call() -> None:
        draft(input_ids=token, use_cache=True, logits_to_keep=1, **{keyword: cache})
        cache.crop(-1)

    keyword = "cache" if "cache" in draft.forward.__code__.co_varnames else "past_key_values"
    with torch.no_grad():
        draft(input_ids=torch.full((1, 200), 11), use_cache=True, **{keyword: cache})
        return microseconds(call, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=300)
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
            f"{VOCABULARIES[1]} is larger, and its share smaller.\n\n{table}\n")
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "policy_cost.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
