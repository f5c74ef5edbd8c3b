"""What the adapter costs on upstream GliDe & CaPE: constant(4) against nothing attached.

    SVIP_GLIDE=GliDe python examples/glide_overhead.py

Upstream drafts four tokens, so both write the same tokens in the same rounds (checked), and all
that differs is the time. Both answer every prompt several times, in turns, each as often first as
second. Of each round of an answer the fastest of these times counts, which machines that drift
and are shared leave alone; a prompt's ratio is that of the sums. Writes
results/glide-cape-overhead.json as it goes. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import PROMPTS, provenance
from glide_cape import BINS, PLAIN, answering
from smollm2 import glide_pair
from svip_adapters import glide_cape
from tqdm import tqdm

from svip_policy.ablation.prompts import Prompt, read_prompts
from svip_policy.ablation.runner import Bench
from svip_policy.ablation.statistics import paired_speedup
from svip_policy.provenance import commit

Seconds = dict[str, list[list[float]]]


@contextmanager
def clocked(module: Any) -> Iterator[list[float]]:
    """Tells when upstream begins to take in what was verified: once a round."""
    times: list[float] = []
    original = module.update_inference_inputs_joint_llama

    def update(*args: Any, **kwargs: Any) -> Any:
        times.append(perf_counter())
        return original(*args, **kwargs)

    # Called positionally or by name: the adapter reads the signature.
    update.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    module.update_inference_inputs_joint_llama = update
    try:
        yield times
    finally:
        module.update_inference_inputs_joint_llama = original


def measured(bench: Bench, prompt: Prompt, kind: str, repeats: int, times: list[float]) -> Seconds:
    """Seconds of each round of each answer to a prompt's first turn, by what was attached.

    Raises:
        SystemExit: the two wrote other tokens.
    """
    ids = bench.encode([{"role": "user", "content": prompt.turns[0]}])
    arms = [f"{policy}, {kind}" for policy in (PLAIN, "constant(4)")]
    seconds: Seconds = {arm: [] for arm in arms}
    texts = set()
    for n in range(repeats):
        for arm in arms if n % 2 else reversed(arms):
            times.clear()
            texts.add(tuple(bench.answer(ids, arm).tokens))
            seconds[arm].append(np.diff(times).tolist())
    if len(texts) > 1 or len({len(s) for each in seconds.values() for s in each}) > 1:
        raise SystemExit(f"{prompt.id}: constant(4) does not write what upstream writes")
    return seconds


def lines(entries: list[dict[str, Any]]) -> Iterator[str]:
    """What was found, for each way of drafting."""
    for kind in BINS:
        mine = [e["seconds"] for e in entries if e["kind"] == kind]
        plain, ours = zip(*([float(np.min(times, axis=0).sum()) for times in seconds.values()]
                            for seconds in mine), strict=True)
        same = [1.0] * len(mine)
        ratio = paired_speedup(same, ours, same, plain)
        rounds = sum(len(next(iter(seconds.values()))[0]) for seconds in mine)
        yield (f"{kind}: constant(4) at {ratio.paired:.3f} times the speed of plain upstream, 95% "
               f"interval {ratio.low:.3f} to {ratio.high:.3f}, {len(mine)} prompts, {rounds} "
               f"rounds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6, help="of each prompt")
    parser.add_argument("--prompts", type=int, default=18, help="the first ones of the file")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    parser.set_defaults(seed=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with glide_cape.importable(glide_pair.tokenizer_folder()):
        target, draft, tokenizer = glide_pair.load_glide(getattr(torch, args.dtype))
        bench = Bench(target, tokenizer, answering(target, draft, args.max_new_tokens))
        header = provenance(args, {"target": "SmolLM2-135M-Instruct", "draft": "smollm2/glide"},
                            upstream={"GliDe": commit(glide_pair.checkout())},
                            repeats=args.repeats)
        entries: list[dict[str, Any]] = []
        with clocked(importlib.import_module("glide.glideModel")) as times:
            bench.warm_up([f"{p}, {kind}" for kind in BINS for p in (PLAIN, "constant(4)")])
            for prompt in tqdm(read_prompts(PROMPTS)[: args.prompts], unit="prompt"):
                for kind in BINS:
                    seconds = measured(bench, prompt, kind, args.repeats, times)
                    entries.append({"prompt": prompt.id, "kind": kind, "seconds": seconds})
                # After each prompt, so that a stopped run has what it measured.
                (args.out / "glide-cape-overhead.json").write_text(
                    json.dumps({"conditions": header, "found": list(lines(entries)),
                                "answers": entries}), encoding="utf-8")
    print(*lines(entries), sep="\n")


if __name__ == "__main__":
    main()
