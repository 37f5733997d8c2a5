"""Copies of the suite, where tests run its commands and edit its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import ROOT


def copy_suite(folder: Path) -> Path:
    """The suite's source in a folder of its own, where it may be edited and run."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("benchmarks", "methods", "profiles", "workflows"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


def stand_in(folder: Path, code: str) -> None:
    """Stages that do no more than this, and import nothing first."""
    (folder / "benchmarks/cli/__init__.py").write_text("")
    (folder / "benchmarks/cli/__main__.py").write_text(code)


def environment(folder: Path) -> dict[str, str]:
    """The copy comes before an installed suite, and nothing is imported into a database outside of it."""
    outside = ("MLFLOW_TRACKING_URI", "SNAKEMAKE_PROFILE")
    return {name: value for name, value in os.environ.items() if name not in outside} | {"PYTHONPATH": str(folder)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]


def snakemake(folder: Path, *arguments: str, fails: bool = False) -> str:
    """What Snakemake prints; it must fail, or must not."""
    return printed(folder, command(*arguments), fails)


def printed(folder: Path, command: list[str], fails: bool = False) -> str:
    done = subprocess.run(command, cwd=folder, env=environment(folder), text=True, capture_output=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr
