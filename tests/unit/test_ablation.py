import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from svip_policy import provenance
from svip_policy.ablation import report
from svip_policy.ablation.prompts import Prompt, read_prompts
from svip_policy.ablation.runner import TARGET_ONLY, Journal, Run, chat_of
from svip_policy.ablation.statistics import paired_speedup
from svip_policy.ablation.tuning import measured_in
from svip_policy.errors import ParameterError, TraceError

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_ways_to_state_a_speedup():
    """Prompt 1: 10 tokens in 1 s against 2 s; prompt 2: 100 in 20 s against 20 s."""
    ratio = paired_speedup([10, 100], [1.0, 20.0], [10, 100], [2.0, 20.0])
    assert ratio.total == pytest.approx((110 / 21) / (110 / 22))
    assert ratio.of_means == pytest.approx((10 + 5) / (5 + 5))
    assert ratio.paired == pytest.approx(math.sqrt(2))
    assert ratio.low <= ratio.paired <= ratio.high


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng, hits = np.random.default_rng(0), 0
    for trial in range(100):
        base = rng.uniform(1, 9, size=30)
        mine = base / np.exp(rng.normal(math.log(1.2), 0.1, size=30))
        ratio = paired_speedup([5] * 30, mine, [5] * 30, base, seed=trial)
        hits += ratio.low <= 1.2 <= ratio.high
    assert 85 <= hits <= 99


@pytest.mark.parametrize("columns", [
    ([], [], [], []), ([1], [1.0], [1, 2], [1.0, 1.0]), ([0], [1.0], [1], [1.0]),
    ([1], [0.0], [1], [1.0]),
])
def test_impossible_timings_are_refused(columns):
    with pytest.raises(ParameterError, match="figures above 0"):
        paired_speedup(*columns)


def runs():
    """Two prompts of two tasks; the policy wins the first and loses the second."""
    return [
        Run("a", "qa", TARGET_ONLY, [[1, 2, 3, 4]], 4.0),
        Run("a", "qa", "svip", [[1, 2, 3, 4]], 2.0, [(1, 1), (1, 1)], 0.5, 1.4, 0.01),
        Run("b", "math", TARGET_ONLY, [[1, 2], [3]], 3.0),
        Run("b", "math", "svip", [[1, 2], [3]], 6.0, [(9, 1), (3, 0)], 4.0, 1.5, 0.02),
    ]


def test_tables_state_each_arm_by_task_and_overall():
    table = report.speedup_table(runs())
    assert "| svip" in table and "2.00" in table and "0.50" in table
    lengths = report.lengths_table(runs())
    assert "1.00 / 1.00 / 100%" in lengths and "6.00 / 0.50 / 8%" in lengths
    seconds = report.seconds_table(runs())
    assert "| 7" in seconds and "8.0" in seconds and "14" in seconds  # tokens, wall, drafted


def test_acceptance_is_pooled_over_prompts():
    assert report.summary(runs(), "svip").acceptance_rate == pytest.approx(3 / 14)


def test_losing_arms_are_told():
    assert report.verdicts(runs()) == [
        "svip is slower than target-only decoding: 0.88 times its speed."]
    assert report.verdicts(runs()[:2]) == [
        "No arm was slower than target-only decoding, in any task."]
    fine = [*runs()[:2], Run("b", "math", TARGET_ONLY, [[1]], 1.0),
            Run("b", "math", "svip", [[1]], 1.1, [(0, 0)])]
    assert report.verdicts(fine) == ["svip is slower than target-only decoding in: math."]


def test_one_prompt_gives_no_interval_and_no_verdict():
    assert report.comparison(runs()[:2], "svip", TARGET_ONLY) == (
        "svip against target only: 2.00 times its speed, from one prompt: no interval.")


def test_results_without_provenance_are_refused():
    with pytest.raises(ParameterError, match="no .*'commit'"):
        report.check_provenance({name: 1 for name in provenance.REQUIRED if name != "commit"})


def test_tokens_are_counted_by_id():
    assert Run("a", "qa", "x", [[7, 7], [7]]).count == 3


def test_a_killed_journal_goes_on_where_it_stopped(tmp_path):
    path, header = tmp_path / "j.jsonl", {"seed": 1, "arms": ["a"]}
    first = Journal(path, header)
    for run in runs():
        first.add(run)
    whole = path.read_text()
    path.write_text(whole[: len(whole) - 20])  # killed while it wrote the last line
    again = Journal(path, header)
    assert [r.prompt for r in again.runs] == ["a", "a", "b"] and not again.has("b", "svip")
    again.add(runs()[3])
    assert [asdict(r) for r in again.runs] == [
        {**asdict(r), "rounds": [list(x) for x in r.rounds]} for r in runs()[:3]
    ] + [asdict(runs()[3])]
    assert path.read_text() == whole


def test_a_journal_of_other_conditions_is_not_taken_up(tmp_path):
    path = tmp_path / "j.jsonl"
    Journal(path, {"seed": 1}).add(runs()[0])
    with pytest.raises(TraceError, match="seed"):
        Journal(path, {"seed": 2})
    assert len(Journal(path, {"seed": 1}).runs) == 1


def test_our_prompts_are_shared_evenly_by_the_six_tasks():
    prompts = read_prompts(EXAMPLES / "prompts.jsonl")
    tasks = {p.task for p in prompts}
    assert len(tasks) == 6 and len({p.id for p in prompts}) == len(prompts)
    for n in range(0, len(prompts), 6):  # any prefix of sixes holds each task
        assert {p.task for p in prompts[n : n + 6]} == tasks
    assert len(prompts) >= 24
    assert all(len(p.turns) == 2 for p in prompts if p.task.startswith("multi-turn"))


@pytest.mark.parametrize("line", ["{", "[]", '{"id": "a", "task": "qa"}', '"text"'])
def test_a_bad_prompt_line_is_named(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "task": "qa", "turns": ["hello"]}\n' + line + "\n")
    with pytest.raises(ValueError, match="line 2"):
        read_prompts(path)


def test_later_turns_follow_upon_the_given_answers():
    chat = chat_of(Prompt("a", "qa", ("q1", "q2")), 1, ["a1"])
    assert [m["content"] for m in chat] == ["q1", "a1", "q2"]
    assert [m["role"] for m in chat] == ["user", "assistant", "user"]


def test_of_many_answers_that_part_the_furthest_are_listed():
    found = [{"prompt": str(n), "arm": "svip", "turn": 0, "position": 1, "gap": n / 1000}
             for n in range(100)]
    conditions = {"decoding": "greedy", "dtype": "bfloat16", "tie": 0.5}
    (note,) = report.divergence_notes(conditions, found)
    assert "100 answers part from the target's, 100 of them" in note
    assert "99 turn 1 under svip at token 1 (gap 0.099); 98 turn" in note
    assert note.endswith(f"and {100 - report.LISTED} with gaps no larger, which the JSON lists.")


def drafted_in(arm, rounds, levels, nodes, verify):
    return Run("1", "t", arm, [[1]], 1.0, [(levels, 0)] * rounds, 0.005 * rounds * levels,
               rounds * verify, nodes=rounds * nodes, levels=rounds * levels)


def test_costs_are_told_from_runs_of_different_sizes():
    """A pass takes 50 ms and 2 a node, a level 5."""
    runs = [Run("1", "t", TARGET_ONLY, [[1]], 9.0),
            *(drafted_in("a", 10 + n, 1, n, 0.05 + 0.002 * n) for n in (1, 4)),
            drafted_in("b", 7, 3, 30, 0.11)]
    assert measured_in(runs) == pytest.approx((0.1, 0.04))
    with pytest.raises(ParameterError, match="add arms of other lengths"):
        measured_in(runs[:2])
    with pytest.raises(ParameterError, match="add arms of other lengths"):
        measured_in(runs[:1])
    with pytest.raises(ParameterError, match="add arms that verify few"):
        measured_in([drafted_in("a", 10, 1, n, 0.002 * n) for n in (10, 40)])
