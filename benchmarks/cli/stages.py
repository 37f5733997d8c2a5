"""Commands that run the stages of a study and render their records."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.cli.common import RESULTS, Results, RunArgument, StudyArgument, ready_run
from benchmarks.studies.paths import AT_STAGE
from benchmarks.studies.specs import Figure, Table
from benchmarks.studies.study import StudyError, load_study

app = typer.Typer()


@app.command()
def data(
    study: StudyArgument,
    results: Results = RESULTS,
    block: Annotated[str | None, typer.Option(help="Only this block.")] = None,
) -> None:
    """Prepare a study's data: read, check, split, train the tokenizer, tokenise."""
    loaded = load_study(study)
    known = [part.id for part in loaded.blocks]
    if block not in (None, *known):
        raise StudyError(f"study {study} has no block {block!r}; its blocks are: {', '.join(known)}")
    from benchmarks.data import prepare
    from benchmarks.scoring.scorers import require_scorers

    require_scorers(loaded)
    for part in loaded.blocks:
        if block in (None, part.id):
            typer.echo(f"{part.id}: {prepare(loaded, part, results)}", err=True)


@app.command()
def train(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Train one run, from its last checkpoint if there is one."""
    spec = ready_run(study, run, results)
    from benchmarks.processes import devices
    from benchmarks.training.loop import train as train_run

    devices.pin_for(spec.engine)
    record = train_run(spec, results)
    seconds, speed = record["wall_seconds"], record["tokens_per_second"]
    typer.echo(f"{run}: {record['steps']} steps in {seconds:.0f} s, {speed:,.0f} tokens/s", err=True)


@app.command()
def evaluate(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Answer all test questions with a trained run and score the answers."""
    spec = ready_run(study, run, results)
    from benchmarks.evaluation import task
    from benchmarks.processes import devices

    devices.pin(1)
    record = task.evaluate(spec, results)
    for name, decoding in record["decodings"].items():
        if name.startswith(AT_STAGE):
            name += f" ({decoding['stage']['name']})"
        for test, scores in decoding["tests"].items():
            mean = sum(scores["accuracy"]) / len(scores["accuracy"])
            typer.echo(f"{run} {name} {test}: {100 * mean:.2f} % of {scores['n']}", err=True)


@app.command(name="time")
def time_(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Measure test and training times of a trained run. Nothing else should run on the machine."""
    spec = ready_run(study, run, results)
    from benchmarks.processes import devices
    from benchmarks.timing import task

    devices.pin_for(spec.engine)
    record = task.time_run(spec, results)
    for test, modes in record["tests"].items():
        for mode, measured in modes.items():
            seconds = median(measured["seconds"])
            typer.echo(f"{run} {test} ({mode}): {seconds:.2f} s for {measured['n']} questions", err=True)


@app.command()
def analyse(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Analyse what a trained run's latents carry: their patterns, interventions, samples. Figures are drawn from it."""
    spec = ready_run(study, run, results)
    from benchmarks.analysis import task
    from benchmarks.processes import devices

    devices.pin(1)
    record = task.analyse(spec, results)
    typer.echo(
        f"{run}: {record['active']} of {record['dimensions']} dimensions are active, the largest clique is "
        f"{record['clique']}",
        err=True,
    )


@app.command()
def collect(study: StudyArgument, results: Results = RESULTS) -> None:
    """Gather all records of a study into one tidy frame."""
    from benchmarks.records import results as records

    loaded = load_study(study)
    records.require_records(loaded, results)
    frame = records.collect(loaded, results)
    typer.echo(f"{len(frame)} rows, {(frame.status == 'done').sum()} of them from finished runs", err=True)


@app.command()
def track(study: StudyArgument, results: Results = RESULTS) -> None:
    """Import a study's records into MLflow (MLFLOW_TRACKING_URI, or a SQLite file in the results folder)."""
    from benchmarks.tracking import importer

    importer.track(load_study(study), results)


@app.command()
def table(
    study: StudyArgument,
    results: Results = RESULTS,
    table: Annotated[Table | None, typer.Option(help="Which table; default: the study's first.")] = None,
) -> None:
    """Render a table as Markdown, LaTeX, CSV and JSON; print the Markdown."""
    loaded = load_study(study)
    if table is None and not loaded.tables:
        raise StudyError(f"study {study} lists no table (`tables: []`): name one there, or ask for --table claims")
    if table not in (None, *loaded.tables, Table.claims):
        raise StudyError(
            f"study {study} does not list the table {table}; its tables are: {', '.join(loaded.tables) or 'none'} "
            "(and claims, as of any study)"
        )
    from benchmarks.records.results import load_collected
    from benchmarks.tables.render import render
    from benchmarks.tracking import importer

    files = render(loaded, results, table or loaded.tables[0])
    importer.attach_table(loaded, results, files)
    if not any(run.train or run.evaluate for run in load_collected(loaded, results).runs.values()):
        typer.secho(f"warning: no run of {loaded.name} has a record, so the table has no result", fg="yellow", err=True)
    typer.echo(next(path for path in files if path.suffix == ".md").read_text(encoding="utf-8"))


@app.command()
def figure(
    study: StudyArgument,
    figure: Annotated[Figure, typer.Option(help="Which figure.")],
    results: Results = RESULTS,
) -> None:
    """Draw a figure as PNG and PDF, and write its numbers as CSV and its caption as Markdown."""
    loaded = load_study(study)
    from benchmarks.figures.render import render

    files = render(loaded, results, figure)
    typer.echo("\n".join(map(str, files)), err=True)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder, or the folder of one study in it.")] = RESULTS,
) -> None:
    """Put all tables and figures of a results folder into one HTML file that can be read offline."""
    from benchmarks import report

    typer.echo(report.report(folder), err=True)
