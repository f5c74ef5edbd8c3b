"""After detach, target and draft are as before: attributes, configuration, output."""

import copy
import gc
import random
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import svip_adapters
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny

from svip_policy import SVIP, Constant, Decision
from svip_policy.errors import (
    AlreadyAttachedError,
    PatchedOverWarning,
    UnknownUpstreamError,
    UnknownUpstreamWarning,
)


def snapshot(model):
    """All that a patch or a generation could have changed."""
    return (
        dict(vars(model)), {k: id(v) for k, v in vars(type(model)).items()},
        model.config.to_dict(), copy.deepcopy(vars(model.generation_config)),
        id(model.generation_config), len(model._forward_hooks),
    )


def run(target, draft, **options):
    return target.generate(
        torch.arange(3, 13)[None], max_new_tokens=20, do_sample=False, assistant_model=draft,
        **options,
    )


class Broken:
    """Raises at its third token."""

    def observe(self, step):
        if step.position == 3:
            raise ZeroDivisionError("policy")
        return Decision.CONTINUE

    def verified(self, drafted, accepted):
        pass

    def fresh(self):
        return self


@pytest.fixture
def pair():
    target, draft = tiny(), tiny(seed=1, hidden=16, layers=1)
    for model in (target, draft):  # as loaded from a checkpoint that sets all of this
        model.generation_config.num_assistant_tokens = 7
        model.generation_config.num_assistant_tokens_schedule = "heuristic"
        model.generation_config.assistant_confidence_threshold = 0.3
        model.generation_config.eos_token_id = 2
    target.generation_config.eos_token_id = [2, 5]  # differs from the draft's
    return target, draft


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("early_exit", [None, 1])
def test_after_a_normal_end(pair, lean, early_exit):
    target, draft = pair
    draft = None if early_exit else draft
    before = snapshot(target), snapshot(pair[1])
    with svip_adapters.attach(target, "heuristic(3)", lean=lean):
        run(target, draft, assistant_early_exit=early_exit)
    assert (snapshot(target), snapshot(pair[1])) == before


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("early_exit", [None, 1])
def test_after_an_exception_inside_generate(pair, lean, early_exit):
    target, draft = pair
    draft = None if early_exit else draft
    before = snapshot(target), snapshot(pair[1])
    expected = run(target, None)
    with pytest.raises(ZeroDivisionError), svip_adapters.attach(target, Broken(), lean=lean):
        run(target, draft, assistant_early_exit=early_exit)
    assert (snapshot(target), snapshot(pair[1])) == before
    assert torch.equal(run(target, None), expected)


@pytest.mark.parametrize("lean", [True, False])
def test_the_configuration_is_untouched_even_while_attached(pair, lean):
    target, draft = pair
    before = copy.deepcopy(vars(draft.generation_config))
    with svip_adapters.attach(target, "constant(3)", lean=lean):
        run(target, draft)
        assert vars(draft.generation_config) == before


def test_detaching_several_out_of_order(draft):
    targets = [tiny(seed=s) for s in range(3)]
    before = [snapshot(t) for t in targets]
    handles = [svip_adapters.attach(t, Constant(n + 1)) for n, t in enumerate(targets)]
    for n in (1, 0, 2):
        for target, handle in zip(targets, handles, strict=True):
            handle.reset()
            run(target, draft)
            assert bool(handle.rounds) == handle.attached
        handles[n].detach()
        assert snapshot(targets[n]) == before[n]
    assert [snapshot(t) for t in targets] == before


@settings(max_examples=15)
@given(order=st.permutations(range(3)), seed=st.integers(0, 999))
def test_any_sequence_of_attach_generate_detach(order, seed):
    rng = random.Random(seed)
    targets = [tiny(seed=s, layers=1) for s in range(3)]
    draft, before = tiny(seed=9, layers=1), [snapshot(t) for t in targets]
    handles = {n: svip_adapters.attach(targets[n], "svip", lean=rng.random() < 0.5) for n in order}
    for n in rng.sample(range(3), 3):
        if rng.random() < 0.5:
            run(targets[rng.randrange(3)], draft)
        handles[n].detach()
        assert snapshot(targets[n]) == before[n]


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("early_exit", [None, 1])
def test_settings_of_one_call_do_not_stay(pair, lean, early_exit):
    target, draft = pair
    draft = None if early_exit else draft
    before = snapshot(target), snapshot(pair[1])
    with svip_adapters.attach(target, "constant(3)", lean=lean):
        run(target, draft, assistant_early_exit=early_exit, eos_token_id=9)
    assert (snapshot(target), snapshot(pair[1])) == before


def test_nested_blocks_detach_at_the_outermost(target):
    with svip_adapters.attach(target, "svip") as outer:
        with svip_adapters.attach(target, "svip") as inner:
            assert inner is outer
        assert outer.attached
        with pytest.raises(AlreadyAttachedError, match="lean=True"):
            svip_adapters.attach(target, "svip", lean=False)
    assert not outer.attached and "_get_candidate_generator" not in vars(target)


def test_detach_is_whole_even_where_warnings_are_errors(target, draft):
    handle = svip_adapters.attach(target, "svip")
    inner = target._get_candidate_generator
    target._get_candidate_generator = lambda *args, **kwargs: inner(*args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PatchedOverWarning):
            handle.detach()
    assert "_get_stopping_criteria" not in vars(target)
    del target._get_candidate_generator


def test_threads_with_a_draft_of_their_own(draft):
    """Rounds and policies of one generation do not mix with another's."""
    target, other = tiny(), tiny(seed=4, hidden=16, layers=1)
    expected = run(target, None)
    with svip_adapters.attach(target, "heuristic(2)") as handle, ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda n: run(target, (draft, other)[n % 2]), range(12)))
    assert all(torch.equal(out, expected) for out in outs)
    assert len(handle.generations) == 12 == len({id(g) for g in handle.generations})
    assert {sum(r.accepted + 1 for r in g.rounds) for g in handle.generations} == {20}


def test_the_same_policy_twice_is_one_attachment(target):
    with svip_adapters.attach(target, "svip") as handle:
        assert svip_adapters.attach(target, SVIP()) is handle
        with pytest.raises(AlreadyAttachedError, match=r"svip\(.*detach"):
            svip_adapters.attach(target, "constant(2)")
        with handle.use("constant(2)"):
            assert handle.policy == Constant(2)
    with svip_adapters.attach(target, "constant(2)") as other:
        assert other is not handle


def test_another_policy_for_a_while(target, self_draft, prompt):
    with svip_adapters.attach(target, "constant(2)") as handle:
        with handle.use("constant(6)"):
            run(target, self_draft)
        run(target, self_draft)
    assert [g.rounds[0].drafted for g in handle.generations] == [6, 2]


@pytest.mark.parametrize("detach", [True, False])
def test_neither_an_attached_nor_a_detached_model_is_kept_alive(draft, detach):
    target = tiny()
    handle = svip_adapters.attach(target, "svip")
    run(target, draft)
    if detach:
        handle.detach()
    gone = weakref.ref(target)
    del target, handle
    gc.collect()
    assert gone() is None


def test_a_copy_of_an_attached_model_is_free(target, draft):
    with svip_adapters.attach(target, "constant(3)") as handle:
        run(copy.deepcopy(target), draft)
        assert handle.rounds == []


@pytest.mark.parametrize("thing", [None, 3, torch.nn.Linear(2, 2), tiny])
def test_what_is_no_target_is_refused(thing):
    with pytest.raises(TypeError, match="give a transformers model"):
        svip_adapters.attach(thing, "svip")
    with pytest.raises(TypeError, match="give a transformers model"):
        svip_adapters.hf.attach(thing, "svip")


def test_unknown_transformers_is_refused_or_warned_of(target, draft, monkeypatch):
    from svip_adapters import _fingerprint

    key = ("transformers.generation.utils", "GenerationMixin._assisted_decoding")
    monkeypatch.setitem(_fingerprint.FINGERPRINTS["transformers"], key, {"0" * 64: "4.0"})
    with pytest.raises(UnknownUpstreamError, match="_assisted_decoding"):
        svip_adapters.attach(target, "svip")
    with pytest.warns(UnknownUpstreamWarning, match="_assisted_decoding"):
        handle = svip_adapters.attach(target, "svip", on_unknown="warn")
    with handle:
        run(target, draft)


def test_a_refusal_leaves_no_trace(pair, prompt):
    target, draft = pair
    before = snapshot(target), snapshot(draft)
    with svip_adapters.attach(target, "svip"), pytest.raises(ValueError, match="batch"):
        target.generate(prompt.repeat(2, 1), assistant_model=draft, max_new_tokens=4)
    assert (snapshot(target), snapshot(draft)) == before
