"""Prompt files of the forms that are about, and ranges of policies."""

import json

import pytest

from svip_policy.ablation.prompts import Prompt, read_prompts, split
from svip_policy.ablation.tuning import POINTS, expand
from svip_policy.errors import ParameterError, PolicyTextError

FORMS = {
    "ours": ({"id": "mt-1", "task": "translation", "turns": ["a", "b"]},
             Prompt("mt-1", "translation", ("a", "b"))),
    "spec-bench": ({"question_id": 81, "category": "writing", "turns": ["a", "b"]},
                   Prompt("81", "conversation", ("a", "b"))),
    "spec-bench-math": ({"question_id": 400, "category": "math_reasoning", "turns": ["a"],
                         "reference": ["7"]}, Prompt("400", "math", ("a",))),
    "mt-bench": ({"question_id": 1, "category": "math", "turns": ["a", "b"]},
                 Prompt("1", "conversation", ("a", "b"))),
    "authors": ({"prompt": "a", "category": "rag"}, Prompt("1", "rag", ("a",))),
    "plain": ({"prompt": "a"}, Prompt("1", "all prompts", ("a",))),
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_forms(tmp_path, form):
    entry, expected = FORMS[form]
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(entry) + "\n\n")
    assert read_prompts(path) == [expected]


def test_a_named_field(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "why?", "turns": ["not this"]}\n')
    assert read_prompts(path, "question") == [Prompt("1", "all prompts", ("why?",))]


@pytest.mark.parametrize("task", ["math", "coding"])
def test_tasks_of_ones_own_are_not_renamed(tmp_path, task):
    path = tmp_path / "p.jsonl"
    for entry in ({"prompt": "a", "category": task}, {"id": 1, "turns": ["a"], "task": task}):
        path.write_text(json.dumps(entry))
        assert read_prompts(path)[0].task == task


def test_any_text_that_json_may_hold(tmp_path):
    path = tmp_path / "p.jsonl"
    text = "one\u2028two\x85three"
    path.write_text("\ufeff" + json.dumps({"prompt": text}, ensure_ascii=False) + "\r\n",
                    encoding="utf-8", newline="")
    assert read_prompts(path)[0].turns == (text,)
    path.write_bytes('{"prompt": "Ärger"}'.encode("latin-1"))
    with pytest.raises(ParameterError, match="not in UTF-8"):
        read_prompts(path)


@pytest.mark.parametrize(("text", "field", "said"), [
    ("", None, "holds no prompts"),
    ('{"prompt": "a"}\nnonsense\n', None, "line 2"),
    ('{"text": "a"}\n', None, "line 1: give a JSON object with turns or prompt"),
    ('{"prompt": "a"}\n', "text", "the text 'text'"),
    ('{"turns": []}\n', None, "line 1"),
    ('{"turns": "a"}\n', None, "line 1"),
    ('{"prompt": 7}\n', None, "line 1"),
    ('["a"]\n', None, "line 1"),
    ('{"id": 3, "prompt": "a"}\n{"id": 3, "prompt": "b"}\n', None, "line 2: a second prompt"),
])
def test_what_is_no_prompt_is_named_by_line(tmp_path, text, field, said):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(ParameterError, match=said):
        read_prompts(path, field)
    with pytest.raises(ParameterError, match="no such file"):
        read_prompts(tmp_path / "none")


PROMPTS = [Prompt(f"{task}{n}", task, ("x",)) for task in "ab" for n in range(6)]


def test_a_split_is_by_task_disjoint_and_of_the_seed():
    held_out, tuning = split(PROMPTS, 3, 2, seed=0)
    assert not {p.id for p in held_out} & {p.id for p in tuning}
    assert sorted(p.task for p in held_out) == list("aaabbb")
    assert sorted(p.task for p in tuning) == list("aabb")
    assert split(PROMPTS, 3, 2, seed=0) == (held_out, tuning)
    assert any(split(PROMPTS, 3, 2, seed=s)[0] != held_out for s in range(1, 5))


def test_without_a_number_all_others_are_held_out():
    held_out, tuning = split(PROMPTS, None, 2, seed=0)
    assert len(held_out) == 8 and len(tuning) == 4
    with pytest.raises(ParameterError, match=r"task 'a' has 6 prompts, 7 are wanted"):
        split(PROMPTS, 5, 2, seed=0)


def test_more_prompts_a_task_keep_those_that_were_there():
    few, many = split(PROMPTS, 2, 1, seed=0), split(PROMPTS, 5, 1, seed=0)
    assert set(few[0]) <= set(many[0]) and few[1] == many[1]


def test_where_nothing_is_tuned_what_another_run_tunes_on_is_left_out_if_there_are_others():
    tuned = split(PROMPTS, 3, 2, seed=0)
    assert split(PROMPTS, 3, 2, seed=0, tuned=False) == (tuned[0], [])
    for per_task, count in ((5, 10), (6, 12), (None, 12)):
        assert len(split(PROMPTS, per_task, 2, seed=0, tuned=False)[0]) == count
    with pytest.raises(ParameterError, match=r"task 'a' has 6 prompts, 7 are wanted"):
        split(PROMPTS, 7, 2, seed=0, tuned=False)


@pytest.mark.parametrize(("text", "expected"), [
    ("svip", ["svip(threshold=0.3, c=0.15, cap=40)"]),
    ("constant(1..3)", [f"constant(length={n})" for n in (1, 2, 3)]),
    ("heuristic(length=1..5..2, cap=9)",
     [f"heuristic(length={n}, grow=2, shrink=1, cap=9)" for n in (1, 3, 5)]),
    ("svip(threshold=0.1..0.3..0.1, cap=2..3)",
     [f"svip(threshold={h}, c=0.15, cap={n})" for h in (0.1, 0.2, 0.3) for n in (2, 3)]),
    ("svip(.5..1e0..0.25)", [f"svip(threshold={h}, c=0.15, cap=40)" for h in ("0.5", "0.75", "1")]),
])
def test_ranges(text, expected):
    assert [e.replace("1.0,", "1,") for e in expand(text)] == expected


def test_a_range_without_a_step_has_its_ends():
    found = expand("svip(threshold=0.2..0.5)")
    assert len(found) == POINTS and "=0.2," in found[0] and "=0.5," in found[-1]


@pytest.mark.parametrize(("text", "error"), [
    ("svip(threshold=0.5..0.2)", PolicyTextError), ("svip(threshold=0..1..0)", PolicyTextError),
    ("svop(1..2)", PolicyTextError), ("constant(0..2)", ParameterError),
    ("constant(1..", PolicyTextError),
])
def test_ranges_that_are_none(text, error):
    with pytest.raises(error):
        expand(text)
