"""NaN and overflow in EAGLE's draft: what is spoilt stops, the rest goes on."""

import math

import pytest
import torch
from eagle_models import DYNAMIC, KINDS, STATIC, configure, draft, first_features
from svip_adapters import eagle as adapter

from svip_policy import Constant, Decision
from svip_policy.errors import DegenerateLogitsWarning

PROMPT = torch.arange(3, 13)[None]
N = 30


def generated(model):
    """Ids of a generation, trimmed: EAGLE stops only beyond max_new_tokens."""
    return model.eagenerate(PROMPT, max_new_tokens=N)[0, : PROMPT.shape[1] + N].tolist()


def spoil_row(model, call, row):
    """A hook after which one row of the draft's features is NaN in its call number ``call``."""
    seen = []

    def hook(module, arguments, output):
        seen.append(output[0].shape[1])
        if len(seen) == call:
            output[0][:, row] = math.nan
        return output

    return model.ea_layer.register_forward_hook(hook)


# Masked attention hands the NaN on to every row of the level after.
@pytest.mark.filterwarnings("ignore::svip_policy.errors.DegenerateLogitsWarning")
@pytest.mark.parametrize("reduce", ["best", "weighted"])
@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_one_branch_stops_only_that_branch(eagle, kind, row, reduce):
    model = eagle(kind)
    expected = generated(model)
    decisions = []

    class Policy(Constant):
        def observe(self, step):
            decisions.append((step.position, step.degenerate, step.entropy))
            return super().observe(step)

    with adapter.attach(model, Policy(3), reduce=reduce):
        hook = spoil_row(model, 2, row)  # the first tree's second level
        try:
            assert generated(model) == expected
        finally:
            hook.remove()
    # The level with the bad row is judged by the others, and another one is drafted.
    position, degenerate, entropy = decisions[1]
    assert position == 2 and not degenerate and math.isfinite(entropy)
    assert decisions[2][0] == 3


@pytest.mark.parametrize("kind", DYNAMIC)
def test_nodes_of_a_nan_branch_are_not_verified(eagle, kind):
    """Upstream ranks NaN above everything and would verify these nodes first."""
    model = configure(eagle(kind), total_token=60)
    features = first_features(model)

    class Stop(Constant):
        def observe(self, step):
            return Decision.STOP if step.position == 2 else Decision.CONTINUE

    with adapter.attach(model, Stop()):
        whole = draft(model, features)[0].shape[1]
        hook = spoil_row(model, 2, 1)
        spoiled = draft(model, features)[0].shape[1]
        hook.remove()
    assert whole == 1 + 4 + 16
    assert spoiled == 1 + 4 + 12


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_nan_stops_and_is_counted(eagle, kind):
    model = eagle(kind)
    expected = generated(model)
    hook = model.ea_layer.register_forward_hook(lambda m, a, out: (out[0] * math.nan, out[1]))
    try:
        with adapter.attach(model, "constant(4)") as handle, \
                pytest.warns(DegenerateLogitsWarning):
            assert generated(model) == expected
    finally:
        hook.remove()
    assert {r.levels for r in handle.rounds} == {1}
    assert handle.degenerate == len(handle.rounds) + 1  # one tree is never verified


def overflowing_head(model, call, row):
    """A hook after which one row of the draft's logits is +inf, its features being fine."""
    head = getattr(model.ea_layer, "lm_head", model.base_model.lm_head)
    seen = []

    def hook(module, arguments, output):
        if arguments[0].ndim == 2:  # the draft's: the target's has a batch
            seen.append(output.shape[0])
            if len(seen) == call:
                output[row] = math.inf
        return output

    return head.register_forward_hook(hook)


@pytest.mark.filterwarnings("ignore::svip_policy.errors.DegenerateLogitsWarning")
@pytest.mark.parametrize("reduce", ["best", "weighted"])
@pytest.mark.parametrize("kind", KINDS)
def test_overflow_in_one_row_of_the_head(eagle, kind, reduce):
    """NaN scores and paths from there on, while all logits after it are finite."""
    model = eagle(kind)
    expected = generated(model)
    seen = []

    class Policy(Constant):
        def observe(self, step):
            seen.append((step.position, step.entropy, step.log_probability, step.degenerate))
            return super().observe(step)

    with adapter.attach(model, Policy(4), reduce=reduce) as handle:
        hook = overflowing_head(model, 2, 0)
        try:
            assert generated(model) == expected
        finally:
            hook.remove()
    # In EAGLE-1's tree all nodes of the fourth level descend from the dead row.
    alive = 3 if kind == STATIC else 4
    first = seen[:alive]
    assert [position for position, *_ in seen[:4]] == [1, 2, 3, 4]
    assert all(math.isfinite(entropy) and probability <= 1e-6 and not degenerate
               for _, entropy, probability, degenerate in first)
    assert {r.levels for r in handle.rounds} == {4}
    assert handle.degenerate == (kind == STATIC)


@pytest.mark.parametrize("kind", DYNAMIC)
def test_the_tree_goes_on_beside_a_dead_branch(eagle, kind):
    model = configure(eagle(kind), total_token=60)
    features = first_features(model)
    with adapter.attach(model, "constant(4)"):
        hook = overflowing_head(model, 2, 0)
        _, paths, _, positions = draft(model, features)
        hook.remove()
    # Below the dead row nothing; beside it as deep as was asked for.
    assert positions.max() == 4 and paths.shape[1] == 5
