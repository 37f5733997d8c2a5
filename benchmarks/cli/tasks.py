"""Commands that run the tasks of a study, which the workflow runs in order."""

from __future__ import annotations

import os
import sys
from statistics import median
from typing import Annotated

import typer

from benchmarks.cli.common import RESULTS, Results, RunArgument, StudyArgument, prepared_run
from benchmarks.studies.paths import AT_STAGE
from benchmarks.studies.study import WORKFLOWS, StudyError, load_study, study_path

app = typer.Typer()
ELSEWHERE = {"--executor", "-e", "--profile", "--workflow-profile"}  # options of Snakemake that may name a cluster


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    study: StudyArgument,
    snakemake: Annotated[list[str] | None, typer.Argument(help="Options and targets of Snakemake.")] = None,
) -> None:
    """Run all tasks of a study, as a Snakemake workflow.

    Makes the tables, figures and report that are missing or outdated, in `results` of the current folder. Whatever
    follows the study is passed to Snakemake, as in `run smoke --cores 2 --dry-run` (default: all cores) or
    `run smoke -- results/table.md` (only the first table).
    """
    asked = snakemake or []
    # Of Snakemake's options the last one counts. A cluster is not limited to as many cores as this machine has
    cores = () if ELSEWHERE & {word.partition("=")[0] for word in asked} else ("--cores", "all")
    words = ("--configfile", str(study_path(study)), "--snakefile", str(WORKFLOWS / "Snakefile"), *cores, *asked)
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words])


@app.command()
def data(
    study: StudyArgument,
    results: Results = RESULTS,
    block: Annotated[str | None, typer.Option(help="Only this block.")] = None,
) -> None:
    """Read, check, split and tokenise a study's data.

    The tokenizer is trained first if the study has one of its own.
    """
    loaded = load_study(study)
    known = [part.id for part in loaded.blocks]
    if block not in (None, *known):
        raise StudyError(f"study {study} has no block {block!r}; its blocks are: {', '.join(known)}")
    from benchmarks.data.store import describe, prepare
    from benchmarks.scoring.scorers import require_scorers

    require_scorers(loaded)
    for part in loaded.blocks:
        if block in (None, part.id):
            folder = prepare(loaded, part, results)
            typer.echo(f"{part.id}: {folder}: {describe(folder)}", err=True)


@app.command()
def train(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Train a run, or continue from its last checkpoint."""
    spec = prepared_run(study, run, results)
    from benchmarks.processes import devices
    from benchmarks.training.loop import train as train_run

    devices.pin_for(spec.engine)
    record = train_run(spec, results)
    seconds, speed = record["wall_seconds"], record["tokens_per_second"]
    typer.echo(f"{run}: {record['steps']} steps in {seconds:.0f} s, {speed:,.0f} tokens/s", err=True)


@app.command()
def evaluate(study: StudyArgument, run: RunArgument, results: Results = RESULTS) -> None:
    """Answer all test questions with a trained run, and score them."""
    spec = prepared_run(study, run, results)
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
    """Measure the test and training times of a trained run.

    Nothing else should run on the machine.
    """
    spec = prepared_run(study, run, results)
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
    """Analyse what a trained run's latents carry.

    Records their patterns, interventions on them, and samples, for figures such as `dimensions` and `intervention`.
    """
    spec = prepared_run(study, run, results)
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
    """Gather all records of a study in one tidy data frame."""
    from benchmarks import outputs
    from benchmarks.records import results as records

    loaded = load_study(study)
    records.require_records(loaded, results)
    frame = records.collect(loaded, results, outputs.score_published(loaded, results))
    typer.echo(f"{len(frame)} rows, {(frame.status == 'done').sum()} of them from finished runs", err=True)


@app.command()
def track(study: StudyArgument, results: Results = RESULTS) -> None:
    """Import a study's collected records into MLflow.

    They go to the server that MLFLOW_TRACKING_URI names, or else to a SQLite file in the results folder.
    """
    from benchmarks.tracking import importer

    importer.track(load_study(study), results)
