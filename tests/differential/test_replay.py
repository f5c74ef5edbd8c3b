"""Replay and the live run: the same rounds under every policy."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from svip_adapters import attach
from svip_adapters._hf_lean import plain_cache
from svip_adapters.hf_costs import measure
from svip_adapters.hf_text import record_text
from tiny_models import greedy, tiny

from svip_policy import POLICIES, Constant, Decision, bounds
from svip_policy.cost import CostModel
from svip_policy.errors import ParameterError, TraceError, UnsupportedError
from svip_policy.replay import Drafted, Text, first_mismatch, oracle, replay, seconds

PROMPTS = [torch.tensor([ids]) for ids in ([5, 9, 2, 7], [3], [40, 41, 42, 8, 8], [17, 60])]
N = 60
VARIANTS = ["constant(1)", "constant(3)", "constant(12)", "svip(threshold=0.1)",
            "svip(threshold=0.5)", "svip(threshold=inf)", "svip(threshold=0)",
            "heuristic(length=1, cap=9)", "path_probability(threshold=0.5)"]
COST = CostModel.flat(0.2, tuple(1.0 + 0.01 * n for n in range(N + 1)))


def live(target, draft, ids, policy, **options):
    with attach(target, policy) as handle:
        out = greedy(target, ids, draft, **options)
    return out[0, ids.shape[1]:].tolist(), [(r.drafted, r.accepted) for r in handle.rounds]


def counts(rounds):
    return [(r.drafted, r.accepted) for r in rounds]


@pytest.fixture(scope="module", params=range(len(PROMPTS)))
def case(request, target, near_draft):
    ids = PROMPTS[request.param]
    return ids, record_text(target, near_draft, ids, max_new_tokens=N, longest=N)


@pytest.mark.parametrize("policy", [*sorted(POLICIES), *VARIANTS])
def test_rounds_are_those_of_the_live_run(case, target, near_draft, policy):
    ids, text = case
    tokens, rounds = live(target, near_draft, ids, policy, n=N)
    assert tokens == text.tokens and len(rounds) > 1
    assert counts(replay(text, policy)) == rounds


@pytest.mark.parametrize("policy", ["constant(4)", "svip(threshold=0.6)", "heuristic"])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_with_little_room(target, near_draft, policy, n):
    ids = PROMPTS[0]
    text = record_text(target, near_draft, ids, max_new_tokens=n, longest=8)
    assert counts(replay(text, policy)) == live(target, near_draft, ids, policy, n=n)[1]


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "constant(2)", "constant(11)"])
@pytest.mark.parametrize("self_drafting", [True, False])
def test_up_to_an_end_of_sequence(target, near_draft, self_draft, monkeypatch, policy,
                                  self_drafting):
    """A token of the text in the middle ends it, drafted or given by the target."""
    ids, draft = PROMPTS[0], self_draft if self_drafting else near_draft
    plain = greedy(target, ids, n=N)[0, ids.shape[1]:].tolist()
    end = next(t for i, t in enumerate(plain) if i > 8 and t not in plain[:i])
    monkeypatch.setattr(target.generation_config, "eos_token_id", end)
    monkeypatch.setattr(target.generation_config, "pad_token_id", 0)
    text = record_text(target, draft, ids, max_new_tokens=N, longest=N)
    tokens, rounds = live(target, draft, ids, policy, n=N)
    assert tokens == text.tokens == plain[: plain.index(end) + 1]
    assert counts(replay(text, policy)) == rounds
    # Nothing is drafted after an end, nor recorded.
    assert not any(end in [d.token for d in drafted[:-1]] for drafted in text.off.values())


class Plain:
    """A policy without state."""

    def verified(self, drafted, accepted):
        pass

    def fresh(self):
        return self


class UsesAll(Plain):
    """Asks for every signal, and for the budget."""

    def observe(self, step):
        before = step.previous.entropy if step.previous else 0.0
        score = step.margin + step.entropy - before - step.log_probability
        stop = step.position >= 2 + step.budget % 3 and score > 1.0
        return Decision.STOP if stop else Decision.CONTINUE


class Skips(Plain):
    """Drafts six tokens, or nothing, by the length of the sequence."""

    def __init__(self, every):
        self.every = every

    def begin(self, start):
        return Decision.CONTINUE if start.length % self.every == 0 else Decision.STOP

    def observe(self, step):
        return Decision.STOP if step.position == 6 else Decision.CONTINUE


def test_a_policy_that_uses_all_there_is(case, target, near_draft):
    ids, text = case
    _, rounds = live(target, near_draft, ids, UsesAll(), n=N)
    assert len({d for d, _ in rounds}) > 3
    assert counts(replay(text, UsesAll())) == rounds


@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("lean", [True, False])
def test_after_skipped_rounds_the_draft_does_not_go_on_from_rejected_tokens(
        case, target, near_draft, lean, every):
    ids, text = case
    with attach(target, Skips(every), lean=lean) as handle:
        greedy(target, ids, near_draft, n=N)
    rounds = counts(handle.rounds)
    assert {d for d, _ in rounds} >= {0, 6}
    assert counts(replay(text, Skips(every))) == rounds


def test_a_policy_starts_anew_each_time(case):
    policy = POLICIES["heuristic"]()
    assert counts(replay(case[1], policy)) == counts(replay(case[1], policy))


def test_a_text_survives_its_file(case):
    text = case[1]
    assert Text.of(json.loads(json.dumps(text.as_dict(), allow_nan=False))) == text


def test_a_trace_too_short_for_a_policy_is_refused(target, near_draft):
    text = record_text(target, near_draft, PROMPTS[0], max_new_tokens=N, longest=4)
    assert replay(text, "constant(4)")
    with pytest.raises(ParameterError, match=r"constant\(length=9\) drafts more than the 4"):
        replay(text, "constant(9)")
    with pytest.raises(TraceError, match="no recorded text"):
        Text.of({"prompt": "x"})


def test_seconds_are_those_of_the_cost_model(case):
    ids, text = case
    cost = CostModel((10, 100), (0.1, 0.2), (tuple(range(1, 20)), tuple(range(2, 21))))
    at = ids.shape[1]
    for r in replay(text, "constant(5)", cost):
        share = min(max((at - 10) / 90, 0.0), 1.0)
        assert r.draft_seconds == pytest.approx(r.drafted * (0.1 + 0.1 * share))
        assert r.verify_seconds == pytest.approx(1 + r.drafted + share)
        at += r.accepted + 1


def test_no_policy_beats_the_oracle(case):
    text = case[1]
    best = seconds(oracle(text, COST))
    for policy in [*sorted(POLICIES), *VARIANTS]:
        assert seconds(replay(text, policy, COST)) >= best - 1e-9
    ideal = first_mismatch(text, COST)
    assert seconds(ideal) >= best - 1e-9
    assert all(r.drafted == r.accepted for r in ideal)
    assert sum(r.accepted + 1 for r in oracle(text, COST)) == len(text.tokens)


@st.composite
def texts(draw):
    """Random texts of two tokens: what is drafted is right or wrong at random."""
    tokens = draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=7))
    if draw(st.booleans()):
        tokens[-1] = 0  # the end of sequence
    longest = 8
    drafted = st.builds(Drafted, st.sampled_from([0, 1, 2]), st.just(0.5), st.just(-0.3),
                        st.just(0.1))
    on = [draw(drafted) for _ in tokens]
    off = {at: [Drafted(1, 0.5, -0.3, 0.1)] * (longest - 1) for at, d in enumerate(on)
           if d.token != tokens[at]}
    limit = len(tokens) if tokens[-1] else len(tokens) + draw(st.integers(0, 3))
    return Text("", "", 0, 5, tokens, limit, frozenset({0}), longest, on, off)


@given(texts(), st.floats(0, 2), st.lists(st.floats(0.1, 3), min_size=9, max_size=9))
def test_the_oracle_is_the_best_of_all_sequences_of_lengths(text, draft, verify):
    """Against trying every length in every round, also where verification costs at random."""
    cost = CostModel.flat(draft, tuple(verify))

    def best(at):
        if at >= len(text.tokens):
            return 0.0
        most = max(0, min(text.budget(at), text.recorded(at), cost.longest))
        return min(cost.draft_seconds(k, 0) + cost.verify_seconds(k, 0)
                   + best(at + 1 + text.accepted(at, k)) for k in range(most + 1))

    rounds = oracle(text, cost)
    assert seconds(rounds) == pytest.approx(best(0))
    assert sum(r.accepted + 1 for r in rounds) == len(text.tokens)


def test_the_oracle_drafts_nothing_where_drafting_is_dear_and_all_where_it_is_free(case):
    text = case[1]
    flat = (1.0,) * (N + 1)
    assert {r.drafted for r in oracle(text, CostModel.flat(5.0, flat))} == {0}
    free = seconds(oracle(text, CostModel.flat(0.0, flat)))
    assert free == pytest.approx(seconds(first_mismatch(text, CostModel.flat(0.0, flat))))


@pytest.mark.parametrize(("made", "said"), [
    (lambda: CostModel((0, 1), (1.0,), ((1.0,),)), "2, 1 and 1"),
    (lambda: CostModel((5, 5), (1.0, 1.0), ((1.0,), (1.0,))), "ascending"),
    (lambda: CostModel((0, 1), (1.0, 1.0), ((1.0,), (1.0, 2.0))), "rows alike"),
    (lambda: CostModel.flat(-1.0, (1.0,)), "seconds"),
    (lambda: CostModel.flat(1.0, (0.0,)), "seconds"),
    (lambda: CostModel.flat(math.nan, (1.0,)), "seconds"),
    (lambda: CostModel.flat(1.0, (1.0,)).verify_seconds(1, 0), "was not measured"),
])
def test_costs_that_are_none(made, said):
    with pytest.raises(ParameterError, match=said):
        made()


def test_constant_by_hand():
    """Text a b c d; the draft is wrong at c: (2 drafted, 2 accepted, c given), then d."""
    right = [Drafted(t, 0.1, -0.1, 0.5) for t in (1, 2, 9, 4)]
    text = Text("", "", 0, 0, [1, 2, 3, 4], 4, frozenset(), 3, right,
                {2: [Drafted(5, 0.1, -0.1, 0.5)] * 2})
    assert text.matches == [2, 1, 0, 1]
    assert counts(replay(text, Constant(3))) == [(3, 2), (0, 0)]
    assert counts(replay(text, Constant(1))) == [(1, 1), (1, 0), (0, 0)]


@pytest.mark.parametrize("n", [5, 64, 65, 150])
def test_distributions_are_those_of_both_models(target, near_draft, n):
    ids = PROMPTS[0]
    text = record_text(target, near_draft, ids, max_new_tokens=n, longest=3, distributions=True)
    whole = torch.cat((ids, torch.tensor([text.tokens])), 1)
    with torch.no_grad():
        p, q = (m(whole).logits[0, ids.shape[1] - 1 : -1].double().softmax(-1).numpy()
                for m in (target, near_draft))
    np.testing.assert_allclose(text.acceptance_rates, bounds.acceptance_rate(p, q), rtol=1e-4)
    np.testing.assert_allclose(text.cross_entropies, bounds.cross_entropy(q, p), rtol=1e-4)
    np.testing.assert_allclose([d.entropy for d in text.on], bounds.cross_entropy(q, q), rtol=1e-3,
                               atol=1e-5)
    plain = record_text(target, near_draft, ids, max_new_tokens=n, longest=3)
    assert plain.on == text.on and plain.acceptance_rates == []


@pytest.mark.parametrize("options", [{"longest": 0}, {"max_new_tokens": 0}])
def test_nothing_to_record_is_refused(target, near_draft, options):
    with pytest.raises(ParameterError, match="at least 1"):
        record_text(target, near_draft, PROMPTS[0], **{"max_new_tokens": 3, **options})


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.3}, {"suppress_tokens": [61, 59]},
                                     {"no_repeat_ngram_size": 2}])
def test_the_targets_own_logits_processors_are_in_force(target, near_draft, monkeypatch, setting):
    """A live draft applies them too; signals are of the raw logits."""
    ids, plain = PROMPTS[0], record_text(target, near_draft, PROMPTS[0], max_new_tokens=N)
    for name, value in setting.items():
        monkeypatch.setattr(target.generation_config, name, value)
    text = record_text(target, near_draft, ids, max_new_tokens=N, longest=N)
    assert text.tokens != plain.tokens
    for policy in ("constant(3)", "svip(threshold=0.6)"):
        tokens, rounds = live(target, near_draft, ids, policy, n=N)
        assert tokens == text.tokens and counts(replay(text, policy)) == rounds
    assert "_get_logits_processor" not in vars(target)


def test_a_draft_of_another_vocabulary_is_refused(target):
    with pytest.raises(ParameterError, match="the target has 64 tokens and the draft 70"):
        record_text(target, tiny(vocab=70), PROMPTS[0], max_new_tokens=3)


def test_a_draft_whose_cache_cannot_go_back_is_refused(target):
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, sliding_window=8)
    draft = transformers.MistralForCausalLM(config).eval()
    if plain_cache(draft) is not None:
        pytest.skip("this version's cache keeps all, and can go back")
    with pytest.raises(UnsupportedError, match="sliding window"):
        record_text(target, draft, PROMPTS[0], max_new_tokens=3)
    with pytest.raises(UnsupportedError, match="sliding window"):
        measure(target, draft, lengths=[8], longest=2)


def test_costs_are_measured_where_the_models_reach(target, near_draft):
    """The tiny models take 512 tokens."""
    cost = CostModel.measure(target, near_draft, lengths=[16, 480, 1024], longest=3, repeats=1)
    assert cost.lengths == (16, 480) and cost.longest == 3
    assert min(cost.draft) > 0 and min(map(min, cost.verify)) > 0
    with pytest.raises(ParameterError, match="no context length is left"):
        measure(target, near_draft, lengths=[2000], longest=3)


def test_the_oracle_reaches_as_far_as_any_policy_can(target, self_draft):
    """A perfect draft is recorded to the end of the text, however short ``longest`` is."""
    text = record_text(target, self_draft, PROMPTS[0], max_new_tokens=N, longest=4)
    assert text.recorded(0) == N
    best = seconds(oracle(text, COST))
    assert best <= seconds(replay(text, "constant(20)", COST))
    assert best <= seconds(replay(text, "svip(threshold=inf)", COST))
    few = CostModel.flat(0.2, (1.0,) * 5)  # of no more than four
    assert max(r.drafted for r in oracle(text, few)) == 4
    assert max(r.drafted for r in first_mismatch(text, few)) == 4
    with pytest.raises(ParameterError, match="was not measured"):
        replay(text, "constant(5)", few)


def test_two_sequences_are_refused(target, near_draft):
    with pytest.raises(UnsupportedError, match=r"\(2, 4\)"):
        record_text(target, near_draft, PROMPTS[0].repeat(2, 1), max_new_tokens=3)
