"""Commands that add methods and data, and list what there is."""

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
from methods.errors import InputError

app = typer.Typer()
METHODS = Path("methods")


@app.command()
def new_method(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _, as in my_method.")],
    folder: Annotated[Path | None, typer.Option(help="Folder that the file is written to; default: methods.")] = None,
) -> None:
    """Write the file of a new method, which works as it stands.

    Its comments say what to change. Outside of a checkout, where there is no folder `methods`, it is written into a
    package of its own: the suite finds the method once that is installed.
    """
    from benchmarks import scaffold

    if folder or METHODS.is_dir():
        path = scaffold.new_method(name, folder or METHODS)
        then = f"test it: pytest -k {name} tests/test_conformance.py"
        if folder and not (METHODS.is_dir() and folder.samefile(METHODS)):
            then = f"the suite finds it in {METHODS}, or in an installed package"
    else:
        path = scaffold.new_package(name)
        then = f"install it: pip install -e ./{path.parent}"
    typer.echo(f"{path} is written; {then}", err=True)


@app.command()
def fetch(
    study: StudyArgument,
    folder: Annotated[
        Path | None, typer.Option(help="Folder that the files are written to; default: $MARCOS_BENCH_DATA.")
    ] = None,
) -> None:
    """Download the published data files that a study needs.

    Data sets with a pinned copy on the Hugging Face hub are loaded from there instead, when data are prepared.
    """
    from benchmarks.data import fetching

    fetched = fetching.fetch(load_study(study), folder)
    for path in fetched:
        typer.echo(path)
    count = f"{len(fetched)} file{'s' * (len(fetched) > 1)} fetched"
    typer.echo(count if fetched else "nothing to fetch: all files are there", err=True)


@app.command(name="list")
def list_(
    kind: Annotated[
        Literal["methods", "studies", "datasets"], typer.Argument(help="What to list.", show_default=False)
    ],
    name: Annotated[str | None, typer.Argument(help="Show this one alone; default: list all.")] = None,
) -> None:
    """List methods, studies or data sets, or show one of them.

    Shows the options of a method; the blocks, rows and tests of a study; the source, licence and files of a data set.
    Exit code 2 if a shipped study cannot be used.
    """
    of_kind = {"methods": (_methods, _method), "studies": (_studies, _study), "datasets": (_datasets, _dataset)}
    every, one = of_kind[kind]
    every() if name is None else one(name)


def _methods() -> None:
    from methods.registry import available

    known = available()
    names, titles = max(map(len, known)), max(len(cls.title) for cls in known.values())
    for method, cls in known.items():
        about = (inspect.getdoc(cls) or "").partition("\n\n")[0]
        typer.echo(f"{method:{names}}  {cls.title:{titles}}  {' '.join(about.split())}")
    typer.echo("See a method's options: marcos-bench list methods NAME", err=True)


def _method(name: str) -> None:
    from methods.registry import get_method

    for option, value, about in describe_options(get_method(name).Options()):
        typer.echo(f"{option}: {value}\n    {about}")


def _studies() -> None:
    names, broken = shipped(), []
    for name in names:
        try:
            typer.echo(f"{name:{max(map(len, names))}}  {load_study(name).title}")
        except InputError as error:
            broken.append(str(error))
    if broken:
        raise StudyError("\n".join(broken))
    typer.echo("See a study's rows: marcos-bench list studies NAME", err=True)


def _study(name: str) -> None:
    study = load_study(name)
    blocks = {block.id: f"{block.title}: {block.data.train}, as {block.data.form}" for block in study.blocks}
    rows = {}
    for row in study.rows:
        about = [row.method, *(["control"] if row.control else [])]
        about += [f"only in {', '.join(row.blocks)}"] if row.blocks else []
        rows[row.id] = f"{study.row_titles[row.id]} ({', '.join(about)})"
    typer.echo(f"{study.title}\n{study.description}".rstrip())
    for heading, entries in (("blocks", blocks), ("rows", rows)):
        typer.echo(f"{heading}:")
        for id, about in entries.items():
            typer.echo(f"  {id:{max(map(len, entries))}}  {about}")
    for heading, names in (
        ("tests", study.evaluation.tests),
        ("training seeds", study.seeds),
        ("tables", study.tables),
        ("figures", study.figures),
    ):
        typer.echo(f"{heading}: {', '.join(map(str, names)) or 'none'}")
    for other, runs in study.shared.items():
        typer.echo(f"shared with {other}: {', '.join(runs)}")
    if study.shared_in_vain:
        typer.echo(study.shared_in_vain)
    typer.echo(f"{len(study.runs)} runs; what they take: marcos-bench plan {name}", err=True)


def _datasets() -> None:
    from benchmarks.data import DATASETS

    cards = [entry.card for entry in DATASETS.values()]
    names, titles = max(len(card.name) for card in cards), max(len(card.title) for card in cards)
    for card in cards:
        splits = ", ".join(f"{rows:,} {split}" for split, rows in card.counts.items())
        typer.echo(f"{card.name:{names}}  {card.title:{titles}}  {splits} ({', '.join(card.forms)})")
    typer.echo("See a data set's card: marcos-bench list datasets NAME", err=True)


def _dataset(name: str) -> None:
    from benchmarks.data import get_dataset

    card = get_dataset(name).card
    shown = card.model_dump(mode="json", exclude_defaults=True, exclude={"citation"})
    if card.hub and card.hub.revision is None:
        shown["hub"] = f"{card.hub.name} (not pinned: never loaded from there)"
    text = yaml.safe_dump(shown, sort_keys=False, default_flow_style=None, width=120)
    typer.echo(f"{text}{card.citation}".rstrip())


def describe_options(options: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, type with default, and description of every option. The options of a nested model follow it."""
    for name, value in options:
        field = type(options).model_fields[name]
        nested = isinstance(value, BaseModel)
        shown = "nested options" if nested else f"{type_name(field.annotation)}, default {yaml_value(value)}"
        yield prefix + name, shown, field.description or ""
        if nested:
            yield from describe_options(value, f"{prefix}{name}.")


def type_name(annotation: Any) -> str:
    """Return a type in short form, with ``|`` between the choices of ``Literal`` and of unions."""
    if get_origin(annotation) in (Literal, Union, UnionType):
        return " | ".join(type_name(choice) for choice in get_args(annotation))
    if annotation is NoneType:
        return "null"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def yaml_value(value: Any) -> str:
    """Return a value as it stands in a study's YAML; a float has up to six significant digits."""
    return f"{value:g}" if isinstance(value, float) else to_json(value).decode().strip('"')
