"""Commands that list what can be compared, and add to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import yaml
from pydantic import BaseModel
from pydantic_core import to_json

from benchmarks.cli.common import StudyArgument
from benchmarks.studies.study import StudyError, load_study, shipped

app = typer.Typer()
METHODS = Path("methods")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's options; default: list all methods.")] = None,
) -> None:
    """List the methods that can be compared, or the options of one."""
    from methods.registry import available, get_method

    known = available()
    options = None if name is None else get_method(name).Options()
    if options is not None:
        for option, value, about in described(options):
            typer.echo(f"{option}: {value}\n    {about}")
        return
    names, titles = max(map(len, known)), max(len(cls.title) for cls in known.values())
    for method, cls in known.items():
        about = (inspect.getdoc(cls) or "").partition("\n\n")[0]
        typer.echo(f"{method:{names}}  {cls.title:{titles}}  {' '.join(about.split())}")
    typer.echo("See a method's options: marcos-bench methods NAME", err=True)


@app.command()
def studies() -> None:
    """List the studies that come with the suite; exit code 2 if one of them cannot be used."""
    names, broken = shipped(), []
    for name in names:
        try:
            typer.echo(f"{name:{max(map(len, names))}}  {load_study(name).title}")
        except StudyError as error:
            broken.append(str(error))
    if broken:
        raise StudyError("\n".join(broken))


@app.command()
def datasets(
    name: Annotated[str | None, typer.Argument(help="Show this data set's card; default: list all data sets.")] = None,
) -> None:
    """List the data sets that studies can name, or show where one comes from, its licence and its files."""
    from benchmarks.data import DATASETS, get_dataset

    card = None if name is None else get_dataset(name).card
    if card is not None:
        shown = card.model_dump(mode="json", exclude_defaults=True, exclude={"citation"})
        if card.hub and card.hub.revision is None:
            shown["hub"] = f"{card.hub.name} (not pinned: never loaded from there)"
        text = yaml.safe_dump(shown, sort_keys=False, default_flow_style=None, width=120)
        typer.echo(f"{text}{card.citation}".rstrip())
        return
    cards = [entry.card for entry in DATASETS.values()]
    names, titles = max(len(card.name) for card in cards), max(len(card.title) for card in cards)
    for card in cards:
        splits = ", ".join(f"{rows:,} {split}" for split, rows in card.counts.items())
        typer.echo(f"{card.name:{names}}  {card.title:{titles}}  {splits} ({', '.join(card.forms)})")
    typer.echo("See a data set's card: marcos-bench datasets NAME", err=True)


@app.command()
def fetch(
    study: StudyArgument,
    folder: Annotated[
        Path | None, typer.Option(help="Folder that the files are written to; default: $MARCOS_BENCH_DATA.")
    ] = None,
) -> None:
    """Download the published files that a study needs and that are not pinned on the hub."""
    from benchmarks.data import fetching

    fetched = fetching.fetch(load_study(study), folder)
    for path in fetched:
        typer.echo(path)
    count = f"{len(fetched)} file{'s' * (len(fetched) > 1)} fetched"
    typer.echo(count if fetched else "all that it needs is there", err=True)


@app.command()
def cite(study: StudyArgument) -> None:
    """Print BibTeX of what a study compares: its methods, its training data and its test sets."""
    from benchmarks.report import citations

    entries = citations(load_study(study))
    typer.echo("\n\n".join(entries))


@app.command()
def new_method(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _, as in my_method.")],
    folder: Annotated[Path, typer.Option(help="Folder that the file is written to.")] = METHODS,
) -> None:
    """Write the file of a new method: it works as it is, and its comments say what to change."""
    from benchmarks import scaffold

    path = scaffold.new_method(name, folder)
    typer.echo(f"{path} is written; test it: pytest -k {name} tests/test_conformance.py", err=True)


def described(options: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, type with default, and description of every option. The options of a nested model follow it."""
    for name, value in options:
        field = type(options).model_fields[name]
        nested = isinstance(value, BaseModel)
        shown = "nested options" if nested else f"{spelled(field.annotation)}, default {written(value)}"
        yield prefix + name, shown, field.description or ""
        if nested:
            yield from described(value, f"{prefix}{name}.")


def spelled(annotation: Any) -> str:
    """Return a type in short form, with ``|`` between the choices of ``Literal`` and of unions."""
    if get_origin(annotation) in (Literal, Union, UnionType):
        return " | ".join(spelled(choice) for choice in get_args(annotation))
    if annotation is NoneType:
        return "null"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def written(value: Any) -> str:
    """Return a value as it stands in a study's YAML; a float has up to six significant digits."""
    return f"{value:g}" if isinstance(value, float) else to_json(value).decode().strip('"')
