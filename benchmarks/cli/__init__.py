"""The command line: a thin layer over the functions of this package. Every command works without Snakemake."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from benchmarks.cli import catalogue, checks, inspection, sharing, tasks
from benchmarks.files import describe_os_error, printable
from benchmarks.processes import collect_garbage_less_often, kernels
from benchmarks.processes.heartbeat import RankFailure
from benchmarks.processes.locks import watch_parent
from methods.errors import InputError

VARIABLES = ("MARCOS_BENCH_", "MLFLOW_", "HF_")
PANELS = {  # of the help, by what one wants to do
    "Run: the tasks of a study, which the workflow runs in order": tasks.app,
    "Look: results, and how models answer": inspection.app,
    "Share": sharing.app,
    "Check": checks.app,
    "Add": catalogue.app,
}


class Commands(TyperGroup):
    """Reports bad input and files that the system refuses as one message with exit code 2, without a traceback, and
    failed ranks with the exit code of their failure. A bug keeps its traceback."""

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> Any:
        prepare_terminal()  # before any help or usage is printed
        self._own_process = args is None  # not called by another program
        return super().main(args, *arguments, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            require_text(args, os.environ)
        except InputError as error:
            raise _failure(error) from error
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except kernels.OtherKernels as error:
            if not self._own_process or kernels.PORTABLE.items() <= os.environ.items():
                raise _failure(error) from error
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | kernels.PORTABLE)
        except (InputError, RankFailure) as error:
            raise _failure(error) from error
        except OSError as error:
            if (message := describe_os_error(error)) is None:
                raise
            raise _failure(InputError(message)) from error


def prepare_terminal() -> None:
    """Make printed text independent of the locale, and ignore a width that is none. A file or pipe gets UTF-8, like
    every other file that the suite writes. A terminal keeps its encoding, and shows a question mark for what that
    lacks. Rich would print nothing on a terminal of width 0, which some programs set."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # replaced by another program
            continue
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # lone surrogates are no UTF-8
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "1")
        if not (size.isascii() and size.isdigit() and int(size)):
            del os.environ[name]


def _failure(error: InputError | RankFailure) -> typer.Exit:
    """Print an error, and return what ends the command."""
    typer.secho(f"error: {printable(str(error))}", fg="red", err=True)
    return typer.Exit(error.code if isinstance(error, RankFailure) else 2)


def require_text(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise InputError if an argument of the command line, or a variable of the environment that is read here, has
    bytes that are no UTF-8."""
    named = {f"argument {number}": text for number, text in enumerate(arguments, start=1)}
    named |= {name: text for name, text in environment.items() if name.startswith(VARIABLES)}
    for name, text in named.items():
        if (shown := printable(text)) != text:
            raise InputError(f"{name}, {shown!r}, has bytes that are not UTF-8: write it in UTF-8")


app = typer.Typer(
    cls=Commands,
    help="Reproducible benchmark of continuous (latent) reasoning.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # otherwise help keeps the line breaks of docstrings
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, part in PANELS.items():
    for command in part.registered_commands:
        command.rich_help_panel = panel
    app.registered_commands += part.registered_commands


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
