"""Upstream EAGLE-2 on SmolLM2-135M-Instruct, with and without a policy.

    git clone https://github.com/SafeAILab/EAGLE
    SVIP_EAGLE=EAGLE python examples/eagle.py

Every prompt runs greedily under every arm, interleaved: the target alone (EAGLE's
``naivegenerate``), EAGLE as shipped, the fixed depth and tree size that were fastest on other
prompts, the policies with the threshold and tree size that were, the policies as they are, and
``marginal`` with the costs that were measured in tuning.
Prints speedups, levels drafted, nodes verified and tokens accepted; writes the same as Markdown
and JSON.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from common import comparison, costs_text, digest, parse_args, provenance, up_to
from smollm2 import eagle_pair, pair
from svip_adapters import eagle

import svip_policy
from svip_policy.ablation import report
from svip_policy.ablation.runner import TARGET_ONLY, Answer, Answered, Bench
from svip_policy.provenance import commit


class Tree(NamedTuple):
    """EAGLE's own settings of a tree."""

    total_token: int = 60
    depth: int = 7
    top_k: int = 10


# The first records its rounds, the second has nothing attached at all.
SHIPPED, PLAIN = f"as shipped on {tuple(Tree())}", "not attached"
SIZES = (11, 26, 60)
TUNED = {
    # One level has top_k nodes, whatever the size.
    "constant": [f"constant({n}) on {tuple(Tree(size))}" for n in (1, 2, 3, 4)
                 for size in (SIZES if n > 1 else SIZES[:1])],
    "svip": [f"svip(threshold={h}) on {tuple(Tree(size))}" for h in (0.3, 0.5, 0.7)
             for size in SIZES[:2]],
    "path_probability": [f"path_probability(threshold={t}) on {tuple(Tree(size))}"
                         for t in (0.1, 0.3, 0.6) for size in SIZES[:2]],
}
UNTUNED = [f"{name} on {tuple(Tree())}" for name in ("svip", "path_probability")]
CONVENTIONS = (
    "An arm is a policy on EAGLE's (total_token, depth, top_k). Speedup is of all tokens over all "
    "seconds, relative to target-only decoding by EAGLE's own naivegenerate; intervals are of the "
    "ratio prompt by prompt. Levels, nodes and accepted tokens are means a round, the target's "
    "own token not counted. The costs of marginal, where it is given none, are fitted to the "
    "tuning runs: a level's drafting and a node's verification, in target steps."
)


def parsed(arm: str) -> tuple[str | None, Tree]:
    """The policy text, None for EAGLE's own depth, and the tree of an arm.

    Raises:
        ValueError: it is no arm.
    """
    match = re.fullmatch(r"(.+) on \((\d+), (\d+), (\d+)\)", arm)
    if match is None:
        raise ValueError(f"{arm!r} is no arm; write 'svip on (60, 7, 10)', a policy and EAGLE's "
                         "total_token, depth and top_k")
    policy = None if match[1] in ("as shipped", PLAIN) else repr(svip_policy.parse(match[1]))
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

    def answer(ids: Any, arm: str) -> Answered:
        policy, tree = (None, Tree()) if arm == TARGET_ONLY else parsed(arm)
        with_tree(model, tree)
        generate: Callable[..., Any] = (
            model.naivegenerate if arm == TARGET_ONLY else model.eagenerate)
        with eagle.attach(model, policy) as handle:
            if arm.startswith(PLAIN):
                handle.detach()
            began = perf_counter()
            # It ends once it exceeds what it is given; all arms alike.
            out = generate(ids, max_new_tokens=max_new_tokens - 1)
            seconds = perf_counter() - began
        return Answered(up_to(out[0, ids.shape[1] :].tolist(), end), seconds, handle)

    return answer


class Target:
    """The target for logits of whole sequences, without EAGLE's caches."""

    def __init__(self, model: Any) -> None:
        self._model, self.device = model, model.base_model.device

    def __call__(self, ids: Any) -> Any:
        """Logits of ids (1, length), as a transformers model gives them."""
        self._model.base_model.model.tree_mask = None
        return self._model.base_model(ids)


def main() -> None:
    args = parse_args(__doc__, parsed)
    model = eagle_pair.load_eagle(getattr(torch, args.dtype))
    bench = Bench(Target(model), model.tokenizer, answering(model, args.max_new_tokens))
    weights = eagle_pair.HEAD / "model.safetensors"
    header = provenance(args, {
        "target": f"SmolLM2-135M-Instruct from {pair.target_name()}",
        "head": f"examples/smollm2/eagle, SHA-256 {digest(weights)}",
    }, args.prompts, upstream={"EAGLE": commit(eagle_pair.checkout())})
    run = comparison(bench, args, header, "eagle")
    bench.warm_up([TARGET_ONLY, SHIPPED, *TUNED["constant"][:2]])
    arms = args.arms
    if arms is None:
        costs = costs_text(run.tune(TUNED))
        arms = [*run.best.values(), *UNTUNED,
                *(f"marginal({costs}) on {tuple(Tree(size))}" for size in SIZES)]
    run.compare([SHIPPED, *arms])
    print(report.render(run.finish(title="EAGLE-2", conventions=CONVENTIONS, trees=True,
                                   base=run.best.get("constant", SHIPPED))))


if __name__ == "__main__":
    main()
