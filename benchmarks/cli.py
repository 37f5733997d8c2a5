"""The command line: a thin layer over the functions of this package, each usable without Snakemake."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.figures import Figure
from benchmarks.locks import watch_parent
from benchmarks.specs import RunSpec
from benchmarks.study import StudyError, load_study, shipped
from benchmarks.tables import Table

app = typer.Typer(
    help="Reproducible benchmark of continuous (latent) reasoning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StudyArgument = Annotated[
    str, typer.Argument(help="A shipped study's name (see `studies`), or the path of a YAML file.")
]
RunArgument = Annotated[str, typer.Argument(help="A run's id: BLOCK/ROW/sSEED, e.g. equation/marcos/s0.")]
Results = Annotated[Path, typer.Option(help="Folder that everything is written to.")]
RESULTS = Path("results")
METHODS = Path("methods")
MAIN = Table.main


@app.callback()
def _prepare() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a forked worker would warn about it
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    watch_parent()


@contextmanager
def clear_errors() -> Iterator[None]:
    """Bad input ends in one message and exit code 2, not in a trace."""
    try:
        yield
    except ValueError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(2) from error


def _run(study: str, run: str) -> RunSpec:
    runs = load_study(study).runs
    if run not in runs:
        raise StudyError(f"study {study} has no run {run!r}; its runs are: {', '.join(runs)}")
    return runs[run]


@app.command()
def data(
    study: StudyArgument,
    results: Results = RESULTS,
    block: Annotated[str | None, typer.Option(help="Only this block.")] = None,
) -> None:
    """Prepare a study's data: read, check, split, train the tokenizer, tokenise."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks.data import prepare

        for part in loaded.blocks:
            if block in (None, part.id):
                typer.echo(f"{part.id}: {prepare(loaded, part, results)}", err=True)


@app.command()
def plan(
    study: StudyArgument,
    results: Results = RESULTS,
    gpu: Annotated[str, typer.Option(help="What it is to run on: H200, H100, A100-80, A100-40 or RTX-4090.")] = "H200",
    utilisation: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of its peak that is reached.")] = 0.4,
) -> None:
    """Say what a study will take, before anything runs; exit code 1 where a run does not fit into memory."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks import planning
        from benchmarks.hardware import get_gpu

        device = get_gpu(gpu)
        plans = planning.plan(loaded, results)
        typer.echo(planning.render(loaded, plans, device, utilisation, results))
    if not all(made.fits(device) for made in plans):
        raise typer.Exit(1)


@app.command()
def train(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Train one run; goes on from its last checkpoint."""
    with clear_errors():
        spec = _run(study, run)
        from benchmarks import devices, training
        from benchmarks.launch import RankFailure

        if spec.engine.nodes == 1:  # of several nodes, each belongs to the run as a whole
            devices.pin(spec.engine.gpus)
        try:
            record = training.train(spec, results)
        except RankFailure as failure:
            typer.secho(f"error: {failure}", fg="red", err=True)
            raise typer.Exit(failure.code) from failure
    seconds, speed = record["wall_seconds"], record["tokens_per_second"]
    typer.echo(f"{run}: {record['steps']} steps in {seconds:.0f} s, {speed:,.0f} tokens/s", err=True)


@app.command()
def evaluate(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Answer and score all test questions with a trained run."""
    with clear_errors():
        spec = _run(study, run)
        from benchmarks import devices, evaluation

        devices.pin(1)
        record = evaluation.evaluate(spec, results)
    for name, decoding in record["decodings"].items():
        for test, scores in decoding["tests"].items():
            mean = sum(scores["accuracy"]) / len(scores["accuracy"])
            typer.echo(f"{run} {name} {test}: {100 * mean:.2f} % of {scores['n']}", err=True)


@app.command(name="time")
def time_(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Measure test and training times of a trained run. Nothing else should run on the machine."""
    with clear_errors():
        spec = _run(study, run)
        from benchmarks import devices, timing

        devices.pin(1)
        record = timing.time_run(spec, results)
    for test, modes in record["tests"].items():
        for mode, measured in modes.items():
            seconds = sorted(measured["seconds"])[len(measured["seconds"]) // 2]
            typer.echo(f"{run} {test} ({mode}): {seconds:.2f} s for {measured['n']} questions", err=True)


@app.command()
def speed(
    study: StudyArgument,
    results: Results = RESULTS,
    output: Annotated[Path | None, typer.Option(help="Write the measurements to this JSON file too.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Medians are taken over so many.")] = 3,
) -> None:
    """Measure what batching and a cache are worth for every method. Nothing else should run on the machine."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks.files import write_json
        from benchmarks.speed import measure_speed, render_speed

        record = measure_speed(loaded, results, repeats)
        if output is not None:
            write_json(output, record)
    typer.echo(render_speed(record))


@app.command()
def measure(
    study: StudyArgument,
    name: Annotated[str, typer.Option(help="Of the machine, e.g. h200: the table goes to results/reference/NAME.")],
    results: Results = RESULTS,
    row: Annotated[list[str] | None, typer.Option(help="Only this row; may be repeated.")] = None,
    learn: Annotated[list[str] | None, typer.Option(help="A row whose loss is followed; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps that it is followed for.")] = 300,
    timed: Annotated[int, typer.Option(min=1, help="Timed optimizer steps per phase, after 10 of warm-up.")] = 50,
) -> None:
    """Measure what a study would cost on this machine, untrained, beside the paper's Train and Test columns."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks import measuring
        from benchmarks.tables.measured import render_measured

        folder = results / "reference" / name
        measuring.measure(loaded, results, folder, row or (), learn or (), steps, timed)
        files = render_measured(loaded, folder)
    typer.echo(files[0].read_text())


@app.command()
def collect(study: StudyArgument, results: Results = RESULTS) -> None:
    """Gather all records of a study into one tidy frame."""
    with clear_errors():
        from benchmarks import results as records

        frame = records.collect(load_study(study), results)
    typer.echo(f"{len(frame)} rows, {(frame.status == 'done').sum()} of them from finished runs", err=True)


@app.command()
def track(study: StudyArgument, results: Results = RESULTS) -> None:
    """Import a study's records into MLflow (MLFLOW_TRACKING_URI, or a SQLite file in the results folder)."""
    with clear_errors():
        from benchmarks import tracking

        tracking.track(load_study(study), results)


@app.command()
def table(
    study: StudyArgument,
    results: Results = RESULTS,
    table: Annotated[Table, typer.Option(help="Which one; `table --help` lists them.")] = MAIN,
) -> None:
    """Render a table as Markdown, LaTeX, CSV and JSON; print the Markdown."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks import tracking
        from benchmarks.tables.render import render

        files = render(loaded, results, table)
        tracking.attach_table(loaded, results, files)
    typer.echo(next(path for path in files if path.suffix == ".md").read_text())


@app.command()
def claims() -> None:
    """What the paper says of its numbers, against these numbers; `table STUDY --table claims` has ours beside."""
    from benchmarks.markup import markdown
    from benchmarks.tables.claims import paper_alone

    typer.echo(markdown(paper_alone()))


@app.command()
def figure(
    study: StudyArgument,
    figure: Annotated[Figure, typer.Option(help="Which one; `marcos-bench figure --help` lists them.")],
    results: Results = RESULTS,
) -> None:
    """Draw a figure as PNG and PDF, with its numbers as CSV and its caption as Markdown."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks.figures.render import render

        files = render(loaded, results, figure)
    typer.echo("\n".join(map(str, files)), err=True)


@app.command()
def analyse(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Ask a trained run what its latents carry: their patterns, interventions, samples. Figures are drawn from it."""
    with clear_errors():
        spec = _run(study, run)
        from benchmarks.analysis import stage

        record = stage.analyse(spec, results)
    typer.echo(f"{run}: {record['active']} of {record['dimensions']} dimensions are active, the largest clique is "
               f"{record['clique']}", err=True)  # fmt: skip


@app.command()
def intervene(
    study: StudyArgument,
    run: RunArgument,
    dims: Annotated[str, typer.Option(help="Dimensions, as in 3,7.")],
    value: Annotated[float, typer.Option(help="What they are set to.")],
    results: Results = RESULTS,
    step: Annotated[int | None, typer.Option(help="Thinking step, from 1; default: all.")] = None,
    test: Annotated[str | None, typer.Option(help="Test set; default: the first.")] = None,
    questions: Annotated[int, typer.Option(min=1, help="So many, spread evenly over the test set.")] = 100,
    show: Annotated[int, typer.Option(min=0, help="So many outputs are printed.")] = 5,
) -> None:
    """Set dimensions of a trained run's latents by hand: outputs before and after, and what becomes of their length,
    their format and their accuracy."""
    with clear_errors():
        spec = _run(study, run)
        from benchmarks.analysis import by_hand

        by_hand.intervene(spec, results, dims, value, step, test, questions, show)


@app.command()
def explain(
    study: StudyArgument,
    question: Annotated[int, typer.Option(min=1, help="Its number in the test set, from 1.")],
    results: Results = RESULTS,
    test: Annotated[str | None, typer.Option(help="Test set; default: the first.")] = None,
) -> None:
    """All trained runs on one question, side by side: steps, latents as nearest tokens, active dimensions."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks.analysis import explaining

        explaining.explain(loaded, results, question, test)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder, or that of one study.")] = RESULTS,
) -> None:
    """Put all tables and figures of a results folder into one HTML file that opens offline."""
    with clear_errors():
        from benchmarks import report as pages

        typer.echo(pages.report(folder), err=True)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A study's results, e.g. results/reference/quick.")],
    study: Annotated[str | None, typer.Option(help="The study that made them; default: the folder's name.")] = None,
) -> None:
    """Compute digests, scores and tables again from the predictions; exit code 1 where anything differs."""
    with clear_errors():
        loaded = load_study(study or folder.resolve().name)
        from benchmarks import verification

        findings = verification.verify(loaded, folder)
    typer.echo(verification.report(findings))
    raise typer.Exit(any(finding.kind == "differs" for finding in findings))


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="An MLflow run id, or STUDY:RUN, e.g. quick:equation/marcos/s0.")],
    b: Annotated[str, typer.Argument(help="The run that it is compared with.")],
    results: Results = RESULTS,
    test: Annotated[str | None, typer.Option(help="Only this test set.")] = None,
) -> None:
    """Metric differences of two tracked runs, a paired test, and the questions where they differ."""
    with clear_errors():
        from benchmarks import comparison

        typer.echo(comparison.render(comparison.compare(a, b, results, test)))


@app.command()
def methods() -> None:
    """List the methods that can be compared."""
    from methods.registry import available

    for name, cls in available().items():
        typer.echo(f"{name:12} {cls.title:24} {(cls.__doc__ or '').strip().splitlines()[0]}")


@app.command()
def new_method(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _, as in my_method.")],
    folder: Annotated[Path, typer.Option(help="Where the file goes.")] = METHODS,
) -> None:
    """Write a new method's file: it works as it stands, and its comments say what to change."""
    with clear_errors():
        from benchmarks import scaffold

        path = scaffold.new_method(name, folder)
    typer.echo(f"{path} is written; test it: pytest -k {name} tests/test_conformance.py", err=True)


@app.command()
def studies() -> None:
    """List the studies that come with the suite."""
    for name in shipped():
        typer.echo(f"{name:16} {load_study(name).title}")


if __name__ == "__main__":
    app()
