"""The lean drafting loop and transformers' own give the same tokens and lengths."""

import pytest
import svip_adapters
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny

from svip_policy import POLICIES


def both(target, draft, prompt, policy, seed=0, **options):
    """Tokens and lengths by the lean loop and by the framework's."""
    results = []
    for lean in (True, False):
        torch.manual_seed(seed)
        with svip_adapters.attach(target, policy, lean=lean) as handle:
            out = target.generate(prompt, assistant_model=draft, **options)
        results.append((out.tolist(), [r[:2] for r in handle.rounds]))
    return results


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("sample", [False, True])
def test_same_tokens_and_lengths(target, draft, near_draft, self_draft, prompt, policy, sample):
    # At temperature 1: transformers applies any other to the draft twice.
    for model in (draft, near_draft, self_draft):
        lean, framework = both(
            target, model, prompt, policy, max_new_tokens=40, do_sample=sample, top_k=0)
        assert lean == framework


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6), threshold=st.floats(0.2, 0.8), n=st.integers(1, 30),
    sample=st.booleans(), prompt=st.lists(st.integers(3, 63), min_size=1, max_size=12),
    end=st.sampled_from([None, 7, [7, 8, 9]]),
)
def test_same_for_any_prompt_and_threshold(
    target, near_draft, seed, threshold, n, sample, prompt, end
):
    lean, framework = both(
        target, near_draft, torch.tensor([prompt]), f"svip(threshold={threshold})", seed,
        max_new_tokens=n, do_sample=sample, top_k=0, eos_token_id=end)
    assert lean == framework


@pytest.mark.parametrize("family", ["neox", "qwen2", "llama"])
def test_same_for_other_families_as_draft(target, prompt, family):
    lean, framework = both(
        target, tiny(family, seed=4), prompt, "constant(4)", max_new_tokens=20, do_sample=False)
    assert lean == framework


def test_the_lean_loop_is_what_runs_by_default(target, draft, prompt, monkeypatch):
    """And with lean=False it does not: or the comparison above would be of one with itself."""
    from svip_adapters._hf_framework import FrameworkDrafting
    from svip_adapters._hf_lean import LeanDrafting

    made = []
    for kind in (LeanDrafting, FrameworkDrafting):
        original = kind._draft

        def spy(self, *args, original=original):
            made.append(type(self).__name__)
            return original(self, *args)

        monkeypatch.setattr(kind, "_draft", spy)
    for options in ({}, {"lean": True}, {"lean": False}):
        with svip_adapters.attach(target, "constant(2)", **options):
            target.generate(prompt, assistant_model=draft, max_new_tokens=3, do_sample=False)
    assert list(dict.fromkeys(made)) == ["LeanDrafting", "FrameworkDrafting"]
