"""Whole generations by upstream EAGLE with a policy: same text, right counts, clear refusals."""

import copy
import sys
import time
import warnings

import pytest
import torch
from eagle_models import (
    DYNAMIC,
    EAGLE2,
    KINDS,
    SPEC_BENCH2,
    SPEC_BENCH3,
    STATIC,
    configure,
)
from svip_adapters import attach
from svip_adapters import eagle as adapter

from svip_policy import POLICIES, Constant, Decision, Round, provenance, trace
from svip_policy.errors import (
    ParameterError,
    UnsupportedError,
    UpstreamDefectWarning,
)

PROMPT = torch.arange(3, 13)[None]
N = 30


def generated(model, **options):
    """Ids of a generation, trimmed: EAGLE stops only beyond max_new_tokens."""
    return model.eagenerate(PROMPT, max_new_tokens=N, **options)[0, : PROMPT.shape[1] + N].tolist()


def naive(model):
    """Ids of EAGLE's own target-only generation."""
    if hasattr(model, "naivegenerate"):
        ids = model.naivegenerate(PROMPT, max_new_tokens=N)
    else:
        *_, ids = model.naive_generate(PROMPT, max_steps=N)
    return ids[0, : PROMPT.shape[1] + N].tolist()


@pytest.mark.parametrize("reduce", ["best", "weighted"])
@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_the_targets_under_every_policy(eagle, kind, name, reduce):
    model = eagle(kind)
    expected = naive(model)
    assert len(set(expected)) > 3  # not one token all along
    with adapter.attach(model, name, reduce=reduce) as handle:
        assert generated(model) == expected
        assert handle.summary().accepted > 0
    assert generated(model) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_are_what_upstream_accepted(eagle, kind, monkeypatch):
    """Drafted levels by the policy; accepted, nodes and rounds as evaluate_posterior saw them."""
    model = eagle(kind)
    accepted, nodes = [], []
    evaluate = sys.modules[type(model).__module__]

    def spy(logits, candidates, *rest, _original=evaluate.evaluate_posterior):
        result = _original(logits, candidates, *rest)
        accepted.append(int(result[1]))
        return result

    def count(*arguments, _original=evaluate.tree_decoding):
        nodes.append(arguments[1].shape[1] - 1)
        return _original(*arguments)

    monkeypatch.setattr(evaluate, "evaluate_posterior", spy)
    monkeypatch.setattr(evaluate, "tree_decoding", count)
    with adapter.attach(model, "constant(3)") as handle:
        generated(model)
    assert [r.accepted for r in handle.rounds] == accepted
    assert [r.nodes for r in handle.rounds] == nodes
    assert {r.levels for r in handle.rounds} == {3}
    assert len(accepted) > 5 and max(accepted) > 0
    summary = handle.summary()
    assert summary.draft_seconds > 0 and summary.verify_seconds > 0
    # With the target's token: all tokens but the first, which the prompt gave, by rounds.
    assert summary.tokens_per_round == pytest.approx(1 + sum(accepted) / len(accepted))


@pytest.mark.parametrize("kind", DYNAMIC)
def test_upstreams_own_count_of_steps(eagle, kind):
    """SafeAILab's is the index of the last step, from zero; Spec-Bench's copy adds one to it."""
    model = eagle(kind)
    with adapter.attach(model, "constant(2)") as handle:
        ids, new_tokens, last, *lengths = model.eagenerate(PROMPT, max_new_tokens=N, log=True)
    assert len(handle.rounds) == (last if kind in (SPEC_BENCH2, SPEC_BENCH3) else last + 1)
    if lengths:
        assert [int(n) for n in lengths[0]] == [r.accepted + 1 for r in handle.rounds]
    # What it counts as new are the tokens of the rounds, the target's own included.
    assert new_tokens == sum(r.accepted + 1 for r in handle.rounds)
    assert ids.shape[1] == PROMPT.shape[1] + new_tokens


@pytest.mark.parametrize("kind", DYNAMIC)
def test_max_depth_goes_beyond_the_models_own(eagle, kind):
    model = configure(eagle(kind), depth=2)
    with adapter.attach(model, "constant(40)") as handle:
        expected = generated(model)
        assert {r.levels for r in handle.rounds} == {3}
    with adapter.attach(model, "constant(40)", max_depth=9) as handle:
        assert generated(model) == expected
        assert {r.levels for r in handle.rounds} == {9}
    with adapter.attach(model, "constant(40)", max_depth=1) as handle:
        assert generated(model) == expected
        assert {r.levels for r in handle.rounds} == {1}


def test_a_static_tree_has_no_more_levels(eagle):
    model = eagle(STATIC)
    with pytest.raises(UnsupportedError, match="max_depth is 6; the static tree of EAGLE-1 has 5"):
        adapter.attach(model, "svip", max_depth=6)
    with adapter.attach(model, "constant(40)", max_depth=2) as handle:
        generated(model)
    assert {r.levels for r in handle.rounds} == {2}


@pytest.mark.parametrize("kind", KINDS)
def test_none_records_upstreams_own_rounds(eagle, kind):
    model = eagle(kind)
    with adapter.attach(model, "constant(40)") as handle:
        generated(model)
        never_stopped = [(*r[:2], r.nodes, r.levels) for r in handle.rounds]
    with adapter.attach(model, None) as handle:
        generated(model)
        assert [(*r[:2], r.nodes, r.levels) for r in handle.rounds] == never_stopped
        with handle.use("constant(1)"):
            generated(model)
        assert {r.levels for r in handle.generations[1].rounds} == {1}
        generated(model)
        assert [(*r[:2], r.nodes, r.levels) for r in handle.generations[2].rounds] == never_stopped


@pytest.mark.parametrize("kind", KINDS)
def test_each_generation_begins_afresh(eagle, kind):
    model = eagle(kind)
    with attach(model, "heuristic") as handle:  # found by the dispatching attach, too
        generated(model)
        generated(model)
    first, second = handle.generations
    assert [r[:2] for r in first.rounds] == [r[:2] for r in second.rounds]
    assert len({r.levels for r in first.rounds}) > 1


class Skips:
    """Wants to draft nothing in any round."""

    def begin(self, start):
        assert start.budget == 5 and start.length > PROMPT.shape[1]
        return Decision.STOP

    def observe(self, step):
        return Decision.CONTINUE

    def verified(self, drafted, accepted):
        pass

    def fresh(self):
        return self


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_skips_gets_one_level(eagle, kind):
    model = eagle(kind)
    expected = generated(model)
    with adapter.attach(model, Skips()) as handle:
        assert generated(model) == expected
    assert {r.levels for r in handle.rounds} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_refused_by_its_size(eagle, kind):
    model = eagle(kind)
    with adapter.attach(model, "svip"), \
            pytest.raises(UnsupportedError, match="batch size 2; EAGLE generates one sequence"):
        model.eagenerate(PROMPT.repeat(2, 1), max_new_tokens=4)


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_generation(eagle, kind):
    """ea_generate, read to its end, left early, and with a pause that is nobody's time."""
    model = eagle(kind)
    expected = generated(model)
    options = {"max_steps": 40} if kind == STATIC else {"max_new_tokens": N}
    with adapter.attach(model, "constant(3)") as handle:
        for ids in model.ea_generate(PROMPT, **options):
            if ids.shape[1] >= len(expected):
                break
        assert ids[0, : len(expected)].tolist() == expected
        left = model.ea_generate(PROMPT, **options)
        next(left)
        left.close()
        assert generated(model) == expected
        counts = [len(driver.rounds) for driver in handle.generations]
        assert counts[1] == 1 and abs(counts[0] - counts[2]) <= 1
        handle.reset()
        for n, _ in enumerate(model.ea_generate(PROMPT, **options)):
            time.sleep(0.05)
            if n == 5:
                break
        assert sum(r.verify_seconds + r.draft_seconds for r in handle.rounds) < 0.2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_and_inference_mode(eagle, kind, dtype):
    model = copy.deepcopy(eagle(kind)).to(dtype)
    for name in ("past_key_values", "past_key_values_data", "current_length_data"):
        vars(model).pop(name, None)
    for policy in ("svip", "path_probability"):
        with torch.inference_mode(), adapter.attach(model, policy) as handle:
            model.eagenerate(PROMPT, max_new_tokens=8)
            model.eagenerate(PROMPT, max_new_tokens=8, temperature=1.0)
        assert handle.rounds and not handle.degenerate


def test_a_loop_that_keeps_its_tree_to_itself_is_told_so(eagle):
    from eagle_models import draft, first_features

    model = copy.copy(eagle(STATIC))
    model.__dict__ = {k: v for k, v in vars(model).items() if k != "tree_buffers"}
    features = first_features(model)
    with adapter.attach(model, "constant(1)"), \
            pytest.raises(UnsupportedError, match="keeps no tree_buffers"):
        draft(model, features)
    with adapter.attach(model, None):  # changes nothing
        draft(model, features)


@pytest.mark.parametrize("kind", KINDS)
def test_faulty_sampling_of_upstream_is_warned_of(eagle, kind):
    """Where it draws the last token without the temperature, which shorter trees do more."""
    model = eagle(kind)
    faulty = kind in (STATIC, SPEC_BENCH2, SPEC_BENCH3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UpstreamDefectWarning)
        with adapter.attach(model, "constant(1)"):
            model.eagenerate(PROMPT, max_new_tokens=4)
            model.eagenerate(PROMPT, max_new_tokens=4, temperature=1.0)
            assert not [w for w in caught if w.category is UpstreamDefectWarning]
            for _ in range(2):
                model.eagenerate(PROMPT, max_new_tokens=4, temperature=0.5)
    found = [w for w in caught if w.category is UpstreamDefectWarning]
    assert len(found) == faulty


def test_a_wrong_policy_text_names_it(eagle):
    with pytest.raises(ParameterError, match="svip"):
        adapter.attach(eagle(EAGLE2), "svip(h=1)")


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_holds_each_round_level_by_level(eagle, kind, tmp_path):
    model, path = eagle(kind), tmp_path / "t.jsonl"
    with adapter.attach(model, "path_probability(threshold=0.02)") as handle:
        handle.record(path)
        recorded = generated(model)
        with pytest.raises(UnsupportedError, match="without distributions"):
            handle.record(path, distributions=True)
    found = trace.read(path, "rounds")
    assert provenance.missing(found.header) == []
    assert [tuple(e[name] for name in Round._fields) for e in found.entries] \
        == [tuple(r) for r in handle.rounds]
    for entry in found.entries:
        assert len(entry["entropies"]) == len(entry["margins"]) == entry["levels"]
        assert all(0 < p <= 1 for p in entry["probabilities"]) and "tokens" not in entry
    assert max(e["levels"] for e in found.entries) > 1
    with adapter.attach(model, "path_probability(threshold=0.02)"):
        assert generated(model) == recorded


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_step_tells_how_many_nodes_are_verified_after_it(eagle, kind, length):
    """What a policy is told of a level's price is what upstream then verifies."""
    told = []

    class Counting(Constant):
        def observe(self, step):
            decision = super().observe(step)
            if decision is Decision.STOP:
                told.append(step.nodes())
            elif step.budget:
                assert step.nodes(1) >= step.nodes()
            return decision

    model = eagle(kind)
    with adapter.attach(model, Counting(length)) as handle:
        generated(model)
    assert [r.nodes for r in handle.rounds] == told[: len(handle.rounds)]
