"""Kinds of models and calls: carried, left to transformers' own drafting, or refused."""

import copy
from importlib import metadata

import pytest
import svip_adapters
import torch
from tiny_models import greedy, tiny

from svip_policy import Decision, trace
from svip_policy.errors import UnsupportedError

VERSION = tuple(int(n) for n in metadata.version("transformers").split(".")[:2])


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


def test_a_draft_without_the_usual_cache_forgets_in_skipped_rounds(target, prompt, tmp_path):
    """It proposes what it would anew, not what follows upon tokens that were rejected."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    class EveryThird:
        def begin(self, start):
            return Decision.CONTINUE if start.length % 3 == 0 else Decision.STOP

        def observe(self, step):
            return Decision.STOP if step.position == 4 else Decision.CONTINUE

        def verified(self, drafted, accepted):
            pass

        def fresh(self):
            return self

    torch.manual_seed(0)
    draft = GPTBigCodeForCausalLM(GPTBigCodeConfig(
        vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=128, bos_token_id=1,
        eos_token_id=None, pad_token_id=None, initializer_range=0.3)).eval()
    with svip_adapters.attach(target, EveryThird()) as handle:
        handle.record(tmp_path / "t")
        text = greedy(target, prompt, draft)
    assert torch.equal(text, greedy(target, prompt))
    drafts = [e for e in trace.read(tmp_path / "t", "rounds").entries if e["drafted"]]
    assert len(drafts) > 5 and any(e["accepted"] < 3 for e in drafts)
    for entry in drafts:
        before = text[:, : entry["position"]]
        anew = greedy(draft, before, n=len(entry["tokens"]))[0, entry["position"]:]
        assert entry["tokens"] == anew.tolist()
