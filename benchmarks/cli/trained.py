"""Commands for a trained model alone: its ``model`` folder, without the study, data or results that it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
ModelFolder = Annotated[Path, typer.Argument(help="The `model` folder of a trained run, wherever it was copied to.")]


@app.command()
def ask(
    model: ModelFolder,
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    steps: Annotated[
        bool, typer.Option("--steps", help="Say the steps too, if the method can leave them out.")
    ] = False,
) -> None:
    """Print what a trained model answers, as `evaluate` would have it answer: by its run's default decoding."""
    from benchmarks import exports
    from benchmarks.processes import devices

    devices.pin(1)
    typer.echo(exports.ask(model, question, steps))


@app.command()
def export(
    model: ModelFolder,
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist, or be empty.")],
) -> None:
    """Write the language model of a trained run as a folder that transformers loads (AutoModelForCausalLM)."""
    from benchmarks import exports

    typer.echo(exports.export(model, folder), err=True)
