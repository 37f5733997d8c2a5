"""What commands share: arguments, and the run that a command is about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study, StudyError, load_study

StudyArgument = Annotated[
    str, typer.Argument(help="A shipped study's name (see `studies`), or the path of a YAML file.")
]
RunArgument = Annotated[str, typer.Argument(help="A run's id: BLOCK/ROW/sSEED, e.g. equation/marcos/s0.")]
Results = Annotated[Path, typer.Option(help="Folder of results.")]
RESULTS = Path("results")


def ready_run(study: str, run: str, results: Path) -> RunSpec:
    """Return a run of a study whose data are prepared. Raise an error that lists the study's runs if there is no such
    run, names the study that it is shared with, or says that the prepared data are not those that the study asks
    for."""
    loaded = load_study(study)
    require_run(loaded, study, run)
    spec = loaded.sources[run]
    if spec.study != loaded.name:
        raise StudyError(
            f"{run} of study {study} is a run of study {spec.study}, whose results it shares: ask for "
            f"`{loaded.home(spec).called} {spec.id}`"
        )
    from benchmarks.data.store import require_prepared

    require_prepared(loaded, loaded.block(spec.block), results)
    return spec


def require_run(loaded: Study, study: str, run: str) -> None:
    """Raise an error that lists the study's runs if there is no such run. ``study`` is named as in the command."""
    if run not in loaded.runs:
        raise StudyError(f"study {study} has no run {run!r}; its runs are: {', '.join(loaded.runs)}")
