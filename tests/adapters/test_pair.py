"""The embedded pair and the quickstart, on the real model."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from svip_policy import POLICIES
from svip_policy.replay import replay

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.pair, pytest.mark.slow]


def load_module():
    spec = importlib.util.spec_from_file_location("pair", EXAMPLES / "smollm2" / "pair.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models():
    return load_module().load_pair(torch.float32)


def test_a_target_saved_by_one_version_is_read_by_the_other(tmp_path):
    """transformers 5 keeps the rotary base where 4 does not look, and names its own tokenizer."""
    model, tokenizer = tmp_path / "config.json", tmp_path / "tokenizer_config.json"
    five = {"rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}}
    model.write_text(json.dumps(five))
    tokenizer.write_text(json.dumps({"tokenizer_class": "TokenizersBackend", "eos_token": "e"}))
    for _ in range(2):
        load_module().for_both_versions(tmp_path)
        assert json.loads(model.read_text()) == {**five, "rope_theta": 100000.0}
        assert json.loads(tokenizer.read_text()) == {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "e"}
    four = {"rope_theta": 100000.0, "rope_scaling": None}
    model.write_text(json.dumps(four))
    load_module().for_both_versions(tmp_path)
    assert json.loads(model.read_text()) == four


def test_replay_gives_the_rounds_of_live_runs(models):
    """Under every registered policy, with every part of them that a text of this pair reaches."""
    import svip_adapters
    from svip_adapters.hf_text import record_text

    target, draft, tokenizer = models
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name three rivers of Europe."}], return_tensors="pt",
        add_generation_prompt=True, return_dict=True)["input_ids"]
    text = record_text(target, draft, ids, max_new_tokens=40)
    for policy in [*POLICIES, "svip(threshold=0.6)", "path_probability(threshold=0.02)"]:
        with svip_adapters.attach(target, policy) as handle:
            out = target.generate(ids, assistant_model=draft, do_sample=False, max_new_tokens=40)
        assert out[0, ids.shape[1]:].tolist() == text.tokens
        assert [r[:2] for r in replay(text, policy)] == [r[:2] for r in handle.rounds], policy
        assert len({r.drafted for r in handle.rounds}) > 1


@pytest.mark.parametrize("policy", ["constant(5)", "heuristic(5)", "svip"])
def test_greedy_output_is_the_targets_in_float32(models, policy):
    import svip_adapters

    target, draft, tokenizer = models
    for text in ("Why is the sky blue?", "Translate to German: I am hungry."):
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True,
            return_tensors="pt", return_dict=True)
        options = {"do_sample": False, "max_new_tokens": 24}
        expected = target.generate(**inputs, **options)
        with svip_adapters.attach(target, policy) as handle:
            out = target.generate(**inputs, assistant_model=draft, **options)
        assert torch.equal(out, expected)
        assert handle.summary().accepted > 0


def test_the_draft_shares_the_targets_embedding_and_proposes_only_its_tokens(models):
    target, draft, _ = models
    assert draft.get_input_embeddings().weight is target.get_input_embeddings().weight
    logits = draft(torch.tensor([[1, 5, 9]])).logits[0]
    assert logits.shape == (3, target.config.vocab_size)
    finite = torch.isfinite(logits)
    assert bool((finite == finite[0]).all()) and int(finite[0].sum()) == 8192


def test_int8_weights_change_the_draft_little(models):
    draft, rounded = models[1], load_module().load_pair(torch.bfloat16)[1]
    kinds = {type(m).__name__ for m in rounded.modules()}
    assert "Int8Linear" in kinds and "Linear" not in kinds
    ids = torch.randint(3, 40000, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = draft(ids).logits.argmax(-1)
        whole = rounded(ids).logits.argmax(-1)  # as a prompt
        by_one = torch.cat([rounded(ids[:, : n + 1]).logits[:, -1:] for n in range(12)], 1)
    assert float((whole == exact).float().mean()) > 0.8
    assert float((by_one.argmax(-1) == whole[:, :12]).float().mean()) > 0.8


def test_the_weights_are_small_enough_for_a_repository():
    assert (EXAMPLES / "smollm2" / "draft.safetensors").stat().st_size < 20e6


def test_quickstart_end_to_end(tmp_path):
    """A small run: prints tables, writes both files, and can be asked for other policies."""
    command = [sys.executable, str(EXAMPLES / "quickstart.py"), "--prompts-per-task", "1",
               "--max-new-tokens", "4", "--out", str(tmp_path), "--policies", "svip", "constant(2)"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Speedup over target-only decoding" in result.stdout
    saved = json.loads((tmp_path / "quickstart.json").read_text())
    assert len(saved["runs"]) == 6 * 4 and saved["conditions"]["commit"]
    assert {r["arm"] for r in saved["runs"]} == {
        "target only", "transformers default", "constant(length=2)",
        "svip(threshold=0.3, c=0.15, cap=40)"}
    assert result.stdout.strip() in (tmp_path / "quickstart.md").read_text()


@pytest.mark.parametrize("arguments", [
    ["--policies", "svp"], ["--max-new-tokens", "0"], ["--prompts-per-task", "0"],
])
def test_quickstart_refuses_in_one_line(arguments, tmp_path):
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "quickstart.py"), "--out", str(tmp_path), *arguments],
        capture_output=True, text=True)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "error:" in result.stderr.strip().splitlines()[-1]
