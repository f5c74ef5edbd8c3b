"""Upstream GliDe & CaPE with our trained draft on the embedded target."""

import sys
from pathlib import Path

import glide_models
import pytest
import torch
from svip_adapters import glide_cape

from svip_policy import POLICIES

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.pair, pytest.mark.slow,
              pytest.mark.skipif(glide_models.why_not() != "", reason=glide_models.why_not())]
TEXTS = ("Why is the sky blue?", "Translate to German: I am hungry.")
N = 24
GLIDE, CAPE = [1] * 12, [8, 8, 8, 6, 6, 6, 4, 4, 2, 2, 2, 2]
both = pytest.mark.parametrize("bins", [GLIDE, CAPE], ids=["GliDe", "GliDe+CaPE"])


@pytest.fixture(scope="module")
def models():
    sys.path.insert(0, str(EXAMPLES))
    from smollm2 import glide_pair

    with glide_cape.importable(glide_pair.tokenizer_folder()):
        yield glide_pair.load_glide(torch.float32)


@pytest.fixture(scope="module")
def expected(models):
    """Ids of each prompt, and the target's own greedy text of it, without any cache."""
    target, _, tokenizer = models
    found = []
    for text in TEXTS:
        prompt = ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt")
        with torch.no_grad():
            for _ in range(N):
                ids = torch.cat((ids, target(ids).logits[:, -1:].argmax(-1)), 1)
        found.append((prompt, ids[0].tolist()))
    return found


def generate(models, ids, bins):
    target, draft, _ = models
    return draft.medusa_generate(ids, large_model=target, max_steps=N, prob_to_top=bins)[
        "input_ids"][0, : ids.shape[1] + N].tolist()


@both
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_greedy_output_is_the_targets_in_float32(models, expected, name, bins):
    for ids, text in expected:
        with glide_cape.attach(models[1], name, target=models[0]) as handle:
            assert generate(models, ids, bins) == text
        assert handle.summary().accepted > 0


@both
def test_constant_four_writes_what_upstream_does_in_as_many_rounds(models, expected, bins):
    """Round by round: what upstream drafted and accepted by itself."""
    for ids, text in expected:
        counts = []
        for policy in (None, "constant(4)"):
            with glide_cape.attach(models[1], policy, target=models[0]) as handle:
                assert generate(models, ids, bins) == text
            counts.append([(r.drafted, r.accepted, r.nodes) for r in handle.rounds])
        assert counts[0] == counts[1]


def test_the_target_is_the_one_transformers_loads(models, expected):
    """Rotary base and all: the authors' copy of Llama gives the same logits."""
    from smollm2 import pair
    from transformers import LlamaForCausalLM

    models[0].model.medusa_mask = None  # a generation leaves its last one
    ids = torch.tensor([expected[0][1]])
    own = LlamaForCausalLM.from_pretrained(pair.target_source()).eval()
    with torch.no_grad():
        ours, theirs = own(ids).logits, models[0](ids).logits
    assert torch.allclose(theirs, ours, atol=1e-3)


def test_the_draft_is_trained_and_small(models, expected):
    """Far more of the first tokens is accepted than of an untrained draft's."""
    weights = EXAMPLES / "smollm2" / "glide" / "model.safetensors"
    assert weights.stat().st_size < 10e6
    accepted = drafted = 0
    for ids, _ in expected:
        with glide_cape.attach(models[1], "constant(1)", target=models[0]) as handle:
            generate(models, ids, GLIDE)
        accepted += handle.summary().accepted
        drafted += handle.summary().drafted
    assert accepted / drafted > 0.3
