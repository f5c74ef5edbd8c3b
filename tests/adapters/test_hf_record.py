"""Live traces of transformers: what is written, and that it is what was drafted."""

import json

import numpy as np
import pytest
import scipy.special
import torch
from svip_adapters import attach
from tiny_models import greedy, tiny

from svip_policy import bounds, provenance, trace
from svip_policy.errors import MissingDistributionsWarning, TraceError

PROMPT = torch.tensor([[5, 9, 2, 7]])


@pytest.fixture
def recorded(target, near_draft, tmp_path):
    path = tmp_path / "trace.jsonl"
    with attach(target, "heuristic") as handle:
        handle.record(path, distributions=True)
        text = greedy(target, PROMPT, near_draft)[0]
        with handle.use("svip(threshold=0.6)"):
            greedy(target, PROMPT, near_draft)
    return path, text, handle


def test_rounds_are_written_as_they_were(recorded):
    path, text, handle = recorded
    entries = trace.read(path, "rounds").entries
    assert [(e["drafted"], e["accepted"]) for e in entries] \
        == [(r.drafted, r.accepted) for r in handle.rounds]
    assert {e["generation"] for e in entries} == {0, 1}
    assert {e["policy"] for e in entries} == {"heuristic(length=5, grow=2, shrink=1, cap=40)",
                                              "svip(threshold=0.6, c=0.15, cap=40)"}
    assert 0 < sum(e["accepted"] for e in entries) < sum(e["drafted"] for e in entries)
    for entry in entries:
        drafted = text[entry["position"]:].tolist()[: entry["accepted"]]
        assert entry["tokens"][: entry["accepted"]] == drafted
        assert len(entry["tokens"]) == len(entry["entropies"]) == entry["drafted"]


def test_signals_are_those_of_both_models(recorded, target, near_draft):
    path, text, _ = recorded
    entry = next(e for e in trace.read(path, "rounds").entries if e["drafted"] >= 2)
    ids = torch.cat((text[: entry["position"]], torch.tensor(entry["tokens"])))[None]
    rows = slice(entry["position"] - 1, -1)
    with torch.no_grad():
        q, p = (scipy.special.softmax(m(ids).logits[0, rows].double().numpy(), axis=-1)
                for m in (near_draft, target))
    top = np.sort(q, axis=-1)
    chosen = q[np.arange(len(q)), entry["tokens"]]
    for name, expected in (("entropies", bounds.cross_entropy(q, q)), ("probabilities", chosen),
                           ("margins", top[:, -1] - top[:, -2]),
                           ("acceptance_rates", bounds.acceptance_rate(p, q)),
                           ("cross_entropies", bounds.cross_entropy(q, p))):
        np.testing.assert_allclose(entry[name], expected, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_header_tells_the_conditions(recorded):
    path, _, _ = recorded
    header = trace.read(path, "rounds").header
    assert provenance.missing(header) == []
    assert header["dtype"] == "float32" and set(header["models"]) == {"target", "draft"}


def test_recording_changes_nothing(recorded, target, near_draft):
    _, text, handle = recorded
    with attach(target, "heuristic") as plain:
        assert greedy(target, PROMPT, near_draft)[0].tolist() == text.tolist()
    drafted = [(r.drafted, r.accepted) for r in plain.rounds]
    assert drafted == [(r.drafted, r.accepted) for r in handle.rounds][: len(drafted)]


def test_a_cut_trace_is_readable_and_gone_on_with(recorded, target, near_draft):
    path, _, _ = recorded
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    entries = trace.read(path, "rounds").entries
    assert len(entries) == whole.count(b"\n") - 2
    with attach(target, "heuristic") as handle:
        handle.record(path, distributions=True)
        greedy(target, PROMPT, near_draft)
    longer = trace.read(path, "rounds").entries
    assert longer[: len(entries)] == entries
    assert {e["generation"] for e in longer[len(entries):]} == {2}


def test_other_conditions_are_refused(recorded, target, near_draft):
    path, _, _ = recorded
    before = path.read_bytes()
    with attach(target, "svip") as handle:
        handle.record(path, distributions=True)
        with pytest.raises(TraceError, match="differ in arms"):
            greedy(target, PROMPT, near_draft)
    assert path.read_bytes() == before


def test_a_round_without_a_draft_and_degenerate_logits_are_written(target, tmp_path):
    broken = tiny(seed=1, hidden=16, layers=1, heads=2)
    with torch.no_grad():
        broken.lm_head.weight.fill_(float("nan"))
    path = tmp_path / "trace.jsonl"
    with attach(target, "svip") as handle, pytest.warns(RuntimeWarning):
        handle.record(path)
        greedy(target, PROMPT, broken, n=3)
    entries = trace.read(path, "rounds").entries
    assert entries[0]["entropies"] == [None] and entries[-1]["entropies"] == []
    assert "acceptance_rates" not in entries[0]
    assert "NaN" not in path.read_text()


def test_sampling_is_told_apart_and_missing_distributions_are_warned_of(
        recorded, target, near_draft):
    path, _, _ = recorded
    with attach(target, "heuristic") as handle:
        handle.record(path, distributions=True)
        with pytest.warns(MissingDistributionsWarning, match="a temperature is one"):
            target.generate(PROMPT, assistant_model=near_draft, do_sample=True, temperature=0.7,
                            max_new_tokens=10)
        # top_k=0: version 4 has 50 by default.
        target.generate(PROMPT, assistant_model=near_draft, do_sample=True, top_k=0,
                        max_new_tokens=10)
    entries = trace.read(path, "rounds").entries
    assert {(e["generation"], e["decoding"], "acceptance_rates" in e) for e in entries} == {
        (0, "greedy", True), (1, "greedy", True), (2, "temperature 0.7", False),
        (3, "temperature 1", True)}


def test_frameworks_own_rule_is_recorded_without_signals(target, near_draft, tmp_path):
    with attach(target, None) as handle:
        handle.record(tmp_path / "t")
        greedy(target, PROMPT, near_draft)
    entries = trace.read(tmp_path / "t", "rounds").entries
    assert [(e["drafted"], e["accepted"]) for e in entries] \
        == [(r.drafted, r.accepted) for r in handle.rounds]
    assert json.loads((tmp_path / "t").read_text().splitlines()[0])["arms"] == ["Watched()"]
