"""Where a sequence ends: end tokens, stopping criteria, stop strings, time."""

import copy

import pytest
import svip_adapters
import torch
from tiny_models import greedy, tiny


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
