"""Upstream EAGLE-2 with our trained head on the embedded target."""

import sys
from pathlib import Path

import pytest
import torch
from eagle_models import EAGLE2, why_not
from svip_adapters import eagle

from svip_policy import POLICIES

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.pair, pytest.mark.slow,
              pytest.mark.skipif(why_not(EAGLE2) != "", reason=why_not(EAGLE2))]
TEXTS = ("Why is the sky blue?", "Translate to German: I am hungry.")


@pytest.fixture(scope="module")
def model():
    sys.path.insert(0, str(EXAMPLES))
    from smollm2 import eagle_pair

    return eagle_pair.load_eagle(torch.float32)


def encoded(model, text):
    return model.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt",
        return_dict=True)["input_ids"]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_greedy_output_is_the_targets_in_float32(model, name):
    for text in TEXTS:
        ids = encoded(model, text)
        length = ids.shape[1] + 24
        expected = model.naivegenerate(ids, max_new_tokens=24)[0, :length]
        with eagle.attach(model, name) as handle:
            got = model.eagenerate(ids, max_new_tokens=24)[0, :length]
        assert got.tolist() == expected.tolist()
        assert handle.summary().accepted > 0


def test_the_target_is_the_one_transformers_loads(model):
    """Rotary base and all: EAGLE's copy of the model gives the same logits."""
    from smollm2 import pair

    target, _ = pair.load_target(torch.float32)
    ids = encoded(model, TEXTS[0])
    with torch.no_grad():
        model.base_model.model.tree_mask = None
        theirs = model.base_model(ids).logits[0, -1]
        ours = target(ids).logits[0, -1]
    assert torch.allclose(theirs, ours, atol=1e-3)


def test_the_head_is_trained_and_small(model):
    """Far more of the first level is accepted than of an untrained head."""
    weights = EXAMPLES / "smollm2" / "eagle" / "model.safetensors"
    assert weights.stat().st_size < 10e6
    accepted = drafted = 0
    for text in TEXTS:
        with eagle.attach(model, "constant(1)") as handle:
            model.eagenerate(encoded(model, text), max_new_tokens=24)
        accepted += handle.summary().accepted
        drafted += handle.summary().drafted
    assert accepted / drafted > 0.5
