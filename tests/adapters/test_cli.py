"""The ``svip`` command, whole, on tiny models that are loaded from folders."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tiny_models import tiny

from svip_policy import parse, trace
from svip_policy.ablation import report
from svip_policy.ablation.runner import FRAMEWORK, TARGET_ONLY, Run
from svip_policy.ablation.texts import halve, load, replay_all, tuned
from svip_policy.ablation.tuning import expand
from svip_policy.cli import main
from svip_policy.cost import CostModel

pytest.importorskip("matplotlib")
TASKS = ("qa", "rag")
SVIP = "svip(threshold=0.3, c=0.15, cap=40)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, target, near_draft):
    """Models, tokenizer and prompts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("cli")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for name, model in (("target", target), ("draft", near_draft)):
        model.save_pretrained(folder / name)
        PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder / name)
    lines = [{"question_id": n, "category": TASKS[n % 2], "turns":
              [f"w{n + 1} w{2 * n + 5} w9"] + ["w7 w8"] * (n % 3 == 0)} for n in range(12)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def svip(folder, capsys):
    """Runs the command; its output, which is one line of error where it fails."""

    def run(*arguments, fails=False):
        status = main([str(a) for a in arguments])
        said = capsys.readouterr()
        assert status == (2 if fails else 0), said.err
        return said.err if fails else said.out

    return run


def models(folder):
    return ["--target", folder / "target", "--draft", folder / "draft", "--dtype", "float32"]


def benched(folder, out, *more):
    return ["bench", *models(folder), "--prompts", folder / "prompts.jsonl", "--out", out,
            "--per-task", 2, "--tuning-per-task", 1, "--max-new-tokens", 12, *more]


def outcome(path):
    """What must not depend on interruptions: tokens and rounds of each run."""
    return {(r["prompt"], r["arm"]): (r["tokens"], r["rounds"])
            for r in json.loads(path.read_text())["runs"]}


def test_bench_compares_and_reports(svip, folder, tmp_path):
    out = tmp_path / "r" / "pair-2.5"
    said = svip(*benched(folder, out, "-p", "constant(3)", "-p", "svip",
                         "--tune", "svip(threshold=0.2..0.8..0.3)"))
    written = {kind: tmp_path / "r" / f"pair-2.5.{kind}" for kind in ("json", "md")}
    result = json.loads(written["json"].read_text())
    arms = {r["arm"] for r in result["runs"]}
    assert {TARGET_ONLY, FRAMEWORK, "constant(length=3)", SVIP} \
        <= arms
    assert {name: tried for name, (_, tried) in result["conditions"]["tuned"].items()} \
        == {"constant": 8, "svip(threshold=0.2..0.8..0.3)": 3}
    assert {best for best, _ in result["conditions"]["tuned"].values()} <= arms
    assert {len([r for r in result["runs"] if r["arm"] == a]) for a in arms} == {4}
    tuned_on = {r["prompt"] for r in result["tuning"]}
    assert len(tuned_on) == 2 and not tuned_on & {r["prompt"] for r in result["runs"]}
    assert said.strip() == written["md"].read_text().strip()
    assert said.strip() == svip("report", written["json"]).strip()
    for wanted in ("draft s", "verify s", "wall s", "drafted", "95% interval", "float32",
                   "Tuned on 2 other prompts", "identical greedy output"):
        assert wanted in said, wanted
    assert not list(out.parent.glob("*.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--temperature", 1]], ids=["greedy", "sampling"])
def test_killed_it_goes_on_and_gives_the_same(folder, tmp_path, more):
    """kill -9 in the middle, then the same command again, against an uninterrupted run.

    Of given policies: which of several is tuned best is for the clock to say.
    """
    def command(out):
        arguments = map(str, benched(folder, out, *more, "--no-fixed", "-p", "heuristic",
                                     "-p", "svip", "--max-new-tokens", 40))
        return [sys.executable, "-m", "svip_policy", *arguments]

    cut, whole = tmp_path / "cut", tmp_path / "whole"
    partial = tmp_path / "cut.partial.jsonl"
    process = subprocess.Popen(command(cut), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not partial.exists() or partial.read_bytes().count(b"\n") < 4:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = partial.read_bytes().count(b"\n")
    assert 4 <= done < 17 and not cut.with_suffix(".json").exists()
    for out in (cut, whole):
        subprocess.run(command(out), check=True, capture_output=True)
    assert outcome(cut.with_suffix(".json")) == outcome(whole.with_suffix(".json"))


def test_long_answers_are_timed_at_the_lengths(svip, folder, tmp_path):
    out = tmp_path / "bench"
    said = svip(*benched(folder, out, "--long-form", "8,16,40", "-p", "constant(2)", "--no-fixed",
                         "--no-framework", "--per-task", 1))
    runs = [Run(**r) for r in json.loads(out.with_suffix(".json").read_text())["runs"]]
    assert {run.arm for run in runs} == {"target only", "constant(length=2)"}
    assert {len(t) for r in runs for t in r.tokens} == {40}
    for run in runs:
        counts, seconds = zip(*run.marks[:3], strict=True)
        assert all(n <= c <= n + 2 for n, c in zip((8, 16, 40), counts, strict=True))
        assert 0 < seconds[0] < seconds[1] < seconds[2] <= run.seconds
    assert "Speedup by length" in said and "| 8 " in said
    assert "transformers' own rule was left out" in said


def test_trace_replay_and_figures(svip, folder, tmp_path):
    path, costs, out = tmp_path / "t.jsonl", tmp_path / "c.json", tmp_path / "f"
    recording = ["trace", path, *models(folder), "--prompts", folder / "prompts.jsonl",
                 "--per-task", 3, "--max-new-tokens", 24, "--distributions"]
    said = svip(*recording)
    whole = path.read_bytes()
    count = whole.count(b'"task"')
    assert f"holds {count} texts" in said and count > 6
    # Killed while it wrote the last line but one.
    path.write_bytes(whole[: whole[:-1].rfind(b"\n") - 9])
    svip(*recording)
    assert path.read_bytes() == whole
    svip("doctor", "--costs", costs, *models(folder), "--longest", 24)
    said = svip("replay", path, "--costs", costs, "--tune", "constant(1..3)", "-p", "heuristic",
                "-p", "marginal")
    table = [line.split("|") for line in said.splitlines() if line.startswith("|")][2:]
    rows = [line[1].strip() for line in table]
    (best,) = (row for row in rows if row.startswith("constant"))
    assert {"oracle", "stop at first mismatch", TARGET_ONLY,
            "heuristic(length=5, grow=2, shrink=1, cap=40)"} < set(rows) and len(rows) == 6
    speeds = [float(line[2]) for line in table[:-1]]
    assert rows[0] == "oracle" and speeds == sorted(speeds, reverse=True)
    measured = json.loads(costs.read_text())["costs"]
    share = measured["draft"][1] / measured["verify"][1][0]  # at 256 tokens
    (ours,) = (row for row in rows if row.startswith("marginal"))
    assert parse(ours).draft_cost == pytest.approx(share) and parse(ours).cap == 24
    assert f"{best} is the best of constant(1..3) on " in said and "6 prompts" in said
    other = json.loads(costs.read_text())
    other["conditions"]["dtype"] = "bfloat16"
    (tmp_path / "o.json").write_text(json.dumps(other))
    said = svip("replay", path, "--costs", tmp_path / "o.json", fails=True)
    assert "the costs of bfloat16" in said
    bench = tmp_path / "bench"
    svip(*benched(folder, bench, "-p", "svip", "--no-fixed"))
    beside = svip("replay", path, "--costs", costs, "-p", "svip", "-p", "constant(1)", "--measured",
                  bench.with_suffix(".json"))
    cells = {row[1].strip(): row[3].strip() for row in
             (line.split("|") for line in beside.splitlines() if line.startswith("|"))}
    svip_measured = report.speedups(bench.with_suffix(".json"))[SVIP]
    assert cells["constant(length=1)"] == "" and cells[SVIP] == f"{svip_measured:.3f}"
    drawn = svip("figures", out, "--trace", path, "--costs", costs, "--result",
                 bench.with_suffix(".json"), "-p", "constant(2)").split()
    assert len(drawn) == 16 and all((out / name).stat().st_size > 5000 for name in drawn)


def test_a_trace_without_distributions_draws_what_it_can_and_says_what_it_lacks(
        svip, folder, tmp_path):
    path = tmp_path / "t.jsonl"
    svip("trace", path, *models(folder), "--prompts", folder / "prompts.jsonl", "--per-task", 1,
         "--max-new-tokens", 6)
    said = svip("figures", tmp_path, "--trace", path, fails=True)
    assert "--distributions" in said
    assert (tmp_path / "figure-1-accepted-length.png").exists()


def test_results_without_conditions_are_refused(svip, folder, tmp_path):
    result = tmp_path / "r.json"
    run = {"prompt": "a", "task": "qa", "arm": TARGET_ONLY}
    result.write_text(json.dumps({"conditions": {"seed": 0}, "runs": [run]}))
    for command in (["report", result], ["figures", tmp_path, "--result", result]):
        assert "without provenance" in svip(*command, fails=True)
    path = tmp_path / "t.jsonl"
    trace.TraceFile(path, "positions", {"seed": 0})
    assert "does not tell its conditions" in svip("figures", tmp_path, "--trace", path, fails=True)


@pytest.mark.parametrize(("arguments", "said"), [
    (["bench", "--long-form", "x"], "long-form is 'x'"),
    (["bench", "--policy", "svop"], "no policy 'svop'"),
    (["bench", "--tune", "svip(threshold=3..1)"], "no range"),
    (["bench", "--tuning-per-task", "0"], "nothing can be tuned"),
    (["bench", "--prompts", "nowhere.jsonl"], "no such file"),
    (["bench", "--dtype", "int3"], "dtype"),
    (["bench", "--prompts", "PROMPTS", "--target", "here"], "embedded draft goes with"),
    (["bench", "--prompts", "PROMPTS", "--device", "abacus"], "device is 'abacus'"),
    (["bench", "--prompts", "PROMPTS", "--per-task", "900"], "take fewer"),
    (["trace", "t.jsonl", "--longest", "0"], "longest"),
    (["replay", "nowhere", "--costs", "c"], "no such file"),
    (["report", "nowhere.json"], "no result of a comparison"),
    (["figures", "f"], "nothing to draw from"),
    (["bnch"], "No such command"),
    (["bench", "--nonsense"], "--nonsense"),
])
def test_an_error_is_one_line(svip, folder, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    prompts = str(folder / "prompts.jsonl")
    found = svip(*(prompts if a == "PROMPTS" else a for a in arguments), fails=True)
    assert said in found and found.startswith("svip: ") and found.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_the_repository_the_command_says_what_to_give(svip, folder, monkeypatch):
    from svip_policy.ablation import models as loading

    monkeypatch.setattr(loading, "EXAMPLES", folder / "none")
    assert "give --prompts" in svip("bench", fails=True)
    said = svip("trace", "t.jsonl", "--prompts", folder / "prompts.jsonl", fails=True)
    assert "comes with a clone of the repository" in said


@pytest.mark.parametrize("vocab", [60, 70])
def test_a_draft_of_another_vocabulary_is_refused(svip, folder, tmp_path, vocab):
    tiny(vocab=vocab).save_pretrained(tmp_path / "other")
    said = svip("trace", tmp_path / "t.jsonl", "--target", folder / "target", "--draft",
                tmp_path / "other", "--prompts", folder / "prompts.jsonl", fails=True)
    assert f"the target has 64 tokens and the draft {vocab}" in said


def test_other_prompts_or_weights_are_other_conditions(svip, folder, tmp_path):
    """Under the same names: nothing is mixed into a trace that was begun."""
    place, path = tmp_path / "m", tmp_path / "t.jsonl"
    shutil.copytree(folder, place)
    recording = ["trace", path, *models(place), "--prompts", place / "prompts.jsonl", "--per-task",
                 1, "--max-new-tokens", 4]
    svip(*recording)
    before = path.read_bytes()
    prompts = (place / "prompts.jsonl").read_text()
    (place / "prompts.jsonl").write_text(prompts.replace("w9", "w8"))
    assert "differ in prompts_sha256" in svip(*recording, fails=True)
    (place / "prompts.jsonl").write_text(prompts)
    tiny(seed=9).save_pretrained(place / "draft")
    assert "differ in models" in svip(*recording, fails=True)
    assert path.read_bytes() == before


def test_help_and_doctor(svip):
    assert "bench" in svip("--help")
    said = svip("doctor")
    assert "all 20 functions that are relied on are known" in said and "glide" in said


@pytest.mark.parametrize("module", ["svip_policy", "svip_policy.cli"])
def test_as_a_module_it_is_the_same_command(tmp_path, module):
    """It says what is wrong, with the command's status, instead of nothing at all."""
    ended = subprocess.run([sys.executable, "-m", module, "report", str(tmp_path / "none.json")],
                           capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("svip: ")


def test_a_divergence_beyond_rounding_ends_with_an_error_after_all_is_written(
        svip, folder, tmp_path, monkeypatch):
    from svip_policy.ablation import comparison

    monkeypatch.setattr(comparison, "divergences", lambda *_: [
        {"prompt": "3", "arm": "svip", "turn": 0, "position": 2, "gap": 1.5}])
    out = tmp_path / "bench"
    said = svip(*benched(folder, out, "-p", "svip", "--no-fixed"), fails=True)
    assert "no near-tie" in said and "gap 1.500" in said
    assert "part from the target's, 0 of them" in report.render(
        json.loads(out.with_suffix(".json").read_text()))


def test_another_seed_is_not_mixed_into_a_run_that_was_begun(svip, folder, tmp_path, monkeypatch):
    from svip_policy.ablation import comparison

    def stop(*_, **__):
        raise OSError("disk full")

    out = tmp_path / "bench"
    with monkeypatch.context() as patch:
        patch.setattr(comparison.Comparison, "finish", stop)
        assert "disk full" in svip(*benched(folder, out, "-p", "svip", "--no-fixed"), fails=True)
    said = svip(*benched(folder, out, "-p", "svip", "--no-fixed", "--seed", 1), fails=True)
    assert "other conditions" in said and "seed" in said
    svip(*benched(folder, out, "-p", "svip", "--no-fixed"))


def test_what_is_tuned_by_replay_is_compared_on_other_prompts(svip, folder, tmp_path):
    path, costs, out = tmp_path / "t.jsonl", tmp_path / "c.json", tmp_path / "bench"
    svip("trace", path, *models(folder), "--prompts", folder / "prompts.jsonl",
         "--per-task", 3, "--max-new-tokens", 12)
    arguments = [*benched(folder, out, "--no-fixed", "-p", "svip", "--tune", "constant(1..3)"),
                 "--per-task", 1, "--tuned-by", path]
    assert "give --costs" in svip(*arguments, fails=True)
    svip("doctor", "--costs", costs, *models(folder), "--longest", 12)
    others = tmp_path / "others.jsonl"
    others.write_text('{"prompt": "w1 w2"}\n' * 1)
    assert "of other prompts" in svip(*arguments, "--costs", costs, "--prompts", others, fails=True)
    said = svip(*arguments, "--costs", costs)
    result = json.loads(out.with_suffix(".json").read_text())
    texts = load(path)[1]
    used = {text.prompt for text in halve(texts)[0]}
    assert not used & {r["prompt"] for r in result["runs"]} and not result["tuning"]
    best = tuned(halve(texts)[0], {"constant": expand("constant(1..3)")},
                 CostModel.of(json.loads(costs.read_text())["costs"]))["constant"]
    assert result["conditions"]["tuned"] == {"constant(1..3)": [best, 3]}
    assert f"Tuned by replay on {len(used)} other prompts: {best}, of 3 tried." in said
    assert f"- {SVIP} against {best}: " in said and f"against {TARGET_ONLY}" not in said
    table = svip("replay", path, "--costs", costs, "--tune", "constant(1..3)", "-p", "svip")
    assert f"against {best}, 95% interval" in table
    (ours,) = (line.split("|") for line in table.splitlines() if line.startswith(f"| {SVIP}"))
    found = {r.policy: r for r in replay_all(halve(texts)[1], [SVIP, best], CostModel.of(
        json.loads(costs.read_text())["costs"]))}
    assert ours[3].strip() == report.with_interval(found[SVIP].against(found[best]), 3)
    assert found[SVIP].against(found[best]).total == pytest.approx(
        found[SVIP].speedup / found[best].speedup)
