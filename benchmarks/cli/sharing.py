"""Commands that share results, and cite what was compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.common import StudyArgument
from benchmarks.studies.study import load_study

app = typer.Typer()


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="Folder of a study's results, e.g. results/quick.")],
    target: Annotated[Path, typer.Argument(help="Folder to write, e.g. results/reference/quick.")],
) -> None:
    """Pack a study's results, to share or commit them.

    Writes the tables, the figures, and one archive of all records and predictions.
    """
    from benchmarks.archive import pack

    path = pack(folder, target)
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB", err=True)


@app.command()
def unpack(
    folder: Annotated[Path, typer.Argument(help="Folder of packed results, e.g. results/reference/quick.")],
    target: Annotated[Path, typer.Argument(help="Folder to write, e.g. results/quick; it must not exist.")],
) -> None:
    """Unpack packed results, to render tables and figures again."""
    from benchmarks.archive import studies_of, unpack

    unpack(folder, target)
    for study in sorted(studies_of(target) - {target.name}):  # an archive has a study's own runs alone
        if not (target.parent / study).is_dir():
            text = f"{target.name} has runs of {study}, too: unpack its results as {target.parent / study}"
            typer.echo(text, err=True)


@app.command()
def cite(study: StudyArgument) -> None:
    """Print BibTeX of a study's methods, training data and test sets."""
    from benchmarks.report.report import citations

    entries = citations(load_study(study))
    typer.echo("\n\n".join(entries))
