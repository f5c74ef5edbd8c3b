"""GliDe's adapter without upstream: on a stand-in that has only the signatures of its seams."""

import importlib.util
import subprocess
import sys
import types

import pytest
import torch
from svip_adapters import _upstreams, attach, glide_cape

from svip_policy import Constant, trace
from svip_policy.errors import ParameterError, UnsupportedError

VOCAB, ACCEPTED = 16, 2


def greedy_search(model, input_ids, stopping_criteria=None, **options):
    """Drafts the next numbers until the criteria say stop."""
    scores = ()
    while True:
        logits = torch.zeros(1, VOCAB)
        logits[0, (int(input_ids[0, -1]) + 1) % VOCAB] = 5.0
        scores += (logits,)
        input_ids = torch.cat((input_ids, logits.argmax(-1)[None]), 1)
        if stopping_criteria(input_ids, scores):
            return {"sequences": input_ids, "scores": scores}


def update_inference_inputs_joint_llama(accept_length, retrieve_indices,
                                        small_past_key_values_data):
    """Takes what was accepted."""


class Draft(torch.nn.Module):
    """Calls the seams as upstream does, as globals of its module."""

    past_key_values_data = None

    def medusa_forward(self):
        """What an adapter looks for."""

    def medusa_generate(self, input_ids, large_model, rounds=3, batch_size=1, num_beams=1,
                        expand_cape=False):
        if self.past_key_values_data is None:
            self.past_key_values_data = torch.zeros(2, 1, 1, 40, 1)
        seams = sys.modules[type(self).__module__]
        lengths = []
        for _ in range(rounds):
            out = seams.greedy_search(
                self, input_ids, stopping_criteria=lambda ids, scores: len(scores) >= 4)
            drafted = len(out["scores"])
            lengths.append(drafted)
            accepted = min(ACCEPTED, drafted)
            seams.update_inference_inputs_joint_llama(
                accept_length=torch.tensor(accepted),
                retrieve_indices=torch.arange(drafted + 1)[None],
                small_past_key_values_data=self.past_key_values_data)
            input_ids = out["sequences"][:, : input_ids.shape[1] + accepted + 1]
        return lengths

    medusa_generate_stream = medusa_generate


@pytest.fixture
def pair(monkeypatch):
    module = types.ModuleType("stand_in.glideModel")
    module.greedy_search = greedy_search
    module.update_inference_inputs_joint_llama = update_inference_inputs_joint_llama
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Draft, "__module__", module.__name__)
    monkeypatch.setitem(_upstreams.FINGERPRINTS, "glide", {})
    target = torch.nn.Module()
    target.model = torch.nn.Module()
    target.model.layers = torch.nn.ModuleList()
    return target, Draft()


PROMPT = torch.tensor([[1, 2, 3]])


def test_the_policy_stands_in_for_the_fixed_length(pair):
    target, draft = pair
    seams = sys.modules[Draft.__module__]
    before = dict(vars(seams)), dict(vars(draft))
    assert draft.medusa_generate(PROMPT, target) == [4, 4, 4]
    with attach(draft, "constant(2)", target=target) as handle:
        assert draft.medusa_generate(PROMPT, target) == [2, 2, 2]
        assert [r[:2] for r in handle.rounds] == [(2, 2)] * 3
        with handle.use("constant(7)"):
            assert draft.medusa_generate(PROMPT, target) == [7, 7, 7]
        other = Draft()
        assert other.medusa_generate(PROMPT, target) == [4, 4, 4]
    assert [r.accepted for r in handle.rounds] == [2] * 6
    assert draft.medusa_generate(PROMPT, target) == [4, 4, 4]
    after = dict(vars(seams)), dict(vars(draft))
    after[1].pop("past_key_values_data")
    before[1].pop("past_key_values_data", None)
    assert after == before


def test_a_trace_holds_each_round(pair, tmp_path):
    target, draft = pair
    with glide_cape.attach(draft, "constant(3)", target=target) as handle:
        handle.record(tmp_path / "t.jsonl")
        draft.medusa_generate(PROMPT, target)
        with pytest.raises(UnsupportedError, match="without distributions"):
            handle.record(tmp_path / "t.jsonl", distributions=True)
    entries = trace.read(tmp_path / "t.jsonl", "rounds").entries
    assert [(e["position"], e["drafted"], e["accepted"]) for e in entries] \
        == [(3, 3, 2), (6, 3, 2), (9, 3, 2)]
    assert [e["tokens"] for e in entries] == [[4, 5, 6], [7, 8, 9], [10, 11, 12]]
    expected = float(torch.tensor([5.0] + [0.0] * (VOCAB - 1)).softmax(-1)[0])
    assert entries[0]["probabilities"] == pytest.approx([expected] * 3)


def test_recording_only(pair):
    target, draft = pair
    with glide_cape.attach(draft, None, target=target) as handle:
        assert draft.medusa_generate(PROMPT, target) == [4, 4, 4]
    assert [r[:2] for r in handle.rounds] == [(4, 2)] * 3


def test_a_draft_ends_where_the_cache_does(pair):
    """The cache of the stand-in has 40 places; upstream's 4,096, and no check."""
    target, draft = pair
    draft.past_key_values_data = torch.zeros(2, 1, 1, 12, 1)
    with glide_cape.attach(draft, "constant(30)", target=target, max_draft=32):
        assert draft.medusa_generate(PROMPT, target) == [8, 5, 2]


@pytest.mark.parametrize("options, message", [
    ({"batch_size": 2}, "batch size is 2"), ({"num_beams": 3}, "num_beams is 3"),
    ({"expand_cape": True}, "expand_cape is True"),
])
def test_refusals(pair, options, message):
    target, draft = pair
    with glide_cape.attach(draft, "svip", target=target), \
            pytest.raises(UnsupportedError, match=message):
        draft.medusa_generate(PROMPT, target, **options)


def test_what_attach_asks_for(pair):
    target, draft = pair
    with pytest.raises(TypeError, match="give GliDe's smallLlamaForCausalLM"):
        glide_cape.attach(target, "svip", target=target)
    with pytest.raises(TypeError, match="large_model"):
        glide_cape.attach(draft, "svip", target=draft)
    for wrong in (0, 33, 2.0, True):
        with pytest.raises(ParameterError, match="max_draft is"):
            glide_cape.attach(draft, "svip", target=target, max_draft=wrong)


def test_an_exception_in_a_policy_leaves_the_next_generation_whole(pair):
    target, draft = pair

    class Broken(Constant):
        def observe(self, step):
            raise ZeroDivisionError("policy")

    with glide_cape.attach(draft, "constant(3)", target=target) as handle:
        with handle.use(Broken()), pytest.raises(ZeroDivisionError):
            draft.medusa_generate(PROMPT, target)
        assert draft.medusa_generate(PROMPT, target) == [3, 3, 3]
    assert [len(driver.rounds) for driver in handle.generations] == [0, 3]


def test_importing_needs_nothing_and_versions_are_told():
    code = ("import sys, svip_adapters.glide_cape; "
            "assert not {'torch', 'transformers', 'glide'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)
    if importlib.util.find_spec("transformers"):
        from importlib import metadata

        if not metadata.version("transformers").startswith("4.36."):
            with pytest.raises(UnsupportedError, match=r"transformers 4\.36 .* installed is"):
                glide_cape.check_versions()


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="has flash_attn")
def test_what_the_import_helper_redirects_it_undoes(monkeypatch):
    from transformers import AutoTokenizer

    asked = []
    monkeypatch.setattr(AutoTokenizer, "from_pretrained",
                        classmethod(lambda cls, path, **options: asked.append(path)))
    before = dict(vars(AutoTokenizer))
    authors = glide_cape.AUTHORS_HOME + "model/vicuna-7b-v1.5"
    with pytest.raises(KeyError), glide_cape.importable("mine") as said:
        from flash_attn.bert_padding import pad_input
        from flash_attn.ops.rms_norm import rms_norm

        for function in (pad_input, rms_norm):
            with pytest.raises(RuntimeError, match="flash_attn is not installed"):
                function()
        AutoTokenizer.from_pretrained(authors)
        AutoTokenizer.from_pretrained("another")
        assert asked == ["mine", "another"]
        assert any(authors in line and "mine" in line for line in said)
        assert any("flash_attn" in line for line in said)
        raise KeyError("in the middle")
    assert dict(vars(AutoTokenizer)) == before
    assert not [name for name in sys.modules if name.split(".")[0] == "flash_attn"]
