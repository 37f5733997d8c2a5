"""The command line: a thin layer over the functions of this package. Every command works without Snakemake."""

from __future__ import annotations

import logging
import os
import sys

import typer

from benchmarks.cli import catalogue, costs, inspection, stages
from benchmarks.locks import watch_parent
from benchmarks.processes import collect_garbage_less_often

app = typer.Typer(
    help="Reproducible benchmark of continuous (latent) reasoning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (catalogue, costs, stages, inspection):
    app.add_typer(part.app)


@app.callback()
def _prepare() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a forked worker would warn about it
    logging.getLogger("huggingface_hub").propagate = False  # it prints its own warnings
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    watch_parent()
    collect_garbage_less_often()
