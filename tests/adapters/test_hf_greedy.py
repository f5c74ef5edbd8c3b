"""Greedy decoding: the target's own output, and the lengths that the policy asked for."""

import copy
from importlib import metadata

import pytest
import svip_adapters
import torch
from tiny_models import tiny

from svip_policy import POLICIES, Decision
from svip_policy.errors import UnsupportedError

VERSION = tuple(int(n) for n in metadata.version("transformers").split(".")[:2])


def greedy(model, prompt, draft=None, n=40, **options):
    return model.generate(
        prompt, max_new_tokens=n, do_sample=False, assistant_model=draft, **options
    )


@pytest.fixture(params=["draft", "near_draft", "self_draft"])
def any_draft(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "svip(threshold=0.55)", "constant(1)"])
@pytest.mark.parametrize("lean", [True, False])
def test_output_is_the_targets(target, any_draft, prompt, policy, lean):
    expected = greedy(target, prompt)
    with svip_adapters.attach(target, policy, lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, any_draft), expected)
    summary = handle.summary()
    assert summary.rounds + summary.accepted == expected.shape[1] - prompt.shape[1]


def test_the_near_draft_is_neither_always_right_nor_always_wrong(target, near_draft, prompt):
    """Or the tests on it would show less than they seem to."""
    with svip_adapters.attach(target, "constant(5)") as handle:
        greedy(target, prompt, near_draft)
    assert 0.2 < handle.summary().acceptance_rate < 0.95


@pytest.mark.parametrize("lean", [True, False])
def test_frameworks_own_stop_rule_is_out_of_force(target, draft, prompt, lean):
    """Its confidence rule would stop this random draft after one token."""
    with svip_adapters.attach(target, "constant(5)", lean=lean) as handle:
        greedy(target, prompt, draft)
    drafted = [r.drafted for r in handle.rounds]
    assert drafted[0] == 5 and all(n == min(5, drafted[0]) for n in drafted[:-5])


def test_framework_alone_does_stop_that_draft(target, draft, prompt, monkeypatch):
    """The check above can fail: without us the same pair drafts one token a round."""
    lengths = []
    forward = draft.forward

    def counted(*args, **kwargs):
        lengths[-1] += 1
        return forward(*args, **kwargs)

    generate = draft.generate

    def once(*args, **kwargs):
        lengths.append(0)
        return generate(*args, **kwargs)

    monkeypatch.setattr(draft, "forward", counted)
    monkeypatch.setattr(draft, "generate", once)
    greedy(target, prompt, draft)
    assert max(lengths) == 1


@pytest.mark.parametrize("lean", [True, False])
def test_num_assistant_tokens_of_the_call_does_not_matter(target, self_draft, prompt, lean):
    with svip_adapters.attach(target, "constant(4)", lean=lean) as handle:
        greedy(target, prompt, self_draft, num_assistant_tokens=2)
    assert handle.rounds[0].drafted == 4


@pytest.mark.parametrize("lean", [True, False])
def test_each_generation_starts_fresh(target, self_draft, prompt, lean):
    with svip_adapters.attach(target, "heuristic(5)", lean=lean) as handle:
        for _ in range(2):
            greedy(target, prompt, self_draft)
    first, second = ([r.drafted for r in g.rounds] for g in handle.generations)
    assert first == second and first[:3] == [5, 7, 9]


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_hardly_any_budget(target, self_draft, prompt, n, lean):
    expected = greedy(target, prompt, n=n)
    with svip_adapters.attach(target, "constant(5)", lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, self_draft, n=n), expected)
    assert handle.rounds[0].drafted == n - 1


@pytest.mark.parametrize("lean", [True, False])
def test_a_policy_that_never_drafts_gives_plain_decoding(target, self_draft, prompt, lean):
    class Never:
        def begin(self, start):
            assert start.length >= 10 and start.budget is not None
            return Decision.STOP

        def observe(self, step):
            raise AssertionError("nothing was to be drafted")

        def verified(self, drafted, accepted):
            assert (drafted, accepted) == (0, 0)

        def fresh(self):
            return self

    with svip_adapters.attach(target, Never(), lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, self_draft), greedy(target, prompt))
    assert handle.summary().drafted == 0 and handle.summary().rounds == 40


@pytest.mark.parametrize("lean", [True, False])
def test_drafting_now_and_then(target, self_draft, prompt, lean):
    """Rounds without a draft leave the draft's cache behind the sequence."""

    class EveryThird:
        calls = 0

        def begin(self, start):
            self.calls += 1
            return Decision.CONTINUE if self.calls % 3 == 0 else Decision.STOP

        def observe(self, step):
            return Decision.STOP if step.position == 3 else Decision.CONTINUE

        def verified(self, drafted, accepted):
            pass

        def fresh(self):
            return EveryThird()

    with svip_adapters.attach(target, EveryThird(), lean=lean) as handle:
        assert torch.equal(greedy(target, prompt, self_draft), greedy(target, prompt))
    assert [r.drafted for r in handle.rounds[:6]] == [0, 0, 3, 0, 0, 3]
    assert handle.summary().acceptance_rate == 1  # a misplaced cache would draft other tokens


@pytest.mark.parametrize("family", ["neox", "qwen2", "llama"])
@pytest.mark.parametrize("lean", [True, False])
def test_the_papers_families(family, lean, prompt):
    """GPT-NeoX (Pythia), Qwen2 (Qwen2.5) and Llama targets with Llama drafts of other sizes."""
    target = tiny(family)
    assert len(set(greedy(target, prompt)[0].tolist())) > 12  # no constant babble
    for draft in (tiny(seed=1, hidden=16, layers=1), tiny(seed=2, hidden=64, layers=3, heads=8),
                  copy.deepcopy(target)):
        for policy, lengths in (("constant(3)", [3, 3, 3]), ("constant(7)", [7, 7, 7]),
                                ("svip(threshold=0)", [1, 1, 1]),
                                ("svip(threshold=inf, cap=6)", [6, 6, 6])):
            with svip_adapters.attach(target, policy, lean=lean) as handle:
                assert torch.equal(greedy(target, prompt, draft), greedy(target, prompt))
            assert [r.drafted for r in handle.rounds[:3]] == lengths


def test_end_of_sequence_in_the_draft_ends_it(target, self_draft, prompt):
    plain = greedy(target, prompt)
    end = int(plain[0, prompt.shape[1] + 7])
    expected = greedy(target, prompt, eos_token_id=end)
    for lean in (True, False):
        with svip_adapters.attach(target, "constant(30)", lean=lean) as handle:
            out = greedy(target, prompt, self_draft, eos_token_id=end)
        assert torch.equal(out, expected)
        assert handle.rounds[-1].drafted == expected.shape[1] - prompt.shape[1] < 30


class EndsWith:
    """A user's own criterion: the last token is one of these."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([int(input_ids[0, -1]) in self.tokens])


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("policy", ["constant(1)", "constant(5)", "constant(30)"])
@pytest.mark.parametrize("offset", [4, 7, 9])
def test_custom_stopping_criteria_stop_where_plain_decoding_does(
    target, any_draft, prompt, lean, policy, offset
):
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Criterion(EndsWith, StoppingCriteria):
        pass

    token = int(greedy(target, prompt)[0, prompt.shape[1] + offset])
    criteria = StoppingCriteriaList([Criterion([token])])
    expected = greedy(target, prompt, stopping_criteria=criteria)
    assert expected.shape[1] <= prompt.shape[1] + offset + 1
    with svip_adapters.attach(target, policy, lean=lean):
        out = greedy(target, prompt, any_draft, stopping_criteria=criteria)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("policy", ["constant(1)", "constant(7)", "constant(30)"])
def test_length_and_end_criteria_of_the_users_own(target, any_draft, prompt, lean, policy):
    """They replace transformers' own, and its configuration knows nothing of them."""
    from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

    token = int(greedy(target, prompt)[0, prompt.shape[1] + 6])
    for criterion in (MaxLengthCriteria(prompt.shape[1] + 9), EosTokenCriteria(token)):
        criteria = StoppingCriteriaList([criterion])
        options = {"stopping_criteria": criteria, "pad_token_id": 0}
        expected = greedy(target, prompt, **options)
        assert expected.shape[1] < prompt.shape[1] + 40
        with svip_adapters.attach(target, policy, lean=lean):
            out = greedy(target, prompt, any_draft, **options)
        assert torch.equal(out, expected)


def byte_tokenizer():
    """One token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.mark.parametrize("lean", [True, False])
def test_stop_strings(lean, prompt):
    target, words = tiny(vocab=256), byte_tokenizer()
    draft = copy.deepcopy(target)
    written = words.convert_ids_to_tokens(greedy(target, prompt)[0, prompt.shape[1] :])
    stop = next(t for t in written[5:] if t.isascii() and t not in written[:5])
    options = {"stop_strings": [stop], "tokenizer": words}
    expected = greedy(target, prompt, **options)
    assert prompt.shape[1] + 5 < expected.shape[1] < prompt.shape[1] + 40
    for policy in ("constant(3)", "constant(30)"):
        with svip_adapters.attach(target, policy, lean=lean):
            assert torch.equal(greedy(target, prompt, draft, **options), expected)


def test_max_time_streamer_and_dictionaries_work_as_before(target, near_draft, prompt):
    seen = []

    class Streamer:
        def put(self, value):
            seen.extend(value.flatten().tolist())

        def end(self):
            seen.append("end")

    expected = greedy(target, prompt)
    with svip_adapters.attach(target, "constant(4)"):
        out = greedy(target, prompt, near_draft, streamer=Streamer(), max_time=100,
                     return_dict_in_generate=True, output_scores=True, output_logits=True)
    assert torch.equal(out.sequences, expected) and seen == [*expected[0].tolist(), "end"]
    assert len(out.scores) == len(out.logits) == 40


@pytest.mark.parametrize("lean", [True, False])
def test_end_of_sequence_of_the_draft_alone_does_not_stop_it(target, self_draft, prompt, lean):
    plain = greedy(target, prompt)
    self_draft.generation_config.eos_token_id = int(plain[0, prompt.shape[1] + 2])
    try:
        with svip_adapters.attach(target, "constant(8)", lean=lean) as handle:
            assert torch.equal(greedy(target, prompt, self_draft), plain)
    finally:
        self_draft.generation_config.eos_token_id = None
    assert handle.rounds[0][:2] == (8, 8)


def test_a_draft_without_the_usual_cache(target, prompt):
    """Its cache is a tuple in older versions, which the lean loop does not know."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    torch.manual_seed(0)
    draft = GPTBigCodeForCausalLM(GPTBigCodeConfig(
        vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=128, bos_token_id=1,
        eos_token_id=None, pad_token_id=None)).eval()
    with svip_adapters.attach(target, "constant(3)") as handle:
        assert torch.equal(greedy(target, prompt, draft), greedy(target, prompt))
    assert handle.rounds[0].drafted == 3


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("sample", [False, True])
def test_a_draft_with_degenerate_logits(target, self_draft, prompt, broken, sample):
    """Greedy: the token is kept and the draft ends. Sampling: there is nothing to draw."""
    from svip_policy.errors import DegenerateLogitsWarning

    head = self_draft.lm_head

    class Broken(torch.nn.Module):
        def forward(self, hidden):
            logits = head(hidden)
            logits[..., 7] = broken
            return logits

    self_draft.lm_head = Broken()
    try:
        with svip_adapters.attach(target, "constant(5)") as handle, \
                pytest.warns(DegenerateLogitsWarning):
            out = target.generate(prompt, assistant_model=self_draft, max_new_tokens=12,
                                  do_sample=sample)
    finally:
        self_draft.lm_head = head
    assert sample or torch.equal(out, greedy(target, prompt, n=12))
    assert {r.drafted for r in handle.rounds[:-1]} == {0 if sample else 1}
    assert handle.degenerate >= 10


def test_logits_processors_apply_to_draft_and_target(target, self_draft, prompt):
    plain = greedy(target, prompt)
    common = plain[0, prompt.shape[1] :].mode().values.item()
    options = {"suppress_tokens": [common, 5, 6, 7], "min_new_tokens": 20}
    expected = greedy(target, prompt, **options)
    assert not torch.equal(expected, plain)
    for lean in (True, False):
        with svip_adapters.attach(target, "constant(4)", lean=lean) as handle:
            assert torch.equal(greedy(target, prompt, self_draft, **options), expected)
        assert handle.summary().acceptance_rate == 1
    # The lean loop applies each once; transformers some of them twice to the draft.
    options["repetition_penalty"] = 1.3
    expected = greedy(target, prompt, **options)
    with svip_adapters.attach(target, "constant(4)") as handle:
        assert torch.equal(greedy(target, prompt, self_draft, **options), expected)
    assert handle.summary().acceptance_rate == 1


def test_left_padding_is_left_to_the_framework(target, self_draft, prompt):
    mask = torch.ones_like(prompt)
    mask[0, :3] = 0
    expected = greedy(target, prompt, attention_mask=mask)
    with svip_adapters.attach(target, "constant(5)") as handle:
        out = greedy(target, prompt, self_draft, attention_mask=mask)
    assert torch.equal(out, expected) and handle.summary().acceptance_rate == 1


def test_sliding_window_draft_is_left_to_the_framework(prompt):
    """Its cache needs more than a crop to go back, and here the window is overrun."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=16, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, initializer_range=0.3)).eval()
    copy_of_it, policy = copy.deepcopy(model), "constant(4)"
    for target, rate in ((tiny(), 0), (copy_of_it, 1)):
        with svip_adapters.attach(target, policy) as handle:
            out = greedy(target, prompt, model, n=60)
        assert torch.equal(out, greedy(target, prompt, n=60))
        assert handle.summary().acceptance_rate >= rate


def test_batches_are_refused_by_size(target, draft, prompt):
    # Some versions refuse by themselves, before they ask for a draft.
    expected = (UnsupportedError, "size 3") if VERSION >= (5,) else (ValueError, "batch_size = 1")
    with svip_adapters.attach(target, "svip"), pytest.raises(expected[0], match=expected[1]):
        greedy(target, prompt.repeat(3, 1), draft)


def test_a_target_that_cannot_go_back_keeps_the_frameworks_refusal(prompt):
    from transformers import MambaConfig, MambaForCausalLM

    target = MambaForCausalLM(MambaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4, pad_token_id=0)).eval()
    with pytest.raises(ValueError, match="stateful|crop"):
        greedy(target, prompt, tiny())
    with svip_adapters.attach(target, "svip"), pytest.raises(ValueError, match="stateful|crop"):
        greedy(target, prompt, tiny())


def test_vocabularies_of_different_size_keep_the_frameworks_refusal(target, prompt):
    padded = tiny(vocab=80)
    with svip_adapters.attach(target, "svip"), pytest.raises(ValueError, match="tokenizer"):
        greedy(target, prompt, padded)


def test_prompt_lookup_has_no_distribution(target, prompt):
    with svip_adapters.attach(target, "svip"), pytest.raises(UnsupportedError, match="Lookup"):
        greedy(target, prompt, prompt_lookup_num_tokens=3)


def test_plain_decoding_is_not_touched(target, prompt):
    expected = greedy(target, prompt)
    with svip_adapters.attach(target, "svip") as handle:
        assert torch.equal(greedy(target, prompt), expected)
    assert handle.generations == []


def test_early_exit(target, prompt):
    expected = greedy(target, prompt)
    for policy in ("constant(3)", "svip(threshold=inf, cap=3)"):
        with svip_adapters.attach(target, policy) as handle:
            out = greedy(target, prompt, assistant_early_exit=1)
        assert torch.equal(out, expected)
        assert [r.drafted for r in handle.rounds[:2]] == [3, 3]
    assert target.config.num_hidden_layers == 2


def test_encoder_decoder(prompt):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, pad_token_id=0,
        eos_token_id=None, decoder_start_token_id=0)).eval()
    # As they are initialized, T5's logits are all alike.
    for parameter in model.parameters():
        parameter.data.mul_(3)
    expected = model.generate(prompt, max_new_tokens=20, do_sample=False)
    with svip_adapters.attach(model, "constant(3)") as handle:
        out = model.generate(
            prompt, max_new_tokens=20, do_sample=False, assistant_model=copy.deepcopy(model))
    assert torch.equal(out, expected)
    assert handle.rounds[0].drafted == 3 and handle.summary().acceptance_rate > 0.9


def test_ids_are_sent_to_the_drafts_device(target, self_draft, prompt, monkeypatch):
    """A second device is needed to see it work; here, that it is asked for."""
    device, asked = self_draft.device, []
    original = torch.Tensor.to

    def spy(self, *args, **kwargs):
        asked.extend(a for a in args if a is device)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    monkeypatch.setattr(type(self_draft), "device", property(lambda self: device))
    with svip_adapters.attach(target, "constant(3)"):
        greedy(target, prompt, self_draft, n=2)
    assert asked


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_draft_and_target_on_different_devices(target, prompt):
    draft = tiny().to("cuda")
    with svip_adapters.attach(target, "svip(threshold=0.5)"):
        assert torch.equal(greedy(target, prompt, draft), greedy(target, prompt))


def test_without_a_policy_the_frameworks_rule_is_only_recorded(target, near_draft, prompt):
    near = copy.deepcopy(near_draft)
    near.generation_config.num_assistant_tokens = 3
    near.generation_config.num_assistant_tokens_schedule = "heuristic"
    near.generation_config.assistant_confidence_threshold = 0
    with svip_adapters.attach(target, None) as handle:
        out = greedy(target, prompt, near)
    assert torch.equal(out, greedy(target, prompt))
    first, second = handle.rounds[:2]
    assert first.drafted == 3
    assert second.drafted == (5 if first.accepted == 3 else 2)
    assert handle.summary().rounds + handle.summary().accepted == 40
