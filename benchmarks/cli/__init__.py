"""The command line: a thin layer over the functions of this package. Every command works without Snakemake."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from benchmarks.cli import catalogue, costs, inspection, stages, terminal, trained
from benchmarks.locks import watch_parent
from benchmarks.os_errors import in_words
from benchmarks.processes import collect_garbage_less_often
from benchmarks.processes.heartbeat import RankFailure
from methods.errors import InputError


class Commands(TyperGroup):
    """Reports bad input and files that the system refuses as one message with exit code 2, without a traceback, and
    failed ranks with the exit code of their failure. A bug keeps its traceback."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        terminal.prepare()  # before any help or usage is printed
        return super().main(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (InputError, RankFailure) as error:
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(error.code if isinstance(error, RankFailure) else 2) from error
        except OSError as error:
            if (message := in_words(error)) is None:
                raise
            typer.secho(f"error: {message}", fg="red", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    help="Reproducible benchmark of continuous (latent) reasoning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (catalogue, costs, stages, inspection, trained):
    app.add_typer(part.app)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"marcos-bench {version('marcos-bench')}")
        raise typer.Exit


@app.callback()
def _prepare(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a forked worker would warn about it
    logging.getLogger("huggingface_hub").propagate = False  # it prints its own warnings
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    watch_parent()
    collect_garbage_less_often()
