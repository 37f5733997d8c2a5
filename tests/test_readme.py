"""The README's commands work as they are written: all of them are run, in their order, on one small study."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from copies import copy_suite, environment

README = (ROOT / "README.md").read_text()
ADD = README.split("<!-- add -->")[1].split("<!-- end -->")[0]
COMMANDS = [
    line.split(" #")[0].strip()
    for block in re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S)
    for line in block.splitlines()
    if line.strip()
]


def harmless(command: str) -> str:
    """The same where it would install packages, run all tests or never end: what it would do is asked then."""
    if command in ("make table", "make test"):
        return command.replace("make", "make -n")
    return command.replace("mlflow ui", "mlflow ui --help")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository whose environment counts as installed: it has the commands of this one."""
    folder = copy_suite(tmp_path_factory.mktemp("checkout"))
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    commands = folder / ".venv/bin"
    commands.mkdir(parents=True)
    (commands / "marcos-bench").write_text(f'#!/bin/sh\nexec {sys.executable} -m benchmarks.cli "$@"\n')
    (commands / "marcos-bench").chmod(0o755)
    (folder / ".venv/.installed").touch()
    return folder


def run(command: str, folder: Path) -> str:
    before = [folder / ".venv/bin", Path(sys.executable).parent]
    variables = environment(folder) | {"PATH": os.pathsep.join([*map(str, before), os.environ["PATH"]])}
    done = subprocess.run(["bash", "-euc", command], cwd=folder, env=variables, text=True, capture_output=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_commands_work_one_after_the_other(checkout: Path) -> None:
    """The first that asks for the small study runs it; the others find its results. Then the new method joins it."""
    for command in COMMANDS:
        run(harmless(command), checkout)
    assert "MarCos" in (checkout / "results/table_main.md").read_text()

    study = checkout / "workflows/config/smoke.yaml"
    row = re.search(r"^rows:\n(  - .*my_method.*\n)", ADD, re.M)
    assert row, "the section has a study's rows"
    study.write_text(study.read_text().replace("rows:\n", f"rows:\n{row[1]}"))
    planned = run("snakemake --dry-run --config study=smoke -- results/table_main.md", checkout)
    assert set(re.findall(r"wildcards: run=\w+/(\w+)", planned)) == {"my_method"}
    run("marcos-bench train smoke equation/my_method/s0", checkout)


def test_adding_a_method_takes_30_lines_at_most() -> None:
    assert "new-method" in ADD and len(ADD.strip().splitlines()) <= 30


def test_files_that_are_linked_exist() -> None:
    """But for reference results, which are made by the studies themselves."""
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link and "reference" not in link]
    assert links and all((ROOT / link).exists() for link in links)
