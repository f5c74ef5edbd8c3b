"""Upstream GliDe & CaPE on SmolLM2-135M-Instruct, with and without a policy.

    git clone https://github.com/NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 GliDe
    SVIP_GLIDE=GliDe python examples/glide_cape.py

Every prompt runs greedily under every arm, interleaved: the target alone, GliDe as shipped (four
tokens, with and without CaPE's widening), the fixed length that was fastest on other prompts,
the policies with the threshold that was, the policies as they are, and ``marginal`` with the costs
that were measured in tuning. Prints speedups, tokens drafted, nodes verified and tokens accepted;
writes the same as Markdown and JSON.
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from common import comparison, costs_text, digest, parse_args, provenance, up_to
from smollm2 import glide_pair, pair
from svip_adapters import glide_cape

import svip_policy
from svip_policy.ablation import report
from svip_policy.ablation.runner import TARGET_ONLY, Answer, Answered, Bench
from svip_policy.provenance import commit

# How many tokens CaPE takes at a position, by tenths of the draft's confidence: upstream's script.
BINS = {"GliDe": [1] * 12, "GliDe+CaPE": [8, 8, 8, 6, 6, 6, 4, 4, 2, 2, 2, 2]}
SHIPPED = [f"as shipped, {kind}" for kind in BINS]
# The first records its rounds, this has nothing attached at all.
PLAIN = "not attached"
TUNED = {
    "constant": [f"constant({n}), {kind}" for n in (1, 2, 3, 4) for kind in BINS],
    "svip": [f"svip(threshold={h}), {kind}" for h in (0.2, 0.3, 0.5, 0.7) for kind in BINS],
    "path_probability": [f"path_probability(threshold={t}), {kind}"
                         for t in (0.1, 0.3, 0.6) for kind in BINS],
}
UNTUNED = [f"{name}, {kind}" for name in ("svip", "path_probability") for kind in BINS]
CONVENTIONS = (
    "Speedup is of all tokens over all seconds, relative to target-only decoding by GliDe's own "
    "target model and cache; intervals are of the ratio prompt by prompt. Tokens drafted "
    "(\"levels\"), nodes verified, which CaPE multiplies, and tokens accepted are means a round, "
    "the target's own token not counted. The costs of marginal, where it is given none, are fitted "
    "to the tuning runs: a token's drafting and the verification of its nodes, in target steps."
)


def parsed(arm: str) -> tuple[str | None, list[int]]:
    """The policy text, None for upstream's own length, and CaPE's bins of an arm.

    Raises:
        ValueError: it is no arm.
    """
    policy, _, kind = arm.rpartition(", ")
    if kind not in BINS or not policy:
        raise ValueError(f"{arm!r} is no arm; write 'svip, GliDe' or 'svip, GliDe+CaPE'")
    own = policy in ("as shipped", PLAIN)
    return None if own else repr(svip_policy.parse(policy)), BINS[kind]


@torch.inference_mode()
def target_alone(target: Any, ids: Any, end: int, count: int) -> Any:
    """Greedy decoding by upstream's target with upstream's cache, which a draft has made."""
    target.current_length_data.zero_()
    target.model.medusa_mask = target.model.medusa_mode = None
    given = ids
    for _ in range(count):
        output = target(input_ids=given, past_key_values=target.past_key_values, use_cache=True)
        given = output.logits[:, -1:].argmax(-1)
        ids = torch.cat((ids, given), dim=1)
        if int(given) == end:
            break
    return ids


def answering(target: Any, draft: Any, max_new_tokens: int) -> Answer:
    """Answers by upstream's own generation; what it wrote beyond the end does not count."""
    end = target.generation_config.eos_token_id

    def answer(ids: Any, arm: str) -> Answered:
        policy, bins = (None, []) if arm == TARGET_ONLY else parsed(arm)
        with glide_cape.attach(draft, policy, target=target) as handle:
            if arm.startswith(PLAIN):
                handle.detach()
            began = perf_counter()
            if arm == TARGET_ONLY:
                out = target_alone(target, ids, end, max_new_tokens)
            else:
                out = draft.medusa_generate(ids, large_model=target, max_steps=max_new_tokens,
                                            prob_to_top=bins)["input_ids"]
            seconds = perf_counter() - began
        return Answered(up_to(out[0, ids.shape[1] :].tolist(), end), seconds, handle)

    return answer


class Target:
    """The target for logits of whole sequences, without what a generation left in it."""

    def __init__(self, model: Any) -> None:
        self._model, self.device = model, model.device

    def __call__(self, ids: Any) -> Any:
        """Logits of ids (1, length), as a transformers model gives them."""
        self._model.model.medusa_mask = self._model.model.medusa_mode = None
        return self._model(ids)


def compare(args: Any) -> None:
    """Load, tune, compare, write."""
    target, draft, tokenizer = glide_pair.load_glide(getattr(torch, args.dtype))
    bench = Bench(Target(target), tokenizer, answering(target, draft, args.max_new_tokens))
    weights = glide_pair.DRAFT / "model.safetensors"
    header = provenance(args, {
        "target": f"SmolLM2-135M-Instruct from {pair.target_name()}",
        "draft": f"examples/smollm2/glide, SHA-256 {digest(weights)}",
    }, args.prompts, upstream={"GliDe": commit(glide_pair.checkout())})
    run = comparison(bench, args, header, "glide-cape")
    bench.warm_up([*SHIPPED, TARGET_ONLY, *UNTUNED])  # the first one makes the caches
    arms = args.arms
    if arms is None:
        runs = run.tune(TUNED)
        # The policy sees a chain, of which CaPE has several nodes a token verified.
        costs = {kind: costs_text(runs, [r for r in runs if r.arm.endswith(kind)]) for kind in BINS}
        arms = [*run.best.values(), *UNTUNED,
                *(f"marginal({text}), {kind}" for kind, text in costs.items())]
    run.compare([*SHIPPED, *arms])
    print(report.render(run.finish(title="GliDe and CaPE", conventions=CONVENTIONS, trees=True,
                                   base=run.best.get("constant", SHIPPED[0]))))


def main() -> None:
    args = parse_args(__doc__, parsed)
    with glide_cape.importable(glide_pair.tokenizer_folder()):
        compare(args)


if __name__ == "__main__":
    main()
