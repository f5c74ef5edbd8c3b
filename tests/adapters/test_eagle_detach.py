"""After detach, EAGLE's model, head and modules are as before."""

import copy
import gc
import inspect
import sys
import weakref

import eagle_models
import pytest
import torch
from eagle_models import DYNAMIC, EAGLE2, KINDS, STATIC, configure, modules
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from svip_adapters import _upstreams
from svip_adapters import eagle as adapter

from svip_policy import Constant
from svip_policy.errors import (
    AlreadyAttachedError,
    PatchedOverWarning,
    UnknownUpstreamError,
    UnknownUpstreamWarning,
)

PROMPT = torch.arange(3, 13)[None]


def plain(value):
    """A value that can be compared: tensors by content, objects by identity."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, float, str, type(None))) else id(value)


# What a generation leaves behind by itself: caches, and the last tree's mask.
OWN = {"stable_kv", "tree_mask", "past_key_values", "past_key_values_data", "tree_buffers",
       "current_length_data", "tree_choices", "_buffers", "_modules", "_parameters"}


def snapshot(kind, model):
    """All that attaching or generating with a policy could have changed."""
    packages = [m for name, m in sys.modules.items()
                if name.startswith(eagle_models.package(kind))]
    return {
        "model": {k: plain(v) for k, v in vars(model).items() if k not in OWN},
        "layer": {k: plain(v) for k, v in vars(model.ea_layer).items() if k not in OWN},
        "buffers": plain(getattr(model, "tree_buffers", None)),
        "classes": {k: id(v) for c in (type(model), type(model.ea_layer))
                    for k, v in vars(c).items()},
        "modules": [{k: id(v) for k, v in vars(m).items()} for m in packages],
        "config": model.config.to_dict(),
        "hooks": len(model.ea_layer._forward_hooks) + len(model._forward_hooks),
    }


class Broken(Constant):
    """Raises at its second level."""

    def observe(self, step):
        if step.position == 2:
            raise ZeroDivisionError("policy")
        return super().observe(step)


@pytest.mark.parametrize("kind", KINDS)
def test_random_sequences_leave_nothing_behind(eagle, kind):
    """attach, generate, exception, exchange, record, detach, in any order."""
    model = eagle(kind)
    expected = model.eagenerate(PROMPT, max_new_tokens=8)
    before = snapshot(kind, model)

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.handle = None

        @precondition(lambda self: self.handle is None)
        @rule(policy=st.sampled_from([None, "svip", "constant(2)", "heuristic"]),
              reduce=st.sampled_from(["best", "weighted"]), depth=st.sampled_from([None, 2]))
        def attach(self, policy, reduce, depth):
            self.handle = adapter.attach(model, policy, reduce=reduce, max_depth=depth)

        @rule()
        def generate(self):
            ids = model.eagenerate(PROMPT, max_new_tokens=8)
            length = PROMPT.shape[1] + 8
            assert torch.equal(ids[:, :length], expected[:, :length])

        @precondition(lambda self: self.handle is not None)
        @rule()
        def fail(self):
            with self.handle.use(Broken()), pytest.raises(ZeroDivisionError):
                model.eagenerate(PROMPT, max_new_tokens=8)

        @precondition(lambda self: self.handle is not None)
        @rule()
        def fail_in_the_target(self):
            def broken(*args, **kwargs):
                if args[0].shape[1] != PROMPT.shape[1]:
                    raise KeyError("target")
                return original(*args, **kwargs)

            layer = model.base_model.model.layers[0]
            original = layer.forward
            layer.forward = broken
            try:
                with pytest.raises(KeyError, match="target"):
                    model.eagenerate(PROMPT, max_new_tokens=8)
            finally:
                del layer.forward

        @precondition(lambda self: self.handle is not None)
        @rule()
        def exchange(self):
            with self.handle.use("constant(1)"):
                self.generate()

        @precondition(lambda self: self.handle is not None)
        @rule()
        def detach(self):
            self.handle.detach()
            self.handle = None
            assert snapshot(kind, model) == before
            self.generate()

        def teardown(self):
            if self.handle is not None:
                self.detach()
            assert snapshot(kind, model) == before

    Machine.TestCase.settings = settings(
        max_examples=20, stateful_step_count=12, deadline=None,
        suppress_health_check=list(HealthCheck))
    Machine.TestCase().runTest()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_policy_gives_the_same_handle_another_is_an_error(eagle, kind):
    model = eagle(kind)
    with adapter.attach(model, "svip") as handle:
        assert adapter.attach(model, "svip(threshold=0.3)") is handle
        with pytest.raises(AlreadyAttachedError, match="detach"):
            adapter.attach(model, "constant(2)")
        with pytest.raises(AlreadyAttachedError, match="detach"):
            adapter.attach(model, "svip", reduce="weighted")
        with pytest.raises(AlreadyAttachedError, match="detach"):
            adapter.attach(model, "svip", max_depth=2)
    assert not handle.attached
    adapter.attach(model, "constant(2)").detach()


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_not_attached(eagle, kind):
    model = eagle(kind)
    before = copy.deepcopy(model)
    with adapter.attach(model, "constant(1)") as handle:
        copied = copy.deepcopy(model)
        copied.eagenerate(PROMPT, max_new_tokens=4)
        assert handle.rounds == []
        model.eagenerate(PROMPT, max_new_tokens=4)
        late = copy.deepcopy(model)  # of a static tree, while it is cut
        handle.reset()
        for one in (copied, late, before):
            with adapter.attach(one, "constant(2)") as other:
                one.eagenerate(PROMPT, max_new_tokens=4)
            assert {r.levels for r in other.rounds} == {2} and not handle.rounds
            if kind == STATIC:
                assert len(one.tree_buffers["tree_indices"]) == len(one.tree_choices) + 1


def test_a_forgotten_handle_lets_the_model_go(eagle_folder, eagle):
    eagle(STATIC)  # skips where it is not installed
    model = eagle_models.load(STATIC, eagle_folder)
    adapter.attach(model, "svip")
    model.eagenerate(PROMPT, max_new_tokens=4)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", [STATIC, EAGLE2])
def test_another_librarys_wrapper_is_refused_before_and_left_after(eagle, kind):
    model = eagle(kind)
    layer = model.ea_layer
    original = layer.topK_genrate
    layer.topK_genrate = lambda *args, **kwargs: original(*args, **kwargs)
    try:
        with pytest.raises(UnknownUpstreamError, match="other code has replaced it"):
            adapter.attach(model, "svip")
    finally:
        del layer.topK_genrate
    handle = adapter.attach(model, "constant(1)")
    ours = layer.topK_genrate
    wrapper = layer.topK_genrate = lambda *args, **kwargs: ours(*args, **kwargs)
    try:
        with pytest.warns(PatchedOverWarning, match="topK_genrate"):
            handle.detach()
        assert layer.topK_genrate is wrapper
        model.eagenerate(PROMPT, max_new_tokens=4)
        assert handle.rounds == []
    finally:
        del layer.topK_genrate


@pytest.mark.parametrize("kind", [STATIC, EAGLE2])
def test_a_class_that_was_patched_is_refused(eagle, kind, monkeypatch):
    model = eagle(kind)
    monkeypatch.setattr(type(model.ea_layer), "topK_genrate", lambda self, *args: None)
    with pytest.raises(UnknownUpstreamError, match="other code has replaced it"):
        adapter.attach(model, "svip")


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_source_names_all_that_helps(eagle, kind, monkeypatch):
    model = eagle(kind)
    name = "eagle-static" if kind == STATIC else "eagle-dynamic"
    known = dict(_upstreams.FINGERPRINTS[name])
    key = ("cnets", "Model.topK_genrate")
    monkeypatch.setitem(_upstreams.FINGERPRINTS, name, {**known, key: {"0" * 64: "X 2020-01-01"}})
    file = inspect.getsourcefile(type(model.ea_layer))
    for on_unknown in ("raise", "warn"):  # a splice always refuses
        with pytest.raises(UnknownUpstreamError) as raised:
            adapter.attach(model, "svip", on_unknown=on_unknown)
        message = str(raised.value)
        assert file in message and "Model.topK_genrate" in message
        assert "000000000000 (X 2020-01-01)" in message
        assert "Install one of these" in message and "warn" not in message


def test_an_unknown_function_that_is_only_wrapped_may_warn(eagle, monkeypatch):
    model = eagle(STATIC)
    known = dict(_upstreams.FINGERPRINTS["eagle-static"])
    key = ("cnets", "Model.reset_kv")
    monkeypatch.setitem(_upstreams.FINGERPRINTS, "eagle-static", {**known, key: {"0" * 64: "X 1"}})
    with pytest.raises(UnknownUpstreamError, match="on_unknown='warn'"):
        adapter.attach(model, "svip")
    with pytest.warns(UnknownUpstreamWarning, match="reset_kv"):
        adapter.attach(model, "svip", on_unknown="warn").detach()


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_subclass_of_the_users_is_attached_too(eagle, kind):
    model = configure(eagle(kind))
    upstream, _ = modules(kind)

    class Mine(upstream.EaModel):
        def eagenerate(self, *args, **kwargs):
            return super().eagenerate(*args, **kwargs)

    before = type(model)
    model.__class__ = Mine
    try:
        with adapter.attach(model, Constant(1)) as handle:
            model.eagenerate(PROMPT, max_new_tokens=4)
        assert {r.levels for r in handle.rounds} == {1}
    finally:
        model.__class__ = before


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_answer_of_a_policy_is_named(eagle, kind):
    class Wrong(Constant):
        def observe(self, step):
            return True

    model = eagle(kind)
    with adapter.attach(model, Wrong()), pytest.raises(TypeError, match="answered True"):
        model.eagenerate(PROMPT, max_new_tokens=4)
