"""vLLM's adapter on a runner and a proposer that only carry the seam: no vllm is needed."""

import logging
import types

import pytest
import torch
from svip_adapters._handle import Watched
from svip_adapters.vllm import METHODS, refusals, refuse
from vllm_fakes import VOCABULARY, Group, attached, until

from svip_policy import (
    POLICIES,
    SVIP,
    Constant,
    Decision,
    PathProbability,
    errors,
    resolve,
    trace,
)


@pytest.mark.parametrize("policy", ["svip", "path_probability(threshold=0.9)", "confidence"])
def test_each_request_is_cut_where_its_policy_stops_and_the_draft_ends_with_the_last(policy):
    runner, _ = attached(policy, until(2, 1, 3))
    runner.serve("a", "b", "c")
    assert runner.step() == [2, 1, 3]
    assert runner.drafter.passes == 3  # not 5


def test_lengths_are_capped_by_the_engine():
    runner, _ = attached("svip(threshold=inf)", tokens=4)
    runner.serve("a", "b")
    assert runner.step() == [4, 4]
    runner, _ = attached("svip(threshold=0.0)", until(9, 9))
    runner.serve("a", "b")
    assert runner.step() == [1, 1] and runner.drafter.passes == 1


def test_draft_probabilities_are_those_of_the_steps_that_were_made():
    runner, _ = attached("svip", until(2, 1))
    runner.sampling = types.SimpleNamespace(all_greedy=False)
    runner.serve("a", "b")
    assert runner.step() == [2, 1]  # by the raw logits
    assert runner.drafter._last_draft_probs.shape == (2, 2, VOCABULARY)
    assert torch.allclose(runner.drafter._last_draft_probs.sum(-1), torch.ones(2, 2))


def test_policies_are_told_what_was_accepted_of_what_was_submitted():
    runner, handle = attached("svip", until(3, 1, 2))
    runner.serve("a", "b", "c")
    runner.step()
    runner.step(accepted=[2, 1, 0], submitted=[3, 1, 1])  # the scheduler had room for one less
    assert (handle.summary().rounds, handle.summary().drafted, handle.summary().accepted) \
        == (3, 5, 3)
    assert handle.lengths == {3: 1, 1: 2}
    handle.reset()
    assert handle.summary().rounds == 0 and not handle.lengths


class Counting:
    """Drafts one token more after each round; raises on demand."""

    made = 0

    def __init__(self, raises=()):
        self.rounds, self.raises = 0, raises

    def begin(self, start):
        if "begin" in self.raises:
            raise RuntimeError("begin")
        return Decision.CONTINUE

    def observe(self, step):
        if "observe" in self.raises:
            raise RuntimeError("observe")
        return Decision.CONTINUE if step.position <= self.rounds else Decision.STOP

    def verified(self, drafted, accepted):
        if "verified" in self.raises:
            raise RuntimeError("verified")
        self.rounds += 1

    def fresh(self):
        Counting.made += 1
        return Counting(self.raises)


def test_a_policy_belongs_to_a_request_as_long_as_it_is_there():
    runner, _ = attached(Counting())
    runner.serve("a", "b")
    assert runner.step() == [1, 1]
    assert runner.step(accepted=[0, 0]) == [2, 2]
    runner.serve("b", "c")  # a has ended, c has come
    assert runner.step(accepted=[1, 0], submitted=[2, 0]) == [3, 1]
    runner.requests["b"] = None
    assert runner.step(accepted=[1, 1], preempted={"b"}) == [1, 2]  # b begins anew
    runner.serve("c")
    assert runner.step(accepted=[1], submitted=[2]) == [3]
    assert runner.step(accepted=[1], finished={"c"}, submitted=[0]) == [1]  # another one of this id


def test_drafts_that_were_thrown_away_are_not_told_of():
    """By a grammar that refuses them, or a scheduler that has no room."""
    runner, handle = attached(Counting())
    runner.serve("a")
    assert runner.step() == [1]
    assert runner.step() == [1]  # verified nothing: it does not count as a round
    assert handle.summary().rounds == 0


def test_where_the_draft_model_has_no_room_nothing_is_drafted_and_nothing_lost():
    runner, handle = attached(Counting())
    runner.serve("a", "b")
    assert runner.step() == [1, 1]
    runner.fits = False
    assert runner.step(accepted=[1, 0]) == [0, 0]  # not vLLM's zeros
    assert (handle.summary().rounds, handle.summary().accepted) == (2, 1)
    assert runner.step(accepted=[0, 0]) == [0, 0]
    runner.fits = True
    assert runner.step(accepted=[0, 0]) == [2, 2]
    assert handle.summary().rounds == 2


def test_requests_whose_prompt_is_being_read_have_no_rounds():
    runner, handle = attached(Counting())
    runner.serve("a", "b")
    runner.discard_request_mask.np[0] = True
    assert runner.step() == [0, 1]
    assert runner.step(accepted=[0, 1]) == [0, 2]
    runner.discard_request_mask.np[0] = False
    assert runner.step(accepted=[0, 2]) == [1, 3]  # its first round
    assert handle.lengths == {1: 1, 2: 1}


def test_a_step_in_which_vllm_wants_no_drafts_is_no_round():
    runner, handle = attached(Counting())
    runner.serve("a")
    runner.most, most = 0, runner.most
    assert runner.step() == [0]
    runner.most = most
    assert runner.step(accepted=[0]) == [1] and handle.summary().rounds == 0


class Skipping(Counting):
    """Never drafts."""

    def begin(self, start):
        assert start.budget == 5
        return Decision.STOP

    def fresh(self):
        return Skipping()


def test_a_round_begins_at_the_length_with_the_tokens_that_were_just_verified():
    seen = []

    class Watching(Counting):
        def begin(self, start):
            seen.append((start.length, start.budget))
            return Decision.CONTINUE

        def fresh(self):
            return Watching()

    runner, _ = attached(Watching())
    runner.serve("a", "b")
    runner.step()
    runner.step(accepted=[1, 0])
    assert seen == [(11, 5), (21, 5), (12, 5), (21, 5)]


def test_where_no_request_drafts_the_draft_model_only_reads_along():
    runner, handle = attached(Skipping())
    runner.serve("a", "b")
    assert runner.step() == [0, 0] and runner.drafter.asked == [0]
    runner.step(accepted=[0, 0])
    assert handle.lengths == {0: 2}


@pytest.mark.parametrize("where", ["begin", "observe", "verified"])
def test_an_exception_stops_drafting_for_its_request_and_is_logged_once(where, caplog):
    runner, handle = attached(Counting())
    runner.serve("a", "b", "c")
    runner.step()
    rounds = runner.drafter.propose.__func__.__svip_site__.layers[0].wrapper.__self__
    for name in "ab":
        rounds._requests[name].driver = handle.new_generation()
        rounds._requests[name].driver.__init__(Counting({where}))
    with caplog.at_level(logging.ERROR, "vllm.svip"):
        runner.step(accepted=[1, 1, 1])
        lengths = runner.step(accepted=[0, 0, 1], submitted=[0, 0, 2])
    assert lengths[:2] == [0, 0] and lengths[2] == 3
    assert len(caplog.records) == 1 and where in caplog.text and handle.failed == 2


def test_an_exception_in_a_batched_policy_stops_all_of_the_batch(caplog):
    class Broken(SVIP):
        def observe_batch(self, position, logits, tokens):
            raise RuntimeError("on the device")

    runner, handle = attached(Broken())
    runner.serve("a", "b")
    with caplog.at_level(logging.ERROR, "vllm.svip"):
        assert runner.step() == [1, 1]  # what was drafted is verified
    assert runner.step(accepted=[1, 1]) == [0, 0] and handle.failed == 2
    runner.serve("c")
    assert runner.step() == [1] and handle.failed == 3 and len(caplog.records) == 1


def test_a_batched_answer_of_another_shape_is_an_exception_like_any_other(caplog):
    class Short(SVIP):
        def observe_batch(self, position, logits, tokens):
            return torch.ones(1, dtype=torch.bool)

    runner, handle = attached(Short())
    runner.serve("a", "b")
    assert runner.step() == [1, 1] and handle.failed == 2


def test_a_policy_that_cannot_be_made_lets_its_request_go_on(caplog):
    class Unborn(Counting):
        def fresh(self):
            raise RuntimeError("no fresh one")

    runner, handle = attached(Unborn())
    runner.serve("a")
    assert runner.step() == [0] and handle.failed == 1 and "no fresh one" in caplog.text


def test_degenerate_logits_are_counted_once_each():
    runner, handle = attached("path_probability")
    runner.drafter.model.compute_logits = lambda hidden: torch.full(
        (hidden.shape[0], VOCABULARY), torch.nan)
    runner.serve("a", "b")
    with pytest.warns(errors.DegenerateLogitsWarning):
        assert runner.step() == [1, 1]
    runner.step(accepted=[0, 0])
    runner.step(accepted=[0, 0])
    assert handle.degenerate == 4


def test_watching_records_and_changes_nothing(tmp_path):
    runner, handle = attached("constant")
    handle._policy = Watched()
    handle.record(tmp_path / "t.jsonl", models={"target": "t", "draft": "d"}, dtype="float32",
                  prompts="none", decoding="greedy", device="cpu", seed=0)
    runner.serve("a", "b")
    assert runner.step() == [5, 5]
    runner.fits = False
    assert runner.step(accepted=[2, 5]) == [5, 5]  # vLLM's zeros are its own affair
    entries = trace.read(tmp_path / "t.jsonl", "rounds").entries
    assert [len(e["tokens"]) for e in entries] == [5, 5]
    assert handle.lengths == {5: 2}


def test_ranks_of_a_tensor_parallel_group_draft_as_rank_0_does():
    said = []
    first, _ = attached("svip", until(2, 3), Group(0, 2, said))
    first.serve("a", "b")
    assert first.step() == [2, 3]
    other, _ = attached("svip", until(1, 5), Group(1, 2, list(said)))  # it would do otherwise
    other.serve("a", "b")
    assert other.step() == [2, 3]


def test_one_rank_counts_for_prometheus_which_sums_over_processes():
    assert first_counts(Group(0, 2)) and not first_counts(Group(1, 2, [[True], [False]] * 3))


def first_counts(group):
    """Whether a round on this rank is seen in Prometheus's registry."""
    registry = pytest.importorskip("prometheus_client").REGISTRY

    def seen():
        return registry.get_sample_value("svip_draft_length_count", {"policy": repr(
            resolve("constant(1)"))}) or 0

    before = seen()
    runner, _ = attached("constant(1)", group=group)
    runner.serve("a")
    runner.step()
    runner.step(accepted=[1])
    return seen() > before


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_drafts_between_0_and_the_cap(name):
    runner, handle = attached(POLICIES[name](), until(1, 3, 9))
    runner.serve("a", "b", "c")
    lengths = runner.step()
    for _ in range(4):
        assert all(0 <= n <= 5 for n in lengths)
        lengths = runner.step(accepted=[n // 2 for n in lengths])
    # A draft that nothing is submitted of is no round.
    assert 8 <= handle.summary().rounds <= 12 and not handle.failed


def config(method="eagle", **changes):
    """As a VllmConfig, as far as the adapter looks."""
    spec = types.SimpleNamespace(method=method, parallel_drafting=False,
                                 use_local_argmax_reduction=False, use_heterogeneous_vocab=False)
    made = types.SimpleNamespace(
        speculative_config=spec, use_v2_model_runner=False,
        scheduler_config=types.SimpleNamespace(async_scheduling=False),
        parallel_config=types.SimpleNamespace(data_parallel_size=1))
    for name, value in changes.items():
        owner = next(o for o in (made, spec, made.scheduler_config, made.parallel_config)
                     if hasattr(o, name))
        setattr(owner, name, value)
    return made


@pytest.mark.parametrize("change, remedy", [
    ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
    ({"async_scheduling": True}, "--no-async-scheduling"),
    ({"data_parallel_size": 2}, "data_parallel_size=1"),
    ({"parallel_drafting": True}, "parallel_drafting"),
    ({"use_local_argmax_reduction": True}, "use_local_argmax_reduction"),
    ({"use_heterogeneous_vocab": True}, "vocabulary"),
    ({"method": "ngram"}, "use one of draft_model"),
    ({"method": "suffix"}, "use one of draft_model"),
    ({"speculative_config": None}, "give one"),
])
def test_what_is_refused(change, remedy):
    with pytest.raises(errors.UnsupportedError, match=remedy):
        refuse(config(**change))


def test_what_is_not_refused():
    assert not [refusals(config(method)) for method in METHODS if refusals(config(method))]
    two = refusals(config(async_scheduling=True, use_v2_model_runner=True))
    assert len(two) == 2


def test_the_batched_answer_is_that_of_one_row_after_the_other():
    torch.manual_seed(0)
    from svip_policy import BatchPolicy, Confidence, DraftStep

    logits = torch.randn(64, 30) * torch.linspace(0.1, 12, 64)[:, None]
    logits[3, 4], logits[5], logits[7, 2] = torch.nan, -torch.inf, torch.inf
    logits[9, :29] = -torch.inf
    tokens = torch.randint(0, 30, (64,))
    tokens[9] = 29
    for policy in (SVIP(), SVIP(0.5, 0.2, 3), Confidence(), Confidence(0.0), Constant(3)):
        assert isinstance(policy, BatchPolicy)
        for position in (1, 2, 3, 4):
            expected = [
                policy.observe(DraftStep(position, logits[n], tokens[n])) is Decision.CONTINUE
                and not DraftStep(position, logits[n], tokens[n]).degenerate for n in range(64)]
            found = policy.observe_batch(position, logits, tokens)
            assert found.tolist() == expected, (policy, position)
            assert policy.observe_batch(position, logits.numpy(), tokens.numpy()).tolist() \
                == expected
    assert not isinstance(PathProbability(), BatchPolicy)
