"""Copies of the suite in which tests run its commands and edit its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import ROOT


def copy_suite(folder: Path) -> Path:
    """Copy the suite's source to a folder where it may be edited and run."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("benchmarks", "methods", "profiles", "workflows"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


def stand_in(folder: Path, code: str) -> None:
    """Replace the command line by ``code``, so that stages do nothing else and import nothing first."""
    (folder / "benchmarks/cli/__init__.py").write_text("", encoding="utf-8")
    (folder / "benchmarks/cli/__main__.py").write_text(code, encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which the copy precedes an installed suite and no outside database is written."""
    outside = ("MLFLOW_TRACKING_URI", "SNAKEMAKE_PROFILE")
    return {name: value for name, value in os.environ.items() if name not in outside} | {"PYTHONPATH": str(folder)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]


def snakemake(folder: Path, *arguments: str, fails: bool = False) -> str:
    """Run Snakemake and return its output. It must fail if ``fails``, else succeed."""
    return printed(folder, command(*arguments), fails)


def printed(folder: Path, command: list[str], fails: bool = False) -> str:
    done = subprocess.run(command, cwd=folder, env=environment(folder), encoding="utf-8", capture_output=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr
