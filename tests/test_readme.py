"""What the README says holds: a killed study goes on, and all commands work as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.locks import PARENT_VARIABLE, RunLock
from benchmarks.study import load_study
from conftest import ROOT
from copies import command, copy_suite, environment, snakemake

TARGET = "results/table_main.md"
README = (ROOT / "README.md").read_text()
ADD = README.split("<!-- add -->")[1].split("<!-- end -->")[0]
COMMANDS = [
    line.split(" #")[0].strip()
    for block in re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S)
    for line in block.splitlines()
    if line.strip()
]


def harmless(command: str) -> str:
    """The same where it would install packages, run all tests or never end (what it would do is asked then), take
    minutes (a smaller study stands for it), or run what tests/test_scaffold.py runs (that is only found)."""
    if command in ("make table", "make test"):
        return command.replace("make", "make -n")
    stands_for = {
        "mlflow ui": "mlflow ui --help",
        "speed quick": "speed smoke --repeats 1 --questions 16",
        "pytest -k": "pytest --collect-only -q -k",
    }
    for words, others in stands_for.items():
        command = command.replace(words, others)
    return command


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


def _wait_for(ready: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, "the workflow ended early"
        assert time.monotonic() < deadline, "the workflow is stuck"
        time.sleep(0.05)


def finished(log: str, runs: Path) -> list[Path]:
    """The records of runs whose training a workflow noted as done: one that it was killed too early to note it starts
    again, from its last checkpoint."""
    started = dict(re.findall(r"rule train:\n.*?jobid: (\d+).*?run=(\S+)", log, re.S))
    return [runs / started[job] / "train.json" for job in re.findall(r"Finished jobid: (\d+) \(Rule: train\)", log)]


def working_for(workflow: int) -> list[int]:
    """The processes that a workflow has started, whether or not it still lives."""
    found, mark = [], f"{PARENT_VARIABLE}={workflow}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended meanwhile
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def test_killed_study_goes_on_with_the_same_command(checkout: Path) -> None:
    arguments = ("--config", "study=smoke", "--", TARGET)
    runs = checkout / "results/smoke/runs"
    with (checkout / "first.log").open("w") as log:
        first = subprocess.Popen(
            command(*arguments), cwd=checkout, env=environment(checkout), stdout=log, stderr=log, text=True
        )
        try:
            _wait_for(lambda: bool(finished((checkout / "first.log").read_text(), runs)), first)
            assert f"is being run by process {first.pid}" in snakemake(checkout, "--dry-run", *arguments)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
    done = {path: path.read_bytes() for path in finished((checkout / "first.log").read_text(), runs)}
    assert done
    deadline = time.monotonic() + 60
    while working_for(first.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not working_for(first.pid), "orphans go on"
    assert not any(RunLock(path.parent).held() for path in runs.rglob(".lock")), "orphans go on writing"

    output = snakemake(checkout, *arguments)
    assert "is being run by" not in output
    assert all(path.read_bytes() == content for path, content in done.items()), "finished runs were run again"
    assert {json.loads(path.read_text())["run"] for path in runs.rglob("train.json")} == set(load_study("smoke").runs)
    table = (checkout / TARGET).read_text()
    assert "MarCos" in table
    assert "not run" not in table
    assert "Nothing to be done" in snakemake(checkout, *arguments)


def test_commands_work_one_after_the_other(checkout: Path) -> None:
    """They find the results of the test before, or make them. Then the new method joins the study."""
    for line in COMMANDS:
        run(harmless(line), checkout)
    assert "MarCos" in (checkout / TARGET).read_text()

    study = checkout / "workflows/config/smoke.yaml"
    row = re.search(r"^rows:\n(  - .*my_method.*\n)", ADD, re.M)
    assert row, "the section has a study's rows"
    few = re.sub(r"tokens: [\d.e+]+", "tokens: 1.0e+4", row[1])  # the budget is `quick`'s
    study.write_text(study.read_text().replace("rows:\n", f"rows:\n{few}"))
    planned = run("snakemake --dry-run --config study=smoke -- results/table_main.md", checkout)
    assert set(re.findall(r"wildcards: study=smoke, run=\w+/(\w+)", planned)) == {"my_method"}
    run("marcos-bench train smoke equation/my_method/s0", checkout)


def test_adding_a_method_takes_30_lines_at_most() -> None:
    assert "new-method" in ADD and len(ADD.strip().splitlines()) <= 30


def test_files_that_are_linked_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links and all((ROOT / link).exists() for link in links)
