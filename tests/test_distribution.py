"""The suite as it is installed from its source distribution: it works in an empty folder, outside of a checkout."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import tomllib
import venv
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.studies.study import load_study, shipped
from conftest import ROOT
from copies import copy_suite, printed

BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
OFFLINE = ("install", "--no-deps", "--no-index", "--no-build-isolation", "--no-compile")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` of a new environment: the suite is installed there, and other packages are those of this one."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("installed")
    source, made = copy_suite(folder / "source"), folder / "dist"
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    printed(source, [sys.executable, "-c", BUILD, "build_sdist", str(made)])
    (archive,) = made.iterdir()
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    printed(folder / archive.name.removesuffix(".tar.gz"), [sys.executable, "-c", BUILD, "build_wheel", str(made)])
    (wheel,) = made.glob("*.whl")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert wheel.name.split("-")[1] == project["version"]

    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv/bin/python"
    # Only paths: what files in these folders add, such as an editable installation of a checkout, is left out
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site,) = (folder / "venv/lib").glob("*/site-packages")
    (site / "others.pth").write_text("\n".join(packages), encoding="utf-8")
    printed(folder, [*PIP, "--python", str(python), *OFFLINE, str(wheel)])
    return python.parent


def test_studies_tables_and_the_workflow_are_there(commands: Path, tmp_path: Path) -> None:
    def ask(*words: str) -> str:
        return printed(tmp_path, [str(commands / "marcos-bench"), *words])

    assert {line.split()[0] for line in ask("list", "studies").splitlines()} >= {*shipped()}
    assert "| Claim " in ask("table", "smoke", "--table", "claims")

    plan = ask("run", "smoke", "--cores", "1", "--dry-run")
    rules = Counter(re.findall(r"^(?:local)?rule (\w+):$", plan, re.M))
    study = load_study("smoke")
    assert rules["train"] == len(study.runs) and rules["figure"] == len(study.figures) and rules["report"] == 1
    scripts = {*re.findall(r"(\S+train\.sh) ", plan)}
    assert len(scripts) == 1 and os.access(tmp_path / scripts.pop(), os.X_OK)


def test_a_new_method_is_found_once_it_is_installed(commands: Path, tmp_path: Path) -> None:
    """Also from the folder that its own lies in, which the tasks of a workflow import from first."""
    suite = str(commands / "marcos-bench")
    assert "pip install -e ./marcos-bench-deep_thought" in printed(tmp_path, [suite, "new-method", "deep_thought"])
    printed(tmp_path, [*PIP, "--python", str(commands / "python"), *OFFLINE, "-e", "./marcos-bench-deep_thought"])
    assert "pauses: int, default 4" in printed(tmp_path, [suite, "list", "methods", "deep_thought"])
