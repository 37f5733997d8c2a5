"""Commands that report what a study costs: planned, or measured."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.common import RESULTS, Results, StudyArgument
from benchmarks.plan.hardware import GPUS, get_gpu
from benchmarks.studies.study import load_study

app = typer.Typer()


def _as_listed(name: str) -> str:
    """Return a GPU's name as it is listed, ignoring case."""
    return next((gpu for gpu in GPUS if gpu.lower() == name.lower()), name)


Gpu = Annotated[str, typer.Option(callback=_as_listed, help=f"The GPU to plan for: {', '.join(GPUS)}.")]


@app.command()
def plan(
    study: StudyArgument,
    results: Results = RESULTS,
    gpu: Gpu = "H200",
    utilisation: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of the GPU's peak FLOP/s.")] = 0.4,
) -> None:
    """Say what a study will take before anything runs; exit code 1 if memory or disk space is insufficient."""
    loaded = load_study(study)
    import torch

    from benchmarks.plan import costs, report

    torch.set_num_threads(1)  # the models that are counted are small: threads would wait for each other
    device = get_gpu(gpu)
    with _quiet_transformers():
        plans = costs.plan(loaded, results)
    typer.echo(report.render(loaded, plans, device, utilisation, results))
    refused = report.feasibility_errors(plans, device, results)
    for refusal in refused:
        typer.echo(refusal, err=True)
    raise typer.Exit(bool(refused))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence the warnings of transformers: they are about small models that are only counted, and a user can do
    nothing about them."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(level)


@app.command()
def speed(
    study: StudyArgument,
    results: Results = RESULTS,
    output: Annotated[Path | None, typer.Option(help="Also write the measurements to this JSON file.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repeats; the median is reported.")] = 3,
    questions: Annotated[int, typer.Option(min=1, help="Questions to answer, in batches and one by one.")] = 256,
) -> None:
    """Measure how much faster batching and a cache make each method. Nothing else should run on the machine."""
    loaded = load_study(study)
    from benchmarks.files import write_json
    from benchmarks.processes import devices
    from benchmarks.timing.speed import measure_speed, render_speed

    devices.pin(1)
    record = measure_speed(loaded, results, repeats, questions)
    if output is not None:
        write_json(output, record)
    typer.echo(render_speed(record))


@app.command()
def measure(
    study: StudyArgument,
    name: Annotated[str, typer.Option(help="Machine name, e.g. h200.")],
    results: Results = RESULTS,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for records and table, e.g. results/reference/h200; default: RESULTS/measured/NAME."),
    ] = None,
    row: Annotated[list[str] | None, typer.Option(help="Measure only this row; may be repeated.")] = None,
    learn: Annotated[
        list[str] | None,
        typer.Option(help="Measure this row, whatever `--row` says, and follow its loss; may be repeated."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps for the `--learn` rows.")] = 300,
    timed: Annotated[int, typer.Option(min=1, help="Timed optimizer steps per phase, after 10 of warm-up.")] = 50,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Examples per forward pass; default: the study's.")
    ] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile layers; default: the study's.")
    ] = None,
    one_process: Annotated[bool, typer.Option("--one-process", help="Do without DeepSpeed.")] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed passes over each test set; default: the study's.")
    ] = None,
    stand_in: Annotated[
        str | None,
        typer.Option(help="Data set whose rows stand in for training data that is not here, e.g. gsm8k_aug_first3000."),
    ] = None,
) -> None:
    """Measure what a study would cost on one device of this machine, with untrained weights, beside the paper's Train
    and Test columns."""
    loaded = load_study(study)
    from benchmarks.processes import devices
    from benchmarks.tables.measured import render_measured
    from benchmarks.timing import measuring

    devices.pin(1)
    folder = output or results / "measured" / name
    asked = {"micro_batch": micro_batch, "compile": compile, "kind": "process" if one_process else None}
    engine = {setting: value for setting, value in asked.items() if value is not None}
    engine |= {"micro_tokens": None} if micro_batch else {}  # as many rows as requested, whatever their lengths
    records = measuring.measure(
        loaded,
        results,
        folder,
        steps=steps,
        timed=timed,
        rows=row or (),
        learn=learn or (),
        engine=engine,
        repeats=repeats,
        stand_in=stand_in,
    )
    for _ in records:
        files = render_measured(loaded, folder)  # each time, so that it has all that was measured before an error
    typer.echo(files[0].read_text(encoding="utf-8"))
