"""Sampling: the target's distribution, raw logits for the policy, rows of candidates."""

import math

import pytest
import svip_adapters
import torch
from tiny_models import tiny

from svip_policy import Decision
from svip_policy.errors import UnsupportedError


class Recorder:
    """Drafts three tokens a round and keeps what it is shown."""

    def __init__(self, steps):
        self.steps = steps

    def observe(self, step):
        self.steps.append(step)
        return Decision.STOP if step.position == 3 else Decision.CONTINUE

    def verified(self, drafted, accepted):
        pass

    def fresh(self):
        return self


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("sampling", [
    {"do_sample": True, "temperature": 0.5}, {"do_sample": True, "temperature": 2.0, "top_k": 5},
    {"do_sample": False, "repetition_penalty": 1.5},
])
def test_policy_sees_raw_draft_logits(target, draft, prompt, lean, sampling):
    steps = []
    with svip_adapters.attach(target, Recorder(steps), lean=lean):
        target.generate(prompt, assistant_model=draft, max_new_tokens=12, **sampling)
    ids = prompt
    for step in steps[:3]:  # the first round: what follows depends on what was accepted
        with torch.no_grad():
            raw = draft(ids).logits[0, -1]
        torch.testing.assert_close(step.logits, raw, rtol=1e-4, atol=1e-5)
        ids = torch.cat([ids, torch.tensor([[int(step.token)]])], dim=1)


@pytest.mark.parametrize("lean", [True, False])
def test_one_row_of_candidate_logits_for_each_token(target, near_draft, prompt, lean, monkeypatch):
    from svip_adapters import _hf_drafting

    seen = []
    original = _hf_drafting.PolicyDrafting.get_candidates

    def spy(self, input_ids, **kwargs):
        ids, logits = original(self, input_ids, **kwargs)
        seen.append((ids.shape[1] - input_ids.shape[1], logits))
        return ids, logits

    monkeypatch.setattr(_hf_drafting.PolicyDrafting, "get_candidates", spy)
    torch.manual_seed(0)
    with svip_adapters.attach(target, "svip(threshold=0.6)", lean=lean):
        target.generate(prompt, assistant_model=near_draft, max_new_tokens=60, do_sample=True)
    assert len({n for n, _ in seen}) > 1  # rounds of several lengths
    for n, logits in seen:
        assert logits is None if n == 0 else logits.shape == (1, n, 64)


def pairs(model, prompt, count, **options):
    """Counts of the first two sampled tokens over ``count`` generations."""
    counts = torch.zeros(model.config.vocab_size**2)
    for _ in range(count):
        first, second = model.generate(
            prompt, max_new_tokens=3, do_sample=True, top_k=0, **options)[0, -3:-1].tolist()
        counts[first * model.config.vocab_size + second] += 1
    return counts


def exact_pairs(model, prompt, temperature):
    """The target's own distribution of the first two tokens."""
    vocab = model.config.vocab_size
    with torch.no_grad():
        first = (model(prompt).logits[0, -1] / temperature).softmax(-1)
        longer = torch.cat([prompt.repeat(vocab, 1), torch.arange(vocab)[:, None]], dim=1)
        second = (model(longer).logits[:, -1] / temperature).softmax(-1)
    return (first[:, None] * second).flatten()


@pytest.mark.slow
@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize(("policy", "temperature"), [
    ("svip(threshold=0.42)", 1.0), ("constant(2)", 0.7),
])
def test_sampled_pairs_have_the_targets_distribution(policy, temperature, lean):
    """Chi-squared over 16 pairs of tokens, 1,200 samples, at the 0.1% level.

    A total variation of 0.1 in the pairs is found with a power above 99%: dropping
    uncertain draft tokens, or rows of logits that do not fit theirs, give more.
    """
    from scipy.stats import chisquare

    target, draft = (tiny(seed=s, vocab=4, hidden=16) for s in (5, 6))
    prompt = torch.tensor([[1, 3, 2]])
    torch.manual_seed(0)
    with svip_adapters.attach(target, policy, lean=lean) as handle:
        counts = pairs(target, prompt, 1200, assistant_model=draft, temperature=temperature)
    assert 0.1 < handle.summary().acceptance_rate < 0.95
    expected = exact_pairs(target, prompt, temperature) * counts.sum()
    assert chisquare(counts.numpy(), expected.numpy() * (counts.sum() / expected.sum()).item()) \
        .pvalue > 1e-3


def test_custom_criteria_with_sampling_are_refused(target, draft, prompt):
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Mine(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([False])

    with svip_adapters.attach(target, "svip"), pytest.raises(UnsupportedError, match="Mine with"):
        target.generate(prompt, assistant_model=draft, max_new_tokens=5, do_sample=True,
                        stopping_criteria=StoppingCriteriaList([Mine()]))


class OddOnly(torch.nn.Module):
    """An output head that gives only tokens of odd id a probability."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden):
        logits = self.head(hidden)
        logits[..., ::2] = -math.inf
        return logits


def test_impossible_draft_tokens_are_handled_exactly(target, near_draft, prompt):
    """A draft over part of the vocabulary: -inf elsewhere, as the embedded draft has."""

    head = near_draft.lm_head
    near_draft.lm_head = OddOnly(head)
    try:
        for sampling in ({"do_sample": False}, {"do_sample": True}):
            steps = []
            with svip_adapters.attach(target, Recorder(steps)) as handle:
                out = target.generate(
                    prompt, assistant_model=near_draft, max_new_tokens=30, **sampling)
            if not sampling["do_sample"]:
                assert torch.equal(out, target.generate(prompt, max_new_tokens=30, **sampling))
            assert handle.degenerate == 0
            assert all(int(s.token) % 2 and math.isfinite(s.entropy) for s in steps)
    finally:
        near_draft.lm_head = head


def test_processors_that_leave_the_draft_nothing(target, near_draft, prompt):
    """All that is allowed lies outside of the draft's vocabulary: no draft, no crash."""

    from transformers import LogitsProcessor, LogitsProcessorList

    class Allow(LogitsProcessor):
        def __call__(self, input_ids, scores):
            masked = torch.full_like(scores, -math.inf)
            masked[:, [2, 4, 6]] = scores[:, [2, 4, 6]]
            return masked

    head = near_draft.lm_head
    near_draft.lm_head = OddOnly(head)
    try:
        with svip_adapters.attach(target, "constant(3)") as handle:
            out = target.generate(prompt, assistant_model=near_draft, max_new_tokens=10,
                                  do_sample=True, logits_processor=LogitsProcessorList([Allow()]))
    finally:
        near_draft.lm_head = head
    assert set(out[0, prompt.shape[1] :].tolist()) <= {2, 4, 6}
    assert handle.summary().drafted == 0 and handle.degenerate == 0


@pytest.mark.parametrize("sampling", [{"temperature": 0.5}, {"temperature": 1.5, "top_k": 3}])
def test_the_draft_is_sampled_from_processed_logits(target, self_draft, prompt, sampling):
    """Each processor applied once: then a copy of the target is never rejected."""
    with svip_adapters.attach(target, "constant(4)") as handle:
        target.generate(
            prompt, assistant_model=self_draft, max_new_tokens=40, do_sample=True, **sampling)
    assert handle.summary().acceptance_rate == 1
