"""vLLM's own engine in this process, made as each test wants it; one at a time."""

import collections

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vllm is not installed: nox -s vllm")

import vllm_models as models
from svip_adapters import vllm
from svip_adapters._vllm_rounds import Rounds

from svip_policy import errors

PROMPTS = models.PROMPTS


def test_a_draft_that_is_the_target_is_always_right(folders):
    target = folders[0]
    with models.closed_after(models.engine(target, models.drafted_by(target))) as llm:
        alone = models.greedy(llm, PROMPTS)
        with vllm.attach(llm, "svip(threshold=0.5)") as handle:
            assert models.greedy(llm, PROMPTS) == alone
    assert handle.summary().acceptance_rate > 0.99
    assert len(handle.lengths) > 2


def test_preempted_requests_begin_anew(folders, monkeypatch):
    """Room for the caches of less than all requests: some are preempted, no answer changes."""
    preempted = []
    forget = Rounds._forget

    def watched(self, scheduled):
        preempted.extend(scheduled.preempted_req_ids or ())
        forget(self, scheduled)
        assert not set(preempted) & {r for r in self._requests if r in (
            scheduled.preempted_req_ids or ())}

    monkeypatch.setattr(Rounds, "_forget", watched)
    prompts = [[1, 3 + n, 5, 9] for n in range(8)]
    with models.closed_after(models.engine(folders[0])) as alone:
        expected = models.greedy(alone, prompts, tokens=60)
    with models.closed_after(models.engine(
            folders[0], models.drafted_by(folders[1]), block_size=32,
            num_gpu_blocks_override=12)) as llm, \
            vllm.attach(llm, "path_probability") as handle:
        assert models.greedy(llm, prompts, tokens=60) == expected
    assert preempted and handle.summary().rounds and not handle.failed


def test_prompts_that_are_read_in_pieces_and_answers_up_to_the_last_token(folders):
    """Chunked prefill beside requests that draft; and no room for a draft at the end."""
    prompts = [[1, *(3 + (7 * n + k) % 90 for k in range(40 + 9 * n))] for n in range(5)]
    lengths = [models.LONGEST - len(prompt) for prompt in prompts]
    with models.closed_after(models.engine(folders[0])) as alone:
        expected = [models.greedy(alone, [p], n)[0] for p, n in zip(prompts, lengths, strict=True)]
    assert [len(tokens) for tokens in expected] == lengths
    with models.closed_after(models.engine(
            folders[0], models.drafted_by(folders[1]), max_num_batched_tokens=32,
            enable_chunked_prefill=True)) as llm, \
            vllm.attach(llm, "marginal") as handle:
        found = models.greedy(llm, prompts, models.LONGEST)
    assert [tokens[:n] for tokens, n in zip(found, lengths, strict=True)] == expected
    tokens = sum(map(len, found))
    # Each round gives a token beside those accepted; the first of a request comes of its prompt.
    assert handle.summary().accepted + handle.summary().rounds <= tokens
    assert handle.summary().rounds and not handle.failed


@pytest.mark.parametrize("options, remedy", [
    ({"speculative": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}},
     "use one of draft_model"),
    ({"speculative": None}, "speculative_config"),
])
def test_engines_that_are_refused(folders, options, remedy):
    options = {"speculative": models.drafted_by(folders[1]), **options}
    with models.closed_after(models.engine(folders[0], **options)) as llm, \
            pytest.raises(errors.UnsupportedError, match=remedy):
        vllm.attach(llm, "svip")


def test_an_engine_in_another_process_is_refused():
    with pytest.raises(errors.UnsupportedError, match="VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        vllm.attach(object(), "svip")


def test_configured_before_the_engine_is_made(folders, plain):
    before = models.relied_on()
    configured = vllm.configure("svip(threshold=0.45)")
    try:
        assert vllm.configure("svip(threshold=0.45)") is configured
        with pytest.raises(errors.AlreadyAttachedError):
            vllm.configure("constant(2)")
        with models.closed_after(models.engine(
                folders[0], models.drafted_by(folders[1]))) as llm:
            assert models.greedy(llm, PROMPTS) == plain
            worker = vllm._runner_of(llm, "worker")
            assert "init_device" in vars(worker)
        [handle] = configured.handles
        assert len(handle.lengths) > 2
    finally:
        configured.remove()
    assert not handle.attached and models.relied_on() == before
    assert "init_device" not in vars(worker)


def test_it_registers_only_what_the_environment_says(monkeypatch):
    before = models.relied_on()
    monkeypatch.delenv("SVIP_POLICY", raising=False)
    vllm.register()
    assert models.relied_on() == before
    monkeypatch.setenv("SVIP_POLICY", "no_such_policy")
    with pytest.raises(errors.SvipError, match="no_such_policy"):
        vllm.register()
    monkeypatch.setenv("SVIP_POLICY", "svip")
    vllm.register()
    vllm.register()
    changed = [name for name, value in models.relied_on().items() if value != before[name]]
    assert changed == [("vllm.v1.worker.worker_base", "WorkerBase.__init__")]
    vllm._CONFIGURED[0].remove()
    assert models.relied_on() == before


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_eagle_heads(method, folders, plain, tmp_path):
    save = {"eagle": models.save_eagle, "eagle3": models.save_eagle3}[method]
    head = save(tmp_path / method, folders[0])
    with models.closed_after(models.engine(
            folders[0], models.drafted_by(head, method=method))) as llm:
        with vllm.attach(llm, "svip(threshold=0.45)") as handle:
            assert models.greedy(llm, PROMPTS) == plain
        some = handle.summary()
        with vllm.attach(llm, "constant(5)") as handle:
            assert models.greedy(llm, PROMPTS) == plain
    assert 0 < some.drafted_length < handle.summary().drafted_length


def _pairs(tokens):
    return [(0, *tokens[:2]), (1, *tokens[2:4])]


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_sampling_has_the_targets_distribution(folders, method):
    """Pairs of tokens of many samples, with and without a policy and a draft: the second and
    third are of the first draft's second step, or what corrects it."""
    from vllm import SamplingParams

    def sampled(llm, count=1500):
        settings = SamplingParams(temperature=0.7, max_tokens=4, ignore_eos=True, n=1,
                                  detokenize=False)
        prompts = [{"prompt_token_ids": [1, 5, 9]}] * count
        return collections.Counter(
            pair for a in llm.generate(prompts, settings, use_tqdm=False)
            for pair in _pairs(a.outputs[0].token_ids))

    with models.closed_after(models.engine(folders[0])) as llm:
        plain = sampled(llm)
    with models.cpu_sampling_as_meant(), models.closed_after(models.engine(
            folders[0], models.drafted_by(folders[1], 3, draft_sample_method=method))) as llm, \
            vllm.attach(llm, "svip(threshold=0.4)") as handle:
        found = sampled(llm)
    assert handle.summary().accepted and len(handle.lengths) > 1
    pairs = [pair for pair, n in plain.items() if n >= 8]
    other = [sum(counts.values()) - sum(counts[p] for p in pairs) for counts in (plain, found)]
    a = np.array([plain[p] for p in pairs] + [other[0]], float)
    b = np.array([found[p] for p in pairs] + [other[1]], float)
    # Two samples of one size: the statistic is chi-square with len(a) - 1 degrees of freedom.
    from scipy.stats import chi2

    # Two pairs of one sample are not independent, but nearly: the bound is a wide one.
    statistic = ((a - b) ** 2 / (a + b).clip(1)).sum()
    assert statistic < chi2.ppf(0.9999, len(a) - 1)
