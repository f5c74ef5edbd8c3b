"""Trace files: resumption, and one clear line for what is none."""

import json
from time import perf_counter

import numpy as np
import pytest

from svip_policy import provenance, replay, trace
from svip_policy.errors import TraceError

HEADER = {"arms": ["svip"]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "trace.jsonl"


def test_what_is_added_is_read(path):
    file = trace.TraceFile(path, "runs", HEADER)
    file.add({"a": 1})
    file.add({"b": [0.1, None]})
    found = trace.read(path, "runs")
    assert found.entries == [{"a": 1}, {"b": [0.1, None]}]
    assert found.header["arms"] == ["svip"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_going_on_after_a_cut_anywhere_loses_only_the_last_line(path, cut):
    trace.TraceFile(path, "runs", HEADER).add({"a": 1})
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = trace.TraceFile(path, "runs", HEADER)
    assert again.entries == []
    again.add({"a": 1})
    assert path.read_bytes() == whole


def test_a_cut_first_line_is_begun_anew(path):
    trace.TraceFile(path, "runs", HEADER)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    trace.TraceFile(path, "runs", HEADER)
    assert path.read_bytes() == whole


def test_other_conditions_are_refused_and_named(path):
    trace.TraceFile(path, "runs", HEADER).add({"a": 1})
    with pytest.raises(TraceError, match="differ in arms, seed"):
        trace.TraceFile(path, "runs", {"arms": ["constant"], "seed": 3})
    assert trace.read(path, "runs").entries == [{"a": 1}]


def newer():
    return json.dumps({"svip_trace": trace.FORMAT + 1, "kind": "runs"}) + "\n"


@pytest.mark.parametrize(("content", "said"), [
    (b"", "is empty"),
    (b'{"svip_trace": 1, "ki', "cut off in its first line"),
    (b"\x00\xff\x00", "no trace, or was cut off"),
    (b"\x00\xff\n\x00", "line 1 is no JSON object"),
    (b'["a"]\n', "line 1 is no JSON object"),
    (b'{"prompt": "hello"}\n', "no trace of svip-policy"),
    (newer().encode(), "upgrade svip-policy"),
    (b'{"svip_trace": 1, "kind": "rounds"}\n', "a trace of rounds; one of runs is wanted"),
    (b'{"svip_trace": 1, "kind": "runs"}\n{"a": 1}\nxx\n{"a": 2}\n', "line 3"),
])
def test_what_is_no_trace_gets_one_clear_line(path, content, said):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(TraceError, match=said) as error:
        trace.read(path, "runs")
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_no_file_and_a_folder(path):
    for place in (path, path.parent):
        with pytest.raises(TraceError, match="no such file"):
            trace.read(place, "runs")


def test_a_foreign_file_is_not_written_to(path):
    path.parent.mkdir()
    path.write_text("important notes\n")
    with pytest.raises(TraceError):
        trace.TraceFile(path, "runs", HEADER)
    assert path.read_text() == "important notes\n"


def test_provenance_is_collected_and_what_is_missing_told():
    header = provenance.collect(models={"target": "x"}, dtype="float32", arms=["svip"], seed=0)
    assert provenance.missing(header) == []
    assert header["versions"]["svip-policy"] and header["commit"]
    assert provenance.missing({**header, "dtype": "", "models": {}}) == ["dtype", "models"]
    assert provenance.missing({"seed": 0}) == [n for n in provenance.REQUIRED if n != "seed"]


def test_a_large_trace_is_replayed_within_two_seconds(tmp_path):
    """100 prompts of 128 tokens with drafts of 20, read and replayed."""
    rng = np.random.default_rng(0)
    path = tmp_path / "t.jsonl"
    file = trace.TraceFile(path, replay.KIND, HEADER)

    def drafted(token):
        return replay.Drafted(token, float(rng.exponential()), -0.5, 0.4)

    for n in range(100):
        tokens = rng.integers(1, 50, 128).tolist()
        on = [drafted(t if rng.random() < 0.6 else 0) for t in tokens]
        off = {at: [drafted(7) for _ in range(19)] for at, d in enumerate(on) if not d.token}
        file.add(replay.Text(str(n), "qa", 0, 50, tokens, 128, frozenset(), 20, on, off).as_dict())
    began = perf_counter()
    _, texts = replay.read(path)
    rounds = [r for text in texts for r in replay.replay(text, "svip(cap=20)")]
    assert perf_counter() - began < 2.0
    assert sum(r.accepted + 1 for r in rounds) == 12800
