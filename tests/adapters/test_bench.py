"""The runner of comparisons, on tiny models: runs, resumption, divergences."""

import pytest
import torch
from tiny_models import tiny

from svip_policy.ablation.prompts import Prompt
from svip_policy.ablation.runner import (
    FRAMEWORK,
    TARGET_ONLY,
    Bench,
    Journal,
    assisted,
    chat_of,
    divergences,
    run_all,
)

ARMS = [TARGET_ONLY, FRAMEWORK, "constant(length=3)", "svip"]
PROMPTS = [Prompt("a", "qa", ("hello",)), Prompt("b", "talk", ("one", "two", "three"))]


class Characters:
    """A tokenizer of characters, as far as the runner needs one."""

    chat_template = "a template"

    def apply_chat_template(self, chat, tokenize, **options):
        assert not tokenize
        return "".join(f"{m['role'][0]}{m['content']}" for m in chat)

    def __call__(self, text, add_special_tokens, **options):
        assert not add_special_tokens
        return {"input_ids": torch.tensor([[ord(c) % 64 for c in text]])}

    def decode(self, tokens, **options):
        return "".join(chr(64 + t) for t in tokens)


@pytest.fixture
def bench(target, near_draft):
    return Bench(target, Characters(), assisted(target, near_draft, 12))


def test_every_arm_runs_every_turn_and_gives_the_targets_tokens(bench, tmp_path):
    journal = Journal(tmp_path / "j.jsonl", {})
    run_all(bench, PROMPTS, ARMS, journal, seed=0)
    assert {(r.prompt, r.arm) for r in journal.runs} == {(p.id, a) for p in PROMPTS for a in ARMS}
    for run in journal.runs:
        assert [len(t) for t in run.tokens] == [12] * (3 if run.prompt == "b" else 1)
        assert run.seconds > 0 and bool(run.rounds) == (run.arm != TARGET_ONLY)
    assert list(divergences(bench, journal.runs, PROMPTS)) == []


def test_arms_are_interleaved_in_an_order_drawn_for_each_prompt(bench, tmp_path):
    prompts = [Prompt(str(n), "qa", ("x",)) for n in range(6)]
    journal = Journal(tmp_path / "j.jsonl", {})
    run_all(bench, prompts, ARMS, journal, seed=0)
    orders = [[r.arm for r in journal.runs if r.prompt == p.id] for p in prompts]
    assert [r.prompt for r in journal.runs] == [p.id for p in prompts for _ in ARMS]
    assert len({tuple(o) for o in orders}) > 1


def test_an_interrupted_comparison_is_completed(bench, tmp_path):
    whole, cut = Journal(tmp_path / "w", {}), Journal(tmp_path / "c", {})
    run_all(bench, PROMPTS, ARMS, whole, seed=0)
    run_all(bench, PROMPTS[:1], ARMS[:2], cut, seed=0)
    again = Journal(tmp_path / "c", {})
    run_all(bench, PROMPTS, ARMS, again, seed=0)
    assert {(r.prompt, r.arm): r.tokens for r in again.runs} == {
        (r.prompt, r.arm): r.tokens for r in whole.runs}
    assert len(again.runs) == len(whole.runs)


def test_a_divergence_is_told_by_position_and_gap(bench, tmp_path):
    """Of near-ties in bfloat16; here an answer is changed by hand."""
    journal = Journal(tmp_path / "j.jsonl", {})
    run_all(bench, PROMPTS, [TARGET_ONLY, "svip"], journal, seed=0)
    changed = next(r for r in journal.runs if r.arm == "svip" and r.prompt == "b")
    changed.tokens[1][4] = (changed.tokens[1][4] + 1) % 64
    (found,) = divergences(bench, journal.runs, PROMPTS)
    assert (found["prompt"], found["arm"], found["turn"], found["position"]) == ("b", "svip", 1, 4)
    plain = next(r for r in journal.runs if r.arm == TARGET_ONLY and r.prompt == "b")
    first = Characters().decode(plain.tokens[0])
    ids = bench.encode(chat_of(PROMPTS[1], 1, [first]))
    ids = torch.cat([ids, torch.tensor([plain.tokens[1][:4]])], dim=1)
    with torch.no_grad():
        logits = bench.target(ids).logits[0, -1]
    right, wrong = plain.tokens[1][4], changed.tokens[1][4]
    assert logits.argmax() == right
    assert found["gap"] == pytest.approx(float(logits[right] - logits[wrong]), abs=1e-4)
    changed.tokens[1] = plain.tokens[1][:4]  # ended there instead
    (found,) = divergences(bench, journal.runs, PROMPTS)
    top = logits.topk(2).values
    assert found["position"] == 4
    assert found["gap"] == pytest.approx(float(top[0] - top[1]), abs=1e-4)


def test_bfloat16_answers_part_only_at_near_ties(near_draft, prompt):
    """Verifying several tokens rounds otherwise than one: told with its gap, not hidden."""
    target = tiny().bfloat16()
    bench = Bench(target, Characters(), assisted(target, near_draft, 40))
    runs = [bench.run(p, arm, ["x"] * 2) for p in PROMPTS for arm in ARMS]
    assert all(d["gap"] < 0.1 for d in divergences(bench, runs, PROMPTS))
