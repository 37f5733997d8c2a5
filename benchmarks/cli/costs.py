"""What a study costs: planned, or measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.common import RESULTS, Results, StudyArgument, clear_errors
from benchmarks.study import load_study

app = typer.Typer()


@app.command()
def plan(
    study: StudyArgument,
    results: Results = RESULTS,
    gpu: Annotated[str, typer.Option(help="What it is to run on: H200, H100, A100-80, A100-40 or RTX-4090.")] = "H200",
    utilisation: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of its peak that is reached.")] = 0.4,
) -> None:
    """Say what a study will take, before anything runs; exit code 1 where memory or disk is too little."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks import plan_text, planning
        from benchmarks.hardware import get_gpu

        device = get_gpu(gpu)
        plans = planning.plan(loaded, results)
        typer.echo(plan_text.render(loaded, plans, device, utilisation, results))
        refusals = planning.refusals(plans, device, results)
    for refusal in refusals:
        typer.echo(refusal, err=True)
    raise typer.Exit(bool(refusals))


@app.command()
def speed(
    study: StudyArgument,
    results: Results = RESULTS,
    output: Annotated[Path | None, typer.Option(help="Write the measurements to this JSON file too.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Medians are taken over so many.")] = 3,
    questions: Annotated[int, typer.Option(min=1, help="Each is answered in a batch, and by itself.")] = 256,
) -> None:
    """Measure what batching and a cache are worth for every method. Nothing else should run on the machine."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks import devices
        from benchmarks.files import write_json
        from benchmarks.speed import measure_speed, render_speed

        devices.pin(1)
        record = measure_speed(loaded, results, repeats, questions)
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
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Examples per pass; default: the study's.")] = None,
) -> None:
    """Measure what a study would cost on this machine, untrained, beside the paper's Train and Test columns."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks import devices, measuring
        from benchmarks.tables.measured import render_measured

        devices.pin(1)
        folder = results / "reference" / name
        measuring.measure(loaded, results, folder, row or (), learn or (), steps, timed, micro_batch)
        files = render_measured(loaded, folder)
    typer.echo(files[0].read_text())
