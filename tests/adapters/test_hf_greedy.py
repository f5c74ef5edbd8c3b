"""Greedy decoding: the target's own output, and the lengths that the policy asked for."""

import copy

import pytest
import svip_adapters
import torch
from tiny_models import greedy, tiny

from svip_policy import POLICIES, Decision


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "svip(threshold=0.55)", "constant(1)"])
@pytest.mark.parametrize("lean", [True, False])
def test_output_is_the_targets(target, any_draft, prompt, policy, lean):
    expected = greedy(target, prompt)
    with svip_adapters.attach(target, policy, lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, any_draft), expected)
    summary = handle.summary()
    assert summary.rounds + summary.accepted == expected.shape[1] - prompt.shape[1]


def test_the_near_draft_is_neither_always_right_nor_always_wrong(target, near_draft, prompt):
    """Or the tests on it would show less than they seem to."""
    with svip_adapters.attach(target, "constant(5)") as handle:
        greedy(target, prompt, near_draft)
    assert 0.2 < handle.summary().acceptance_rate < 0.95


@pytest.mark.parametrize("lean", [True, False])
def test_frameworks_own_stop_rule_is_out_of_force(target, draft, prompt, lean):
    """Its confidence rule would stop this random draft after one token."""
    with svip_adapters.attach(target, "constant(5)", lean=lean) as handle:
        greedy(target, prompt, draft)
    drafted = [r.drafted for r in handle.rounds]
    assert drafted[0] == 5 and all(n == min(5, drafted[0]) for n in drafted[:-5])


def test_framework_alone_does_stop_that_draft(target, draft, prompt, monkeypatch):
    """The check above can fail: without us the same pair drafts one token a round."""
    lengths = []
    forward = draft.forward

    def counted(*args, **kwargs):
        lengths[-1] += 1
        return forward(*args, **kwargs)

    generate = draft.generate

    def once(*args, **kwargs):
        lengths.append(0)
        return generate(*args, **kwargs)

    monkeypatch.setattr(draft, "forward", counted)
    monkeypatch.setattr(draft, "generate", once)
    greedy(target, prompt, draft)
    assert max(lengths) == 1


@pytest.mark.parametrize("lean", [True, False])
def test_num_assistant_tokens_of_the_call_does_not_matter(target, self_draft, prompt, lean):
    with svip_adapters.attach(target, "constant(4)", lean=lean) as handle:
        greedy(target, prompt, self_draft, num_assistant_tokens=2)
    assert handle.rounds[0].drafted == 4


@pytest.mark.parametrize("lean", [True, False])
def test_each_generation_starts_fresh(target, self_draft, prompt, lean):
    with svip_adapters.attach(target, "heuristic(5)", lean=lean) as handle:
        for _ in range(2):
            greedy(target, prompt, self_draft)
    first, second = ([r.drafted for r in g.rounds] for g in handle.generations)
    assert first == second and first[:3] == [5, 7, 9]


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_hardly_any_budget(target, self_draft, prompt, n, lean):
    expected = greedy(target, prompt, n=n)
    with svip_adapters.attach(target, "constant(5)", lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, self_draft, n=n), expected)
    assert handle.rounds[0].drafted == n - 1


@pytest.mark.parametrize("lean", [True, False])
def test_a_policy_that_never_drafts_gives_plain_decoding(target, self_draft, prompt, lean):
    class Never:
        def begin(self, start):
            assert start.length >= 10 and start.budget is not None
            return Decision.STOP

        def observe(self, step):
            raise AssertionError("nothing was to be drafted")

        def verified(self, drafted, accepted):
            assert (drafted, accepted) == (0, 0)

        def fresh(self):
            return self

    with svip_adapters.attach(target, Never(), lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, self_draft), greedy(target, prompt))
    assert handle.summary().drafted == 0 and handle.summary().rounds == 40


@pytest.mark.parametrize("lean", [True, False])
def test_drafting_now_and_then(target, self_draft, prompt, lean):
    """Rounds without a draft leave the draft's cache behind the sequence."""

    class EveryThird:
        calls = 0

        def begin(self, start):
            self.calls += 1
            return Decision.CONTINUE if self.calls % 3 == 0 else Decision.STOP

        def observe(self, step):
            return Decision.STOP if step.position == 3 else Decision.CONTINUE

        def verified(self, drafted, accepted):
            pass

        def fresh(self):
            return EveryThird()

    with svip_adapters.attach(target, EveryThird(), lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, self_draft), greedy(target, prompt))
    assert [r.drafted for r in handle.rounds[:6]] == [0, 0, 3, 0, 0, 3]
    assert handle.summary().acceptance_rate == 1  # a misplaced cache would draft other tokens


@pytest.mark.parametrize("family", ["neox", "qwen2", "llama"])
@pytest.mark.parametrize("lean", [True, False])
def test_the_papers_families(family, lean, prompt):
    """GPT-NeoX (Pythia), Qwen2 (Qwen2.5) and Llama targets with Llama drafts of other sizes."""
    target = tiny(family)
    assert len(set(greedy(target, prompt)[0].tolist())) > 12  # no constant babble
    for draft in (tiny(seed=1, hidden=16, layers=1), tiny(seed=2, hidden=64, layers=3, heads=8),
                  copy.deepcopy(target)):
        for policy, lengths in (("constant(3)", [3, 3, 3]), ("constant(7)", [7, 7, 7]),
                                ("svip(threshold=0)", [1, 1, 1]),
                                ("svip(threshold=inf, cap=6)", [6, 6, 6])):
            with svip_adapters.attach(target, policy, lean=lean) as handle:
                assert torch.equal(greedy(target, prompt, draft), greedy(target, prompt))
            assert [r.drafted for r in handle.rounds[:3]] == lengths


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("sample", [False, True])
def test_a_draft_with_degenerate_logits(target, self_draft, prompt, broken, sample):
    """Greedy: the token is kept and the draft ends. Sampling: there is nothing to draw."""
    from svip_policy.errors import DegenerateLogitsWarning

    head = self_draft.lm_head

    class Broken(torch.nn.Module):
        def forward(self, hidden):
            logits = head(hidden)
            logits[..., 7] = broken
            return logits

    self_draft.lm_head = Broken()
    try:
        with svip_adapters.attach(target, "constant(5)") as handle, \
                pytest.warns(DegenerateLogitsWarning):
            out = target.generate(prompt, assistant_model=self_draft, max_new_tokens=12,
                                  do_sample=sample)
    finally:
        self_draft.lm_head = head
    assert sample or torch.equal(out, greedy(target, prompt, n=12))
    assert {r.drafted for r in handle.rounds[:-1]} == {0 if sample else 1}
    assert handle.degenerate >= 10


def test_logits_processors_apply_to_draft_and_target(target, self_draft, prompt):
    plain = greedy(target, prompt)
    common = plain[0, prompt.shape[1] :].mode().values.item()
    options = {"suppress_tokens": [common, 5, 6, 7], "min_new_tokens": 20}
    expected = greedy(target, prompt, **options)
    assert not torch.equal(expected, plain)
    for lean in (True, False):
        with svip_adapters.attach(target, "constant(4)", lean=lean) as handle:
            assert torch.equal(greedy(target, prompt, self_draft, **options), expected)
        assert handle.summary().acceptance_rate == 1
    # The lean loop applies each once; transformers some of them twice to the draft.
    options["repetition_penalty"] = 1.3
    expected = greedy(target, prompt, **options)
    with svip_adapters.attach(target, "constant(4)") as handle:
        assert torch.equal(greedy(target, prompt, self_draft, **options), expected)
    assert handle.summary().acceptance_rate == 1


def test_plain_decoding_is_not_touched(target, prompt):
    expected = greedy(target, prompt)
    with svip_adapters.attach(target, "svip") as handle:
        assert torch.equal(greedy(target, prompt), expected)
    assert handle.generations == []


def test_without_a_policy_the_frameworks_rule_is_only_recorded(target, near_draft, prompt):
    near = copy.deepcopy(near_draft)
    near.generation_config.num_assistant_tokens = 3
    near.generation_config.num_assistant_tokens_schedule = "heuristic"
    near.generation_config.assistant_confidence_threshold = 0
    with svip_adapters.attach(target, None) as handle:
        out = greedy(target, prompt, near)
    assert torch.equal(out, greedy(target, prompt))
    first, second = handle.rounds[:2]
    assert first.drafted == 3
    assert second.drafted == (5 if first.accepted == 3 else 2)
    assert handle.summary().rounds + handle.summary().accepted == 40
