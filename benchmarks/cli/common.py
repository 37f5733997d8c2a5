"""What all commands share: arguments, and how errors are reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.processes.heartbeat import RankFailure
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import StudyError, load_study
from methods.errors import InputError

StudyArgument = Annotated[
    str, typer.Argument(help="A shipped study's name (see `studies`), or the path of a YAML file.")
]
RunArgument = Annotated[str, typer.Argument(help="A run's id: BLOCK/ROW/sSEED, e.g. equation/marcos/s0.")]
Results = Annotated[Path, typer.Option(help="Folder of results.")]
RESULTS = Path("results")


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Report bad input as one message with exit code 2, without a traceback, and failed ranks with the exit code of
    their failure. A bug keeps its traceback."""
    try:
        yield
    except (InputError, RankFailure) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(error.code if isinstance(error, RankFailure) else 2) from error


def ready_run(study: str, run: str, results: Path) -> RunSpec:
    """Return a run of a study whose data are prepared. Raise an error that lists the study's runs if there is no such
    run, names the study that it is shared with, or says that the prepared data are not those that the study asks
    for."""
    loaded = load_study(study)
    if run not in loaded.runs:
        raise StudyError(f"study {study} has no run {run!r}; its runs are: {', '.join(loaded.runs)}")
    spec = loaded.sources[run]
    if spec.study != loaded.name:
        raise StudyError(
            f"{run} of study {study} is a run of study {spec.study}, whose results it shares: ask for "
            f"`{spec.study} {spec.id}`"
        )
    from benchmarks.data.store import require_prepared

    require_prepared(loaded, loaded.block(spec.block), results, study)
    return spec
