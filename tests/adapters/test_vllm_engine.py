"""vLLM's own engine in this process, on tiny random models in float32: one for all tests."""

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: nox -s vllm")

import vllm_models as models
from svip_adapters import attach, vllm
from svip_adapters._upstreams import FINGERPRINTS

from svip_policy import POLICIES, Decision, errors

PROMPTS = models.PROMPTS


@pytest.fixture(scope="module")
def llm(folders, plain):  # after plain: there is one engine at a time
    """An engine with a draft model."""
    with models.closed_after(models.engine(
            folders[0], models.drafted_by(folders[1]), disable_log_stats=False)) as made:
        yield made


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_greedy_answers_are_the_targets_under_every_policy(name, llm, plain):
    with attach(llm, POLICIES[name]()) as handle:
        assert models.greedy(llm, PROMPTS) == plain
    assert handle.summary().rounds and not handle.failed
    assert all(0 <= length <= 5 for length in handle.lengths)


def test_lengths_are_ragged_and_less_is_drafted(llm, plain):
    found = {}
    for threshold in ("0.45", "inf", "0.0"):
        with vllm.attach(llm, f"svip(threshold={threshold})") as handle:
            assert models.greedy(llm, PROMPTS) == plain
        found[threshold] = handle.summary(), handle.lengths
    (some, lengths), (most, longest), (_, shortest) = found.values()
    assert len(lengths) > 2 and some.drafted < most.drafted
    assert most.acceptance_rate < some.acceptance_rate < 1
    assert longest[5] > 0.7 * longest.total()  # less only where an answer ends
    assert set(shortest) <= {0, 1}


def test_the_full_length_accepts_what_vllm_alone_accepts(llm):
    """Same rounds as stock vLLM, by its own metrics."""
    from vllm.v1.metrics.reader import Counter

    def told():
        return {m.name: m.value for m in llm.get_metrics() if isinstance(m, Counter)}

    before = told()
    models.greedy(llm, PROMPTS)
    after = told()
    with vllm.attach(llm, "constant(5)") as handle:
        models.greedy(llm, PROMPTS)
    found = handle.summary()
    drafts, drafted, accepted = (
        after[f"vllm:spec_decode_num_{name}"] - before[f"vllm:spec_decode_num_{name}"]
        for name in ("drafts", "draft_tokens", "accepted_tokens"))
    assert (drafted, accepted) == (found.drafted, found.accepted)
    assert drafts == found.rounds - handle.lengths[0]


def test_requests_that_come_and_go(folders, llm):
    """More requests than fit, of unequal lengths, some aborted on the way."""
    from vllm import SamplingParams

    prompts = [[1, 3 + n, 90 - n, *range(5, 5 + n % 7)] for n in range(20)]
    lengths = [4 + 3 * (n % 9) for n in range(20)]
    engine = llm.llm_engine

    def answers(abort):
        for n, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            engine.add_request(str(n), {"prompt_token_ids": prompt}, SamplingParams(
                temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False))
        done, steps = {}, 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    done[output.request_id.split("-")[0]] = list(output.outputs[0].token_ids)
            steps += 1
            if steps == 3:
                engine.abort_request([str(n) for n in abort])
        return done

    expected = answers([])
    assert len(expected) == 20
    with vllm.attach(llm, "marginal") as handle:
        found = answers([2, 5])
    kept = {name: tokens for name, tokens in found.items() if name not in ("2", "5")}
    assert len(kept) == 18
    assert all(len(found.get(name, [])) < len(expected[name]) for name in ("2", "5"))
    assert all(tokens == expected[name] for name, tokens in kept.items())
    assert not handle.failed


def test_an_engine_is_as_it_was_after_detaching(llm):
    runner = vllm._runner_of(llm)
    before, classes = [set(vars(owner)) for owner in (runner, runner.drafter)], models.relied_on()
    handle = vllm.attach(llm, "svip")
    assert vllm.attach(llm, "svip") is handle
    with pytest.raises(errors.AlreadyAttachedError):
        vllm.attach(llm, "constant(2)")
    assert [set(vars(owner)) for owner in (runner, runner.drafter)] != before
    assert models.relied_on() == classes  # other engines of this process are left alone
    handle.detach()
    assert [set(vars(owner)) for owner in (runner, runner.drafter)] == before


def test_a_version_of_vllm_that_is_not_known_is_refused(llm, monkeypatch):
    place = ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer.propose")
    monkeypatch.setitem(FINGERPRINTS["vllm"], place, {"0" * 64: "9.9"})
    runner = vllm._runner_of(llm)
    before = set(vars(runner))
    with pytest.raises(errors.UnknownUpstreamError, match=r"propose in .* known are 000000000000"):
        vllm.attach(llm, "svip")
    assert set(vars(runner)) == before
    with pytest.warns(errors.UnknownUpstreamWarning):
        vllm.attach(llm, "svip", on_unknown="warn").detach()


class Broken:
    """Raises in its third round."""

    def __init__(self):
        self.rounds = 0

    def observe(self, step):
        if self.rounds >= 2:
            raise RuntimeError("broken on purpose")
        return Decision.CONTINUE

    def verified(self, drafted, accepted):
        self.rounds += 1

    def fresh(self):
        return Broken()


def test_no_request_is_lost_where_a_policy_raises(llm, plain, caplog):
    with vllm.attach(llm, Broken()) as handle:
        assert models.greedy(llm, PROMPTS) == plain
    assert handle.failed == len(PROMPTS)
    assert handle.lengths[0] > 5


def test_metrics_are_in_the_registry_of_the_server(llm):
    from prometheus_client import REGISTRY

    def value(name):
        return REGISTRY.get_sample_value(name, {"policy": "constant(length=2)"}) or 0

    names = ("svip_draft_tokens_total", "svip_accepted_tokens_total", "svip_draft_length_count")
    before = [value(name) for name in names]
    with vllm.attach(llm, "constant(2)") as handle:
        models.greedy(llm, PROMPTS)
    found = handle.summary()
    assert [value(name) - b for name, b in zip(names, before, strict=True)] \
        == [found.drafted, found.accepted, found.rounds]
