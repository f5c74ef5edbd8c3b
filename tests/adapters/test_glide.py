"""Upstream GliDe & CaPE with a policy: same text, right counts, refusals, nothing left behind."""

import copy
import gc
import inspect
import sys
import weakref

import glide_models
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from svip_adapters import _upstreams, attach, glide_cape

from svip_policy import POLICIES, Constant, Decision
from svip_policy.errors import AlreadyAttachedError, UnknownUpstreamError, UnsupportedError

pytestmark = pytest.mark.skipif(glide_models.why_not() != "", reason=glide_models.why_not())

PROMPT = torch.arange(3, 13)[None]
N = 40
GLIDE, CAPE = [1] * 15, [8, 8, 8, 6, 6, 6, 4, 4, 2, 2, 2, 2]
both = pytest.mark.parametrize("bins", [GLIDE, CAPE], ids=["GliDe", "GliDe+CaPE"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = glide_models.tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))
    with glide_cape.importable(folder):
        yield glide_models.tiny_pair()


@pytest.fixture(scope="module")
def expected(pair):
    """The target's own greedy text."""
    ids = PROMPT
    with torch.no_grad():
        for _ in range(N):
            ids = torch.cat((ids, pair[0](ids).logits[:, -1:].argmax(-1)), 1)
    assert len(set(ids[0].tolist())) > 8
    return ids[0].tolist()


def generate(pair, bins=GLIDE, **options):
    target, draft = pair
    return draft.medusa_generate(PROMPT, large_model=target, max_steps=N, prob_to_top=bins,
                                 **options)


def text(result):
    return result["input_ids"][0, : PROMPT.shape[1] + N].tolist()


@both
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_greedy_text_is_the_targets_under_every_policy(pair, expected, name, bins):
    with glide_cape.attach(pair[1], name, target=pair[0]) as handle:
        result = generate(pair, bins)
    assert text(result) == expected
    assert handle.summary().accepted > 0


@both
@pytest.mark.parametrize("length", range(1, 13))
def test_lengths_of_one_to_twelve(pair, expected, length, bins):
    with glide_cape.attach(pair[1], Constant(length), target=pair[0]) as handle:
        assert text(generate(pair, bins)) == expected
    assert {r.drafted for r in handle.rounds} == {length}


@both
def test_constant_four_is_bit_identical_to_upstream(pair, bins, monkeypatch):
    module = sys.modules[type(pair[1]).__module__]
    proposals = []
    original = module.generate_medusa_buffers_joint_llama

    def spy(choices, **options):
        proposals[-1].append(copy.deepcopy(choices))
        return original(choices, **options)

    monkeypatch.setattr(module, "generate_medusa_buffers_joint_llama", spy)
    results = []
    for policy in (False, "constant(4)"):
        proposals.append([])
        if policy:
            with glide_cape.attach(pair[1], policy, target=pair[0]):
                results.append(generate(pair, bins))
        else:
            results.append(generate(pair, bins))
    plain, ours = results
    assert torch.equal(plain["input_ids"], ours["input_ids"])
    for name in ("steps", "accept_length_sum", "new_token_sum", "proposal_num"):
        assert int(plain[name]) == int(ours[name]), name
    assert proposals[0] == proposals[1] and len(proposals[0]) > 5


@both
def test_rounds_are_what_upstream_counts(pair, bins):
    with glide_cape.attach(pair[1], "constant(3)", target=pair[0]) as handle:
        result = generate(pair, bins)
    summary = handle.summary()
    assert summary.rounds == result["steps"]
    assert summary.accepted == int(result["accept_length_sum"])
    assert summary.nodes + summary.rounds == result["proposal_num"]  # it counts the root
    assert summary.drafted == summary.levels == 3 * summary.rounds
    assert (summary.nodes > summary.drafted) == (bins is CAPE)
    assert summary.draft_seconds > 0 and summary.verify_seconds > 0


@both
def test_none_records_upstreams_own_rounds(pair, bins):
    with glide_cape.attach(pair[1], None, target=pair[0]) as handle:
        result = generate(pair, bins)
    assert {r.drafted for r in handle.rounds} == {4}
    assert handle.summary().accepted == int(result["accept_length_sum"])


def test_max_draft_is_a_cap_and_each_generation_begins_afresh(pair, expected):
    with attach(pair[1], "heuristic(3)", target=pair[0], max_draft=4) as handle:
        assert text(generate(pair)) == expected
        assert text(generate(pair)) == expected
    first, second = handle.generations
    assert [r[:2] for r in first.rounds] == [r[:2] for r in second.rounds]
    assert {r.drafted for r in handle.rounds} <= {1, 2, 3, 4}


def test_a_policy_that_skips_gets_one_token(pair, expected):
    class Skips(Constant):
        def begin(self, start):
            assert start.budget == 16 and start.length > PROMPT.shape[1]
            return Decision.STOP

    with glide_cape.attach(pair[1], Skips(9), target=pair[0]) as handle:
        assert text(generate(pair)) == expected
    assert {r.drafted for r in handle.rounds} == {1}


def test_the_policy_sees_the_raw_logits_of_each_token(pair):
    seen = []

    class Looks(Constant):
        def observe(self, step):
            assert int(step.token) == int(step.logits.argmax())
            seen.append((step.position, step.budget))
            return super().observe(step)

    with glide_cape.attach(pair[1], Looks(3), target=pair[0]):
        generate(pair)
    assert seen[:3] == [(1, 15), (2, 14), (3, 13)]


@pytest.mark.parametrize("options, message", [
    ({"batch_size": 2}, "batch size is 2"),
    ({"num_beams": 2}, "num_beams is 2; a policy needs one chain"),
    ({"expand_cape": True}, "expand_cape is True"),
])
def test_modes_that_are_refused(pair, options, message):
    with glide_cape.attach(pair[1], "svip", target=pair[0]), \
            pytest.raises(UnsupportedError, match=message):
        generate(pair, **options)


def test_a_batch_and_another_target_are_refused(pair):
    target, draft = pair
    with glide_cape.attach(draft, "svip", target=target):
        with pytest.raises(UnsupportedError, match="batch size is 3"):
            draft.medusa_generate(PROMPT.repeat(3, 1), large_model=target)
        with pytest.raises(UnsupportedError, match="not the target"):
            draft.medusa_generate(PROMPT, large_model=copy.deepcopy(target))


def test_only_this_draft_is_attached(pair, expected):
    target, draft = pair
    other_target, other = copy.deepcopy(target), copy.deepcopy(draft)
    for model in (other, other_target):
        for name in ("past_key_values", "past_key_values_data", "current_length_data"):
            vars(model).pop(name, None)
    with glide_cape.attach(draft, "constant(1)", target=target) as first, \
            glide_cape.attach(other, "constant(2)", target=other_target) as second:
        assert text(generate(pair)) == expected
        rounds = len(first.rounds)
        result = generate((other_target, other))
        assert text(result) == expected
    assert {r.drafted for r in first.rounds} == {1} and len(first.rounds) == rounds
    assert {r.drafted for r in second.rounds} == {2} and len(second.rounds) == result["steps"]
    assert other.medusa_generate(PROMPT, large_model=other_target, max_steps=8)["steps"] > 0
    assert {r.drafted for r in second.rounds} == {2}


def snapshot(pair):
    """All that attaching or generating with a policy could have changed."""
    from transformers import AutoTokenizer

    modules = [m for name, m in sys.modules.items()
               if name.split(".")[0] in ("glide", "flash_attn")]
    # Upstream puts its caches and tokenizer on the models.
    own = {"past_key_values", "past_key_values_data", "current_length_data", "tokenizer"}
    return (
        [{k: id(v) for k, v in vars(m).items()} for m in modules],
        [{k: id(v) for k, v in vars(type(m)).items()} for m in pair],
        [{k: id(v) for k, v in vars(m).items() if k not in own and not k.startswith("_")}
         for m in pair],
        dict(vars(AutoTokenizer)), [m.generation_config.to_dict() for m in pair],
    )


class Broken(Constant):
    """Raises at its second token."""

    def observe(self, step):
        if step.position == 2:
            raise ZeroDivisionError("policy")
        return super().observe(step)


def test_random_sequences_leave_nothing_behind(pair, expected):
    generate(pair)
    before = snapshot(pair)

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.handle = None

        @precondition(lambda self: self.handle is None)
        @rule(policy=st.sampled_from([None, "svip", "constant(2)"]))
        def attach(self, policy):
            self.handle = glide_cape.attach(pair[1], policy, target=pair[0])

        @rule(bins=st.sampled_from([GLIDE, CAPE]))
        def generate(self, bins):
            assert text(generate(pair, bins)) == expected

        @precondition(lambda self: self.handle is not None)
        @rule()
        def fail(self):
            with self.handle.use(Broken()), pytest.raises(ZeroDivisionError):
                generate(pair)

        @precondition(lambda self: self.handle is not None)
        @rule()
        def detach(self):
            self.handle.detach()
            self.handle = None
            assert snapshot(pair) == before

        def teardown(self):
            if self.handle is not None:
                self.handle.detach()
            assert snapshot(pair) == before

    Machine.TestCase.settings = settings(
        max_examples=15, stateful_step_count=8, deadline=None,
        suppress_health_check=list(HealthCheck))
    Machine.TestCase().runTest()


def test_a_forgotten_handle_lets_the_models_go(pair):
    target, draft = map(copy.deepcopy, pair)
    glide_cape.attach(draft, "svip", target=target)
    gone = [weakref.ref(target), weakref.ref(draft)]
    del target, draft
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_attaching_twice(pair):
    target, draft = pair
    with glide_cape.attach(draft, "svip", target=target) as handle:
        assert glide_cape.attach(draft, "svip", target=target) is handle
        with pytest.raises(AlreadyAttachedError, match="detach"):
            glide_cape.attach(draft, "constant(2)", target=target)
        with pytest.raises(AlreadyAttachedError, match="max_draft"):
            glide_cape.attach(draft, "svip", target=target, max_draft=3)


def test_unknown_source_is_refused(pair, monkeypatch):
    known = dict(_upstreams.FINGERPRINTS["glide"])
    key = ("generation_utils", "greedy_search")
    monkeypatch.setitem(_upstreams.FINGERPRINTS, "glide", {**known, key: {"0" * 64: "X 1"}})
    with pytest.raises(UnknownUpstreamError) as raised:
        glide_cape.attach(pair[1], "svip", target=pair[0])
    file = inspect.getsourcefile(sys.modules["glide.utils.generation_utils"])
    assert file in str(raised.value) and "greedy_search" in str(raised.value)


def test_a_stand_in_that_is_called_says_so(pair):
    import flash_attn

    with pytest.raises(RuntimeError, match=r"flash_attn\.flash_attn_func was called"):
        flash_attn.flash_attn_func()
