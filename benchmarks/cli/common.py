"""What commands share: arguments, and the run that a command is about."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.processes import kernels
from benchmarks.studies.micro_batches import GPUS_VARIABLE
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study, StudyError, load_study, require_run
from methods.errors import InputError

StudyArgument = Annotated[
    str, typer.Argument(help="A shipped study's name (see `list studies`), or the path of a YAML file.")
]
RunArgument = Annotated[str, typer.Argument(help="A run's id: BLOCK/ROW/sSEED, e.g. equation/marcos/s0.")]
Results = Annotated[Path, typer.Option(help="Folder of results.")]
RESULTS = Path("results")


def load_for_one_process(study: str) -> Study:
    """Load a study for a command that takes one GPU at most, however many :data:`GPUS_VARIABLE` gives to trainings."""
    os.environ.pop(GPUS_VARIABLE, None)
    return load_study(study)


def prepared_run(study: str, run: str, results: Path) -> RunSpec:
    """Return a run of a study whose data are prepared. Raise an error that lists the study's runs if there is none of
    this name, names the study that it belongs to, or says that the prepared data are not those of the study."""
    loaded = load_study(study)
    require_run(loaded, study, run)
    spec = loaded.sources[run]
    if spec.study != loaded.name:
        raise StudyError(
            f"{run} of study {study} is a run of study {spec.study}, whose results it shares: ask for "
            f"`{loaded.home(spec).cli_name} {spec.id}`"
        )
    kernels.require(spec.kernels)  # before anything slow is imported: the command may have to start anew
    from benchmarks.data.store import require_prepared

    require_prepared(loaded, loaded.block(spec.block), results)
    return spec


def refuse_options(context: typer.Context, options: Iterable[str], why: str) -> None:
    """Raise :class:`InputError` if one of these options is on the command line: it belongs to another use."""
    for option in options:
        source = context.get_parameter_source(option)
        if source and source.name == "COMMANDLINE":
            raise InputError(f"--{option.replace('_', '-')} {why}")
