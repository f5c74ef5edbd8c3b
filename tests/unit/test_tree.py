"""A level of a draft tree: signals reduced over its rows, rounds that count nodes."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from svip_policy import (
    Decision,
    DraftStep,
    PolicyDriver,
    Round,
    RoundStart,
    Summary,
    TreeStep,
    parse,
    signals,
)
from svip_policy.errors import DegenerateLogitsWarning

LEVELS = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 5), st.integers(2, 9)),
    elements=st.floats(-20, 20, width=32))


def level(logits, paths=None, frontier=None, reduce="best", library=np, **options):
    logits = library.asarray(logits)
    paths = [0.0] * logits.shape[0] if paths is None else paths
    frontier = [-1.0] if frontier is None else frontier
    return TreeStep(1, logits, paths=lambda: library.asarray(paths),
                    frontier=lambda: library.asarray(frontier), reduce=reduce, **options)


@pytest.mark.parametrize("library", [np, torch])
def test_the_best_path_gives_the_signals(library):
    step = level([[0.0, 0.0], [9.0, 0.0]], [-2.0, -1.0], [-1.5, -3.0], library=library)
    assert step.entropy == pytest.approx(signals.entropy_value(np.array([9.0, 0.0])), rel=1e-3)
    assert step.log_probability == pytest.approx(-1.5)


@pytest.mark.parametrize("library", [np, torch])
def test_weighted_by_path_probability(library):
    paths = [math.log(0.1), math.log(0.3)]
    step = level([[0.0, 0.0], [0.0, -math.inf]], paths, [math.log(0.15), math.log(0.05)],
                 "weighted", library)
    assert step.entropy == pytest.approx(0.25 * math.log(2), rel=1e-5)
    assert step.log_probability == pytest.approx(math.log(0.2), rel=1e-5)


@pytest.mark.parametrize("reduce", ["best", "weighted"])
@given(LEVELS)
def test_a_reduced_entropy_lies_within_the_rows(reduce, logits):
    each = signals.entropy(logits)
    paths = np.linspace(-3, 0, len(logits), dtype=np.float32)
    value = level(logits, paths, reduce=reduce).entropy
    assert each.min() - 1e-4 <= value <= each.max() + 1e-4
    if reduce == "best":
        assert value == pytest.approx(each[-1], abs=1e-4)


@pytest.mark.parametrize("reduce", ["best", "weighted"])
@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_degenerate_row_stops_only_itself(reduce, library, bad):
    whole = [[1.0, 0.0, 3.0], [0.5, 0.0, 0.0]]
    broken = [[bad] * 3, *whole]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = level(broken, [0.0, -1.0, -2.0], reduce=reduce, library=library)
        rest = level(whole, [-1.0, -2.0], reduce=reduce, library=library)
        assert step.entropy == pytest.approx(rest.entropy, rel=1e-5)
        assert not step.degenerate


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("reduce", ["best", "weighted"])
def test_nan_paths_count_in_nothing(reduce, library):
    """Of a row whose logits are fine but which descends from one that was not, too."""
    step = level([[0.0, 0.0], [3.0, 0.0]], [math.nan, -1.0], [math.nan, math.log(0.2)], reduce,
                 library)
    assert step.entropy == pytest.approx(
        signals.entropy_value(np.array([3.0, 0.0])), rel=1e-3)
    assert step.log_probability == pytest.approx(math.log(0.2), rel=1e-5)
    assert not step.degenerate


@pytest.mark.parametrize("reduce", ["best", "weighted"])
def test_no_usable_row_at_all_stops_counts_and_warns(reduce):
    driver = PolicyDriver(parse("constant(9)"))
    nan = np.full((2, 4), np.nan, np.float32)
    step = level(nan, reduce=reduce)
    assert step.degenerate and math.isnan(step.entropy)
    with pytest.warns(DegenerateLogitsWarning):
        assert not driver.observe_level(nan, lambda: np.zeros(2), lambda: np.zeros(2))
    assert driver.degenerate == 1


@pytest.mark.parametrize("reduce", ["best", "weighted"])
def test_no_path_left_is_no_entropy(reduce):
    step = level([[1.0, 0.0], [0.0, 0.0]], [math.nan, -math.inf], [math.nan], reduce)
    assert math.isnan(step.entropy) and math.isnan(step.log_probability) and step.degenerate


def test_half_precision_is_upcast():
    step = level(torch.tensor([[60000.0, -60000.0]], dtype=torch.float16), library=torch)
    assert step.entropy == 0.0 and not step.degenerate
    weighted = level(torch.full((2, 3), 60000.0, dtype=torch.float16), reduce="weighted",
                     library=torch)
    assert weighted.entropy == pytest.approx(math.log(3), rel=1e-5)


def test_log_probabilities_of_a_round_add_up_to_the_best_path():
    seen = []

    class Recorder:
        def observe(self, step):
            seen.append(step)
            return Decision.CONTINUE

        def verified(self, drafted, accepted):
            pass

        def fresh(self):
            return self

    driver = PolicyDriver(Recorder())
    levels = [[-0.5, -1.0], [-0.9, -1.2], [-1.3, -4.0]]
    before = [0.0]
    for frontier in levels:
        driver.observe_level(np.zeros((len(before), 3)), lambda b=before: np.asarray(b),
                             lambda f=frontier: np.asarray(f), budget=1)
        # Of a static tree the nodes that were extended need not be the best ones.
        before = [value - 0.3 for value in frontier]
    assert [step.log_probability for step in seen] == pytest.approx([-0.5, -0.4, -0.4])
    assert sum(step.log_probability for step in seen) == pytest.approx(-1.3)
    assert [step.position for step in seen] == [1, 2, 3]
    assert seen[2].previous is seen[1] and seen[0].budget == 1


def test_wrong_shapes_say_what_was_given():
    with pytest.raises(ValueError, match=r"shape \(3,\); give those of one level"):
        level(np.zeros(3), [0.0])
    with pytest.raises(ValueError, match=r"paths have shape \(1,\) where the logits have 2 rows"):
        _ = level(np.zeros((2, 3)), [0.0]).entropy


def test_rounds_of_trees_count_levels_and_nodes():
    driver = PolicyDriver(parse("constant(2)"))
    logits = np.zeros((1, 4), np.float32)
    assert driver.observe_level(logits, lambda: np.zeros(1), lambda: np.zeros(1))
    assert not driver.observe_level(logits, lambda: np.zeros(1), lambda: np.zeros(1))
    driver.verified(1, 1, nodes=59, levels=2)
    assert driver.rounds[0][:2] == (1, 1)
    assert (driver.rounds[0].nodes, driver.rounds[0].levels) == (59, 2)
    driver.begin(RoundStart(budget=3))
    driver.observe(np.zeros(4), 1)
    driver.verified(1)
    # A chain's are what it drafted.
    assert (driver.rounds[1].nodes, driver.rounds[1].levels) == (1, 1)


def test_levels_of_which_nothing_was_verified_do_not_count_as_rejected():
    """The heuristic shrinks on a rejection, not on a tree that was cut to its best nodes."""
    driver = PolicyDriver(parse("heuristic(3)"))
    for drafted in (2, 3):
        for _ in range(3):
            driver.observe_level(np.zeros((1, 4)), lambda: np.zeros(1), lambda: np.zeros(1))
        driver.verified(2, drafted, nodes=9, levels=3)
        assert driver.policy._current == (3 if drafted == 2 else 2)


def test_accepted_length_with_and_without_the_targets_token():
    summary = Summary.of([Round(4, n, nodes=59, levels=8) for n in (2, 0, 3)])
    assert summary.tokens_per_round == pytest.approx(8 / 3)
    assert summary.accepted_length == pytest.approx(5 / 3)
    assert summary.nodes_per_round == 59 and summary.levels_per_round == 8
    assert "8.00 levels drafted and 59.0 nodes verified a round" in str(summary)
    assert "nodes" not in str(Summary.of([Round(4, 2, nodes=4)]))


def test_nodes_of_a_level_are_what_the_tree_says():
    step = TreeStep(2, np.zeros((1, 3)), paths=lambda: np.zeros(1), frontier=lambda: np.zeros(1),
                    size=lambda levels: 10 + 7 * levels)
    assert (step.nodes(), step.nodes(1)) == (24, 31)
    assert level([[0.0, 1.0]]).nodes(2) == 3  # one a level, where nobody tells
    assert DraftStep.known(4, 0).nodes() == 4 and DraftStep.known(4, 0).nodes(1) == 5
