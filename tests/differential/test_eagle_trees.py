"""Trees drafted with a policy against those of upstream EAGLE's own code."""

import random

import pytest
import torch
from eagle_models import (
    DYNAMIC,
    EAGLE2,
    KINDS,
    STATIC,
    configure,
    draft,
    first_features,
    modules,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from svip_adapters import eagle as adapter

from svip_policy import Constant

PROMPT = torch.arange(3, 13)[None]
# (total_token, depth, top_k) that unpatched upstream can draft: enough nodes are there.
WORKING = [(60, 7, 10), (60, 1, 10), (26, 2, 4), (20, 4, 4), (5, 0, 4), (2, 3, 2), (64, 9, 8),
           (11, 0, 10), (40, 5, 5), (30, 12, 3)]
# Those it cannot: the selection asks for more nodes than there are.
FAILING = [(60, 0, 10), (60, 5, 3), (26, 1, 4)]


def same(left, right):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("tree", WORKING)
@pytest.mark.parametrize("kind", DYNAMIC)
def test_never_stopping_is_bit_identical(eagle, kind, tree):
    model = configure(eagle(kind), *tree)
    features = first_features(model)
    expected = draft(model, features)
    with adapter.attach(model, "svip(threshold=inf)"):
        assert same(draft(model, features), expected)
    text = model.eagenerate(PROMPT, max_new_tokens=20, log=True)
    with adapter.attach(model, "svip(threshold=inf)"):
        again = model.eagenerate(PROMPT, max_new_tokens=20, log=True)
    assert torch.equal(text[0], again[0]) and text[1:] == again[1:]


@pytest.mark.parametrize("kind", DYNAMIC)
def test_stopping_after_a_level_is_upstream_with_that_depth(eagle, kind):
    model = configure(eagle(kind), 30, 7, 6)
    features = first_features(model)
    for levels in range(1, 9):
        configure(model, 30, 7, 6)
        with adapter.attach(model, Constant(levels)):
            stopped = draft(model, features)
        if levels > 1:
            configure(model, 30, levels - 1, 6)
            assert same(stopped, draft(model, features)), levels
        else:  # upstream cannot select 29 of 6 nodes
            assert stopped[0].shape == (1, 7)


@pytest.mark.parametrize("tree", FAILING)
@pytest.mark.parametrize("kind", DYNAMIC)
def test_fewer_nodes_than_asked_for(eagle, kind, tree):
    model = configure(eagle(kind), *tree)
    features = first_features(model)
    with pytest.raises(RuntimeError, match="out of range"):
        draft(model, features)
    _, depth, k = tree
    with adapter.attach(model, "svip(threshold=inf)"):
        check_tree(draft(model, features), 1 + k + depth * k * k, depth + 1)


def check_tree(drafted, size, levels):
    """Mask, positions and retrieve indices fit together and describe one tree of ``size``."""
    tokens, paths, mask, positions = drafted
    assert tokens.shape == (1, size) and mask.shape == (1, 1, size, size)
    mask = mask[0, 0]
    assert torch.equal(mask.diagonal(), torch.ones(size)) and mask[:, 0].all()
    assert torch.equal(positions, (mask.sum(1) - 1).long())
    assert positions.max() <= levels
    covered = set()
    for row in paths.tolist():
        path = [node for node in row if node >= 0]
        assert row == path + [-1] * (len(row) - len(path))
        assert path[0] == 0
        # A node sees exactly those before it on its path.
        assert sorted(path) == mask[path[-1]].nonzero().view(-1).tolist()
        assert [int(positions[node]) for node in path] == list(range(len(path)))
        covered.update(path)
    assert covered == set(range(size))
    # Siblings are different tokens, so that no path is drafted twice.
    texts = [tuple(tokens[0, [n for n in row if n >= 0]].tolist()) for row in paths.tolist()]
    assert len(set(texts)) == len(texts)


@settings(max_examples=60)
@given(total=st.integers(2, 90), depth=st.integers(0, 6), k=st.integers(1, 8),
       levels=st.integers(1, 12), deeper=st.integers(0, 4))
@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_stop_after_any_level_is_a_legal_tree(eagle, kind, total, depth, k, levels, deeper):
    model = configure(eagle(kind), total, depth, k)
    limit = depth + 1 + deeper
    with adapter.attach(model, Constant(levels), max_depth=limit):
        drafted = draft(model, first_features(model))
    levels = min(levels, limit)
    check_tree(drafted, 1 + min(total - 1, k + (levels - 1) * k * k), levels)


@pytest.fixture
def static(eagle):
    model = eagle(STATIC)
    model.eagenerate(PROMPT, max_new_tokens=2)  # makes the shared buffers
    return model


def copied(buffers):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in buffers.items()}


def check_cut(buffers, choices):
    """The buffers describe the tree of ``choices``."""
    choices = sorted(choices, key=lambda c: (len(c), c))
    size = len(choices) + 1
    mask = buffers["tree_attn_mask"][0, 0]
    assert mask.shape == (size, size) and buffers["tree_indices"].shape == (size,)
    for i, choice in enumerate(choices):
        seen = {0} | {choices.index(choice[:n]) + 1 for n in range(1, len(choice) + 1)}
        assert set(mask[i + 1].nonzero().view(-1).tolist()) == seen
        assert buffers["tree_position_ids"][i + 1] == len(choice)
    leaves = {choices[row[row >= 0][-1] - 1 if row[row >= 0][-1] else 0].__repr__()
              for row in buffers["retrieve_indices"]}
    assert leaves == {repr(c) for c in choices if not any(
        d[: len(c)] == c and len(d) > len(c) for d in choices)}
    assert torch.equal(buffers["retrieve_indices"], buffers["retrieve_indices_head"])


@pytest.mark.parametrize("levels", range(1, 6))
def test_a_static_tree_is_cut_to_the_levels_drafted(static, levels):
    whole = copied(static.tree_buffers)
    shared, choices = static.tree_buffers, static.tree_choices
    with adapter.attach(static, Constant(levels)) as handle:
        static.eagenerate(PROMPT, max_new_tokens=20)
        assert static.tree_buffers is shared and static.tree_choices == choices
        check_cut(shared, [c for c in choices if len(c) <= levels])
        assert static.base_model.model.tree_mask.shape == shared["tree_attn_mask"].shape
        cut = shared["tree_attn_mask"]
        static.eagenerate(PROMPT, max_new_tokens=20)
        assert shared["tree_attn_mask"] is cut  # one set for each depth
    assert {r.nodes for r in handle.rounds} == {cut.shape[-1] - 1}
    assert static.tree_buffers is shared
    for name, value in whole.items():
        now = shared[name]
        assert torch.equal(now, value) if isinstance(value, torch.Tensor) else now is value, name
    assert static.base_model.model.tree_mask.shape == whole["tree_attn_mask"].shape


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=12),
       st.integers(1, 5))
def test_static_trees_of_any_shape(static, paths, levels):
    """A tree of the user's is cut like the default one."""
    # Upstream wants every node's ancestors and its siblings before it, and a second level.
    choices = {(*path[:n], s) for path in [*paths, [0, 0]] for n, last in enumerate(path)
               for s in range(last + 1)}
    choices = [list(c) for c in sorted(choices, key=lambda c: (len(c), c))]
    layer, (_, cnets) = static.ea_layer, modules(STATIC)
    before = layer.tree_buffer
    layer.tree_buffer = cnets.generate_tree_buffers(choices, "cpu")
    try:
        expected = static.eagenerate(PROMPT, max_new_tokens=12, tree_choices=choices)
        with adapter.attach(static, Constant(levels)) as handle:
            got = static.eagenerate(PROMPT, max_new_tokens=12, tree_choices=choices)
            check_cut(static.tree_buffers, [c for c in choices if len(c) <= levels])
    finally:
        layer.tree_buffer = before
    length = PROMPT.shape[1] + 12
    assert torch.equal(got[:, :length], expected[:, :length])
    assert {r.nodes for r in handle.rounds} == {sum(len(c) <= levels for c in choices)}


@pytest.mark.parametrize("kind", KINDS)
def test_never_stopping_is_bit_identical_when_sampling(eagle, kind):
    model = eagle(kind)

    def sampled():
        random.seed(7)
        torch.manual_seed(7)
        return model.eagenerate(PROMPT, max_new_tokens=30, temperature=1.0)

    expected = sampled()
    with adapter.attach(model, "svip(threshold=inf)"):
        assert torch.equal(sampled(), expected)


def test_never_stopping_a_static_tree_is_bit_identical(eagle):
    model = eagle(STATIC)
    features = first_features(model)
    expected = draft(model, features)
    with adapter.attach(model, "svip(threshold=inf)"):
        model.eagenerate(PROMPT, max_new_tokens=4)
        again = draft(model, features)
    assert same(again[:2], expected[:2])


def test_the_edited_lines_show_in_a_traceback(eagle):
    import traceback

    class Broken(Constant):
        def observe(self, step):
            raise ZeroDivisionError("policy")

    model = eagle(EAGLE2)
    with adapter.attach(model, Broken()), pytest.raises(ZeroDivisionError) as raised:
        draft(model, first_features(model))
    text = "".join(traceback.format_exception(raised.value))
    assert "topK_genrate with a policy" in text and "for i in __svip_levels__(" in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_raises_does_not_spoil_the_next_generation(eagle, kind):
    class Broken(Constant):
        def observe(self, step):
            if step.position == 2:
                raise ZeroDivisionError("policy")
            return super().observe(step)

    model = eagle(kind)
    expected = model.eagenerate(PROMPT, max_new_tokens=10)
    with adapter.attach(model, "constant(2)") as handle:
        with handle.use(Broken()), pytest.raises(ZeroDivisionError):
            model.eagenerate(PROMPT, max_new_tokens=10)
        got = model.eagenerate(PROMPT, max_new_tokens=10)
    assert torch.equal(got[:, :20], expected[:, :20])
    assert handle.generations[0].rounds == [] and len(handle.generations[1].rounds) > 2
