"""Commands of the suite, run in the process of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.studies.study import Study


def invoke(*words: object, code: int = 0) -> Any:
    """Run a command that has to end with this exit code. Return what ended it, and what it printed."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, f"{done.output}{done.exception!r}"
    return done


def output(*words: object, code: int = 0) -> str:
    """Return all that a command prints, which has to end with this exit code."""
    return invoke(*words, code=code).output


def study_file(study: Study, folder: Path) -> Path:
    """Write a study to a file in this folder, named after it."""
    path = folder / f"{study.name}.yaml"
    path.write_text(study.model_dump_json(exclude_unset=True), encoding="utf-8")  # JSON is YAML
    return path
