"""Pairs that do not share a tokenizer: greedy under the policy, sampling refused."""

from typing import ClassVar

import pytest
import svip_adapters
import torch
from tiny_models import tiny

from svip_policy import Decision
from svip_policy.errors import UnsupportedError

WORDS = [f"w{n}" for n in range(60)]


def tokenizer(words):
    """A tokenizer of whole words; its ids are the order of ``words``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {w: n for n, w in enumerate(["<pad>", "<unk>", "<eos>", *words])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>"
    )


@pytest.fixture(scope="module")
def pair():
    return {
        "tokenizer": tokenizer(WORDS), "assistant_tokenizer": tokenizer(WORDS[::-1][:50]),
        "assistant_model": tiny(seed=1, hidden=16, vocab=53),
    }


@pytest.mark.parametrize("policy", ["constant(3)", "heuristic(2)", "svip(threshold=0.5)"])
def test_greedy_output_is_the_targets(pair, prompt, policy):
    target = tiny(vocab=63)
    expected = target.generate(prompt, max_new_tokens=20, do_sample=False)
    with svip_adapters.attach(target, policy) as handle:
        out = target.generate(prompt, max_new_tokens=20, do_sample=False, **pair)
    assert torch.equal(out, expected)
    assert handle.summary().drafted > 0


def test_the_policy_counts_the_drafts_own_tokens(pair, prompt):
    class Three:
        positions: ClassVar[list[int]] = []

        def observe(self, step):
            assert step.logits.shape == (53,)
            self.positions.append(step.position)
            return Decision.STOP if step.position == 3 else Decision.CONTINUE

        def verified(self, drafted, accepted):
            pass

        def fresh(self):
            return self

    target = tiny(vocab=63)
    with svip_adapters.attach(target, Three()):
        target.generate(prompt, max_new_tokens=20, do_sample=False, **pair)
    assert Three.positions[:6] == [1, 2, 3, 1, 2, 3]


def test_sampling_is_refused_before_the_draft_is_changed(pair, prompt):
    target, draft = tiny(vocab=63), pair["assistant_model"]
    head = draft.lm_head
    with svip_adapters.attach(target, "svip"), pytest.raises(UnsupportedError, match="do_sample"):
        target.generate(prompt, max_new_tokens=5, do_sample=True, **pair)
    assert draft.lm_head is head


def test_custom_criteria_with_different_tokenizers_are_refused(pair, prompt):
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Mine(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([False])

    target, criteria = tiny(vocab=63), StoppingCriteriaList([Mine()])
    with svip_adapters.attach(target, "svip"), pytest.raises(UnsupportedError, match="Mine with"):
        target.generate(
            prompt, max_new_tokens=5, do_sample=False, stopping_criteria=criteria, **pair)
