"""Commands that check: what a study will cost, planned or measured, and whether recorded results are right."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cli.common import RESULTS, Results, StudyArgument, load_for_one_process, refuse_options
from benchmarks.plan.hardware import GPUS, get_gpu
from benchmarks.studies.specs import NAME
from benchmarks.studies.study import Study, load_study, study_of_folder
from benchmarks.timing import USUAL, Part
from methods.errors import InputError

app = typer.Typer()
FolderArgument = Annotated[Path, typer.Argument(help="Folder of a study's results, e.g. results/reference/stories.")]
StudyOption = Annotated[str | None, typer.Option(help="The study that made them; default: the folder's name.")]
# Options of `measure` that are about rows of the study, not about all methods
OF_ROWS = ("row", "learn", "steps", "timed", "stand_in", "set", "part")
Gpu = Annotated[str, typer.Option(callback=lambda name: name.upper(), help=f"The GPU to plan for: {', '.join(GPUS)}.")]


@app.command()
def plan(
    context: typer.Context,
    study: StudyArgument,
    results: Results = RESULTS,
    gpu: Gpu = "H200",
    utilisation: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of the GPU's peak FLOP/s.")] = 0.4,
    power: Annotated[
        bool,
        typer.Option(
            "--power",
            help="Estimate instead how many training seeds and questions it takes to separate a difference, from the "
            "study's answers in RESULTS.",
        ),
    ] = False,
) -> None:
    """Estimate FLOPs, memory, hours and disk space of a study.

    Nothing runs. Exit code 1 if a run does not fit into the GPU's memory. With `--power`, estimates from recorded
    answers how many seeds and questions a comparison takes.
    """
    loaded = load_study(study)
    if power:
        refuse_options(context, ("gpu", "utilisation"), "does not go with --power, which is about recorded answers")
        from benchmarks.plan import power as seeds_and_questions

        typer.echo(seeds_and_questions.render(loaded, results))
        return
    import torch

    from benchmarks.plan import costs, report

    torch.set_num_threads(1)  # the models that are counted are small: threads would wait for each other
    device = get_gpu(gpu)
    with _quiet_transformers():
        plans = costs.plan(loaded, results)
    typer.echo(report.render(loaded, plans, device, utilisation))
    large = [plan.run.id for plan in plans if not plan.fits(device)]
    if large:
        text = f"DOES NOT FIT into the memory of {device.name}: {', '.join(large)}; the table says what to change"
        typer.echo(text, err=True)
    raise typer.Exit(bool(large))


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


@app.command(name="try")
def try_(
    study: StudyArgument,
    results: Results = RESULTS,
    backbone: Annotated[
        str | None,
        typer.Option(help="Backbone to train every row with from scratch, e.g. qwen2-tiny; default: the study's."),
    ] = None,
    stand_in: Annotated[str, typer.Option(help="Data set to use in place of missing training data.")] = "embedded",
) -> None:
    """Rehearse a whole study in minutes: data, every row, every table.

    A run takes some twenty steps with batches of two; fifty questions are asked in all, and nothing is timed. Writes
    tables that are marked as a rehearsal to RESULTS/rehearsal, and says which rows do not fit this machine and how long
    the study takes here. Exit code 1 if a part failed.
    """
    loaded = load_for_one_process(study)
    from benchmarks import rehearsal
    from benchmarks.processes import devices, kernels

    kernels.require(loaded.kernels)
    devices.pin(1)
    with _quiet_transformers():
        found = rehearsal.rehearse(loaded, results, backbone, stand_in)
    typer.echo(found.text())
    raise typer.Exit(bool(found.failed))


@app.command()
def measure(
    context: typer.Context,
    study: StudyArgument,
    name: Annotated[
        str | None, typer.Option(help="Name of this machine, e.g. h200; required, except with `--batching`.")
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="Plot instead how the costs of every method grow with the batch, the question, the number of thoughts "
            "and the width.",
        ),
    ] = False,
    batching: Annotated[
        bool,
        typer.Option(
            "--batching",
            help="Measure instead how much faster every method is with batches and a cache, and the "
            "training loop beside the Trainer of transformers.",
        ),
    ] = False,
    results: Results = RESULTS,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for records and table; default: RESULTS/measured/NAME. With `--batching`, a JSON file; "
            "default: none."
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1, help="Timed passes over each test set; default: the study's (with `--batching` or `--sweep`, 3)."
        ),
    ] = None,
    questions: Annotated[
        int, typer.Option(min=1, help="With `--batching`: questions to answer, in batches and one by one.")
    ] = 256,
    row: Annotated[list[str] | None, typer.Option(help="Only this row; may be repeated.")] = None,
    learn: Annotated[
        list[str] | None, typer.Option(help="Measure this row too, and follow its loss; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the `--learn` rows.")] = 300,
    timed: Annotated[int, typer.Option(min=1, help="Timed optimizer steps per phase, after 10 of warm-up.")] = 50,
    stand_in: Annotated[
        str | None, typer.Option(help="Data set to use in place of missing training data, e.g. gsm8k_aug_first3000.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Change a setting of all rows, e.g. options.posterior=noisy, engine.micro_batch=8 or "
            "backbone.name=qwen2-tiny; may be repeated.",
        ),
    ] = None,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="Measure only this part; may be repeated. `profile`: what five steps spend their time on. Default: "
            "all but the profile."
        ),
    ] = None,
) -> None:
    """Measure what a study would cost on this machine.

    Times training steps and answers of untrained models on one device, and shows them beside the paper's times.
    Nothing else should run on the machine.
    """
    loaded = load_for_one_process(study)
    if batching:
        refuse_options(context, ("name", "sweep", *OF_ROWS), "does not go with --batching, which measures every method")
        _measure_batching(loaded, results, output, repeats or 3, questions)
        return
    refuse_options(context, ["questions"], "goes with --batching")
    if name is None:
        raise InputError("name this machine, as in `--name h200`, or measure `--batching`")
    if not re.fullmatch(NAME, name):
        raise InputError(f"--name {name}: it becomes a folder's name: use only letters, digits, `_`, `.` and `-`")
    folder = output or results / "measured" / name
    if sweep:
        refuse_options(context, OF_ROWS, "does not go with --sweep, which measures every method")
        _measure_growth(loaded, results, folder, repeats or 3)
        return
    from benchmarks.processes import devices
    from benchmarks.tables.measured import render_measured
    from benchmarks.timing import measuring

    devices.pin(1)
    records = measuring.measure(
        loaded,
        results,
        folder,
        steps=steps,
        timed=timed,
        rows=row or (),
        learn=learn or (),
        repeats=repeats,
        stand_in=stand_in,
        settings=dict(map(_setting, set or ())),
        parts=part or USUAL,
    )
    for _ in records:
        files = render_measured(loaded, folder)  # each time, so that it has all that was measured before an error
    typer.echo(files[0].read_text(encoding="utf-8"))


def _setting(text: str) -> tuple[str, Any]:
    """Return the dotted name and the value of a setting, which is written as in YAML."""
    from benchmarks.studies.validation_errors import parse_yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: write NAME=VALUE, as in options.posterior=noisy")
    try:
        return name, parse_yaml(value)
    except InputError as error:
        raise InputError(f"--set {text}: {error}") from error


def _measure_batching(study: Study, results: Path, output: Path | None, repeats: int, questions: int) -> None:
    from benchmarks.files import write_json
    from benchmarks.processes import devices
    from benchmarks.timing.speed import measure_speed, render_speed

    devices.pin(1)
    record = measure_speed(study, results, repeats, questions)
    if output is not None:
        write_json(output, record)
    typer.echo(render_speed(record))


def _measure_growth(study: Study, results: Path, folder: Path, repeats: int) -> None:
    from benchmarks.figures.growth import render_growth
    from benchmarks.files import write_json
    from benchmarks.processes import devices
    from benchmarks.timing.sweep import sweep

    devices.pin(1)
    record: dict[str, Any] = {}
    try:
        for record in sweep(study, results, repeats):
            write_json(folder / "growth.json", record)
    finally:  # an interrupted sweep leaves what it has measured
        files = render_growth(record, folder) if record else []
    typer.echo("\n".join(map(str, files)), err=True)


@app.command()
def verify(folder: FolderArgument, study: StudyOption = None) -> None:
    """Recompute scores and tables from the recorded answers.

    Also checks digests. Packed results are read as they are. Exit code 1 if anything differs.
    """
    from benchmarks.verification import checks

    findings = checks.verify(study_of_folder(folder, study), folder)
    typer.echo(checks.report(findings))
    raise typer.Exit(any(finding.kind == "differs" for finding in findings))


@app.command()
def rescore(folder: FolderArgument, study: StudyOption = None) -> None:
    """Score answers again that an older version of a scorer scored.

    Needs no model. Writes records and tables again.
    """
    from benchmarks.verification import rescoring

    found = 0
    for line in rescoring.rescore(study_of_folder(folder, study), folder):
        typer.echo(line)
        found += 1
    typer.echo(f"{found} changes" if found else "no score changed")
