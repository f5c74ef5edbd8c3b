"""The ``svip`` command: compare, record, replay, report, and see what is installed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from .ablation import inputs
from .errors import ParameterError, SvipError

try:
    import typer
except ModuleNotFoundError as error:  # pragma: no cover
    raise SystemExit("svip: the command needs more packages: pip install 'svip-policy[bench]'") \
        from error

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="Draft length policies for speculative decoding: compare them, honestly.",
)
LONG_FORM = "128,256,512,1024,2048,4096,8192"


class Dtype(str, Enum):
    """Of both models."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


Target = Annotated[str, typer.Option(help="Hub id, local path, or 'embedded'.")]
Draft = Annotated[str, typer.Option(help="Hub id, local path, or 'embedded'.")]
Prompts = Annotated[Path | None, typer.Option(
    help="JSONL: Spec-Bench's or MT-Bench's question.jsonl, or lines with 'prompt'. Default: the "
         "repository's own prompts.")]
Field = Annotated[str | None, typer.Option(help="Where the text is, in another JSONL.")]
PerTask = Annotated[int | None, typer.Option(min=1, help="Prompts a task; all if not given.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Of an answer.")]
DtypeOption = Annotated[Dtype, typer.Option(help="Of both models.")]
Device = Annotated[str, typer.Option(help="As torch names it.")]
Seed = Annotated[int, typer.Option(help="Of the draw of prompts, the order of arms, sampling.")]
Policies = Annotated[list[str] | None, typer.Option(
    "--policy", "-p", help="A policy's text, such as 'svip(threshold=0.3)'; may be repeated.")]


@app.command()
def bench(
    out: Annotated[Path, typer.Option(help="Results, without suffix.")] = Path("results/bench"),
    target: Target = "embedded", draft: Draft = "embedded", prompts: Prompts = None,
    field: Field = None, per_task: PerTask = None,
    policy: Policies = None,
    tune: Annotated[list[str] | None, typer.Option(
        help="A policy with ranges, such as 'svip(threshold=0.2..0.5)'; the best on the tuning "
             "prompts is compared. May be repeated.")] = None,
    tuning_per_task: Annotated[int, typer.Option(min=0, help="Prompts a task to tune on.")] = 2,
    tuned_by: Annotated[Path | None, typer.Option(
        help="A trace of 'svip trace': tune on half of its prompts by replay, with --costs, in "
             "place of live runs, and compare on others.")] = None,
    costs: Annotated[Path | None, typer.Option(
        help="JSON of 'svip doctor --costs', for policies that want costs and are given none.",
    )] = None,
    fixed: Annotated[bool, typer.Option(
        help="Compare the best fixed length, tuned over 1 to 8.")] = True,
    framework: Annotated[bool, typer.Option(help="Compare transformers' own rule.")] = True,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy decoding.")] = 0.0,
    long_form: Annotated[str | None, typer.Option(
        help="Lengths to time each answer to a prompt's first turn at, end of sequence "
             f"suppressed, such as '{LONG_FORM}'.")] = None,
    dtype: DtypeOption = Dtype.bfloat16, device: Device = "cpu", seed: Seed = 0,
) -> None:
    """Run every prompt under every arm, interleaved, and report speedups with intervals.

    Arms: target-only decoding, transformers' own rule, the best fixed length, the policies and
    the tuned ones. Stopped, the same command goes on where it was.
    """
    from . import POLICIES
    from .ablation import report
    from .ablation.comparison import Comparison
    from .ablation.prompts import split
    from .ablation.runner import FRAMEWORK, TARGET_ONLY, Bench, assisted
    from .ablation.texts import same_conditions
    from .ablation.tuning import expand, with_costs

    marks = inputs.lengths_of(long_form, LONG_FORM) if long_form else []
    cost = inputs.costs_of(costs)[0] if costs else None
    policies = [*([FRAMEWORK] if framework else []),
                *(with_costs(text, cost) for text in policy or POLICIES)]
    families = {text: expand(text) for text in tune or []}
    if fixed:
        families = {"constant": expand("constant(1..8)"), **families}
    if families and not tuning_per_task and not tuned_by:
        raise ParameterError("nothing can be tuned on 0 prompts a task: give --tuning-per-task, "
                             "or --no-fixed and no --tune")
    every, best = inputs.prompts_of(prompts, field), None
    traced: dict[str, Any] = {}
    if tuned_by and families:
        best, used, traced = _tuned_by(tuned_by, families, costs)
        tuning = [p for p in every if p.id in used]
        if len(tuning) < len(used):
            raise ParameterError(f"{tuned_by} is of other prompts than these: give the file that "
                                 "it was recorded from")
        chosen, _ = split([p for p in every if p.id not in used], per_task, 0, seed)
    else:
        chosen, tuning = split(every, per_task, tuning_per_task, seed, tuned=bool(families))
    if marks:
        chosen, tuning = ([replace(p, turns=p.turns[:1]) for p in some]
                          for some in (chosen, tuning))
    limit = max(marks, default=max_new_tokens)
    models = inputs.load(target, draft, dtype.value, device)
    header = inputs.header(models, dtype.value, seed, [*chosen, *tuning]) | {
        "max_new_tokens": limit, "long_form": marks,
        "decoding": f"temperature {temperature:g}" if temperature else "greedy",
        **({"tuned_by": "replay"} if best is not None else {}),
    }
    if best is not None:
        same_conditions(traced, header, "the trace that tunes", "this comparison")
    short, answer = (assisted(models.target, models.draft, length, temperature, seed, marked)
                     for length, marked in ((min(limit, 16), ()), (limit, marks)))
    Bench(models.target, models.tokenizer, short).warm_up([TARGET_ONLY, *policies])
    comparison = Comparison(Bench(models.target, models.tokenizer, answer), chosen, tuning, header,
                            out)
    if best is not None:
        comparison.choose(best, families)
    elif families:
        comparison.tune(families)
    comparison.compare([*policies, *comparison.best.values()])
    typer.echo(report.render(comparison.finish(title="svip bench")))


def _tuned_by(trace: Path, families: dict[str, list[str]], costs: Path | None) \
        -> tuple[dict[str, str], set[str], dict[str, Any]]:
    """The best of each family on half of a trace, the prompts of that half, its conditions."""
    from .ablation.texts import conditions, halve, load, tuned

    if costs is None:
        raise ParameterError("--tuned-by predicts from costs: give --costs")
    header, texts = load(trace)
    cost, others = inputs.costs_of(costs)
    conditions(header, texts, others)
    half, _ = halve(texts)
    return tuned(half, families, cost), {text.prompt for text in half}, header


@app.command()
def trace(
    path: Annotated[Path, typer.Argument(help="To record to; gone on with if it is there.")],
    target: Target = "embedded", draft: Draft = "embedded", prompts: Prompts = None,
    field: Field = None, per_task: PerTask = None, max_new_tokens: MaxNewTokens = 128,
    longest: Annotated[int, typer.Option(min=1, help="Tokens drafted from each position.")] = 40,
    distributions: Annotated[bool, typer.Option(
        help="Also compare both distributions at each position, for the figures.")] = False,
    dtype: DtypeOption = Dtype.bfloat16, device: Device = "cpu", seed: Seed = 0,
) -> None:
    """Record the target's greedy answers, and what is drafted from each position of them."""
    from tqdm import tqdm

    from .ablation.prompts import split
    from .ablation.texts import record

    chosen, _ = split(inputs.prompts_of(prompts, field), per_task, 0, seed)
    models = inputs.load(target, draft, dtype.value, device)
    header = inputs.header(models, dtype.value, seed, chosen) | {
        "arms": ["what the draft drafts from each position"], "decoding": "greedy",
        "max_new_tokens": max_new_tokens, "longest": longest, "distributions": distributions,
        "of": [p.id for p in chosen],
    }
    count = record(models, chosen, path, header, max_new_tokens=max_new_tokens, longest=longest,
                   distributions=distributions,
                   progress=lambda items: tqdm(items, unit="prompt", file=sys.stderr))
    typer.echo(f"{path} holds {count} texts")


@app.command()
def replay(
    path: Annotated[Path, typer.Argument(help="A trace that 'svip trace' recorded.")],
    costs: Annotated[Path, typer.Option(help="JSON that 'svip doctor --costs' wrote.")],
    policy: Policies = None,
    tune: Annotated[list[str] | None, typer.Option(
        help="A policy with ranges, of which the best on half of the prompts is replayed on the "
             "others.")] = None,
    measured: Annotated[Path | None, typer.Option(
        help="The JSON of 'svip bench': its speedups stand beside the predicted ones.")] = None,
) -> None:
    """Predict the speed of policies on recorded texts, beside the oracle's.

    With --tune the texts of half of the prompts choose, and those of the others are reported.
    Policies that want costs, and are given none, get the measured ones.
    """
    from . import POLICIES
    from .ablation.report import speedups
    from .ablation.texts import conditions, halve, load, replay_all, replay_table, tuned
    from .ablation.tuning import expand, with_costs

    header, texts = load(path)
    cost, others = inputs.costs_of(costs)
    wanted = [with_costs(text, cost) for text in policy or ([] if tune else POLICIES)]
    base = None
    about = conditions(header, texts, others)
    if tune:
        tuning, texts = halve(texts)
        best = tuned(tuning, {text: expand(text) for text in tune}, cost)
        wanted += best.values()
        base = next((one for one in best.values() if one.startswith("constant(")), None)
        about += [f"{chosen} is the best of {name} on {len(tuning)} other texts; of the table are "
                  f"{len(texts)}." for name, chosen in best.items()]
    live = speedups(measured) if measured else None
    table = replay_table(replay_all(texts, dict.fromkeys(wanted), cost), live, base)
    typer.echo("\n".join([table, "", *(f"- {line}" for line in about)]))


@app.command()
def report(
    path: Annotated[Path, typer.Argument(help="The JSON that 'svip bench' wrote.")],
) -> None:
    """Print the report of a comparison anew, as Markdown."""
    from .ablation.report import load, render

    typer.echo(render(load(path)))


@app.command()
def figures(
    out: Annotated[Path, typer.Argument(help="Folder for PNG and SVG files.")],
    trace: Annotated[Path | None, typer.Option(
        help="Recorded by 'svip trace --distributions': figures 1 to 4.")] = None,
    result: Annotated[Path | None, typer.Option(
        help="The JSON of 'svip bench': figure 5, and speedups.")] = None,
    costs: Annotated[Path | None, typer.Option(
        help="JSON of 'svip doctor --costs': with the trace, threshold sweep and costs.")] = None,
    text: Annotated[int, typer.Option(min=0, help="Which text figure 1 shows.")] = 0,
    policy: Policies = None,
) -> None:
    """Draw the paper's figures, and two more, from traces and results."""
    from .ablation.gallery import draw

    if trace is None and result is None:
        raise ParameterError("nothing to draw from: give --trace, --result or both")
    cost = inputs.costs_of(costs)[0] if costs else None
    for path in draw(out, trace, result, cost, text, policy):
        typer.echo(path)


@app.command()
def doctor(
    costs: Annotated[Path | None, typer.Option(
        help="Measure draft step and verification of both models, and write them here.")] = None,
    target: Target = "embedded", draft: Draft = "embedded",
    longest: Annotated[int, typer.Option(min=1, help="Drafted tokens verified at most.")] = 40,
    dtype: DtypeOption = Dtype.bfloat16, device: Device = "cpu",
) -> None:
    """Tell what is installed and which adapter knows it; with --costs, what passes cost."""
    from .ablation.doctor import cost_table, findings

    typer.echo(findings())
    if costs is None:
        return
    from svip_adapters.hf_costs import measure

    models = inputs.load(target, draft, dtype.value, device)
    found = measure(models.target, models.draft, longest=longest)
    header = inputs.header(models, dtype.value, 0, []) | {"arms": ["costs"]}
    costs.parent.mkdir(parents=True, exist_ok=True)
    costs.write_text(json.dumps({"conditions": header, "costs": found.as_dict()}),
                     encoding="utf-8")
    typer.echo("\n" + cost_table(found) + f"\n\nWritten to {costs}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; an error is one line with the remedy, and exit status 2."""
    try:
        app(arguments, standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except (SvipError, OSError) as error:
        return _say(str(error))
    except Exception as error:
        # What click raises for a wrong command line; anything else is a fault of ours.
        if not hasattr(error, "format_message"):
            raise
        return _say(f"{error.format_message()} (see 'svip --help')")
    return 0


def _say(message: str) -> int:
    print(f"svip: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
