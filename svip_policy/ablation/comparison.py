"""A comparison of arms: some tuned on other prompts, written as it goes, with its conditions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import DivergenceError
from . import report
from .prompts import Prompt
from .runner import TARGET_ONLY, Bench, Journal, Run, divergences, run_all

# How far apart two logits may be and still change places by rounding. Logits of 16 to 32, which
# are the largest of usual models, are 0.125 apart in bfloat16 and 0.016 in float16.
TIE = {"bfloat16": 0.5, "float16": 0.07, "float32": 1e-3}


class Comparison:
    """Arms on some prompts, some of them chosen on others; resumes where it was stopped.

    Args:
        bench: answers.
        prompts: to compare on.
        tuning: to tune on.
        header: the conditions, from :func:`svip_policy.provenance.collect`, with dtype, seed,
            max_new_tokens and decoding.
        place: of the results, a path without suffix.

    Attributes:
        best: the chosen arm of each tuned family.
    """

    def __init__(self, bench: Bench, prompts: list[Prompt], tuning: list[Prompt],
                 header: dict[str, Any], place: Path) -> None:
        self._bench, self._prompts, self._tuning = bench, prompts, tuning
        self._header, self._place = header, place
        self._journals: list[Journal] = []
        self.best: dict[str, str] = {}
        self._tried: dict[str, int] = {}

    def tune(self, families: dict[str, list[str]]) -> list[Run]:
        """Find the arm of each family with the most tokens a second on the other prompts.

        Returns:
            The runs of all of them there.
        """
        arms = [TARGET_ONLY, *(arm for family in families.values() for arm in family)]
        runs = self._run(self._tuning, report.unique(arms), "tuning")
        self.choose({name: max(family, key=lambda arm: report.speedup(runs, arm).total)
                     for name, family in families.items()}, families)
        return runs

    def choose(self, best: dict[str, str], families: dict[str, list[str]]) -> None:
        """Take the arms that were chosen by the other prompts, here or elsewhere.

        Args:
            best: of each family.
            families: all that were tried.
        """
        self.best = best
        self._tried = {name: len(family) for name, family in families.items()}

    def compare(self, arms: Iterable[str]) -> list[Run]:
        """All arms, and target-only decoding, on the prompts of the comparison."""
        return self._run(self._prompts, report.unique([TARGET_ONLY, *arms]), "partial")

    def _run(self, prompts: list[Prompt], arms: list[str], kind: str) -> list[Run]:
        self._header |= {"arms": arms}
        journal = Journal(self._file(f"{kind}.jsonl"),
                          {**self._header, "of": [p.id for p in prompts]})
        self._journals.append(journal)
        run_all(self._bench, prompts, arms, journal, self._header["seed"],
                lambda items: tqdm(items, f"{len(arms)} arms", unit="prompt", file=sys.stderr))
        return journal.runs

    def finish(self, **about: Any) -> dict[str, Any]:
        """Check the texts, write Markdown and JSON, remove what a resumption would have needed.

        Args:
            about: what the report says beside the conditions, see :func:`report.render`.

        Returns:
            The result, as in the JSON.

        Raises:
            DivergenceError: a greedy answer parts from the target's where there is no near-tie;
                the results are written nevertheless.
        """
        report.check_provenance(self._header)
        order = self._header["arms"].index
        runs = sorted(self._journals[-1].runs, key=lambda r: order(r.arm))
        found = self._divergences(runs)
        result = {
            "conditions": {
                **self._header, **about, "prompts": len(self._prompts),
                "tuning_prompts": len(self._tuning) if self.best else 0,
                "tuned": {name: [arm, self._tried[name]] for name, arm in self.best.items()},
                "tie": TIE[self._header["dtype"]],
            },
            "divergences": found, "runs": [asdict(r) for r in runs],
            "tuning": [asdict(r) for j in self._journals[:-1] for r in j.runs],
        }
        # Before the journals go, so that nothing is lost half-way.
        self._file("json").write_text(json.dumps(result), encoding="utf-8")
        self._file("md").write_text(report.render(result), encoding="utf-8")
        # The tuning last: without it a rerun would tune anew.
        for journal in reversed(self._journals):
            journal.path.unlink()
        refuse_large_gaps(self._header["dtype"], found)
        return result

    def _file(self, suffix: str) -> Path:
        # Not with_suffix(), which takes ".5" for one in "Qwen2.5".
        return self._place.with_name(f"{self._place.name}.{suffix}")

    def _divergences(self, runs: list[Run]) -> list[dict[str, Any]]:
        if self._header["decoding"] != "greedy":
            return []  # samples differ
        # Some frameworks overshoot max_new_tokens by what their last round brought.
        length = self._header["max_new_tokens"]
        cut = [replace(r, tokens=[tokens[:length] for tokens in r.tokens]) for r in runs]
        return list(divergences(self._bench, cut, self._prompts))


def refuse_large_gaps(dtype: str, found: list[dict[str, Any]]) -> None:
    """Raise DivergenceError if an answer parts from the target's where there is no near-tie."""
    far = [d for d in found if d["gap"] > TIE[dtype]]
    if far:
        raise DivergenceError(
            f"{len(far)} answers differ from the target's at a position that is no near-tie, the "
            f"first {far[0]['prompt']} under {far[0]['arm']}, gap {far[0]['gap']:.3f}"
        )
