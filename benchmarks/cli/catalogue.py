"""What there is to compare, and how to add to it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.common import clear_errors
from benchmarks.study import load_study, shipped

app = typer.Typer()
METHODS = Path("methods")


@app.command()
def methods() -> None:
    """List the methods that can be compared."""
    from methods.registry import available

    for name, cls in available().items():
        about = (inspect.getdoc(cls) or "").partition("\n\n")[0]
        typer.echo(f"{name:16} {cls.title:20} {' '.join(about.split())}")


@app.command()
def studies() -> None:
    """List the studies that come with the suite."""
    for name in shipped():
        typer.echo(f"{name:16} {load_study(name).title}")


@app.command()
def new_method(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _, as in my_method.")],
    folder: Annotated[Path, typer.Option(help="Folder that the file is written to.")] = METHODS,
) -> None:
    """Write the file of a new method: it works as it is, and its comments say what to change."""
    with clear_errors():
        from benchmarks import scaffold

        path = scaffold.new_method(name, folder)
    typer.echo(f"{path} is written; test it: pytest -k {name} tests/test_conformance.py", err=True)
