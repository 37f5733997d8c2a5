"""The README and the pages that it links are correct.

A killed study goes on, all commands work as written, and numbers that appear on several pages agree.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import pandas as pd
import pytest
import yaml

from benchmarks.cli import app
from benchmarks.processes.locks import PARENT_VARIABLE, RunLock
from benchmarks.studies.study import parse_study, shipped
from conftest import ROOT, needs_linux
from copies import command, copy_suite, environment, forked, snakemake
from methods.registry import available

TARGET = "results/table_main.md"
REFERENCE = ROOT / "results/reference"
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, *DOCS, ROOT / "CONTRIBUTING.md", *sorted(REFERENCE.rglob("README.md"))]


def block(page: str, name: str) -> str:
    """Return the part of a page between the comment with that name and the next ``end``."""
    return (ROOT / page).read_text(encoding="utf-8").split(f"<!-- {name} -->")[1].split("<!-- end -->")[0]


def grid(text: str) -> list[str]:
    """Return the lines of the first table in a text."""
    found = re.search(r"(?:^\|.*\n)+", text, re.M)
    assert found, "there is no table"
    return found[0].splitlines()


ADD = block("README.md", "add")
MODULES = {name: name for name in ("mlflow", "pytest", "snakemake")} | {"marcos-bench": "benchmarks.cli"}
COMMANDS = dict.fromkeys(  # each once; the README last, because docs/commands.md has the stages in order
    line.split(" #")[0].strip()
    for page in [*DOCS, README]
    for fence in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    for line in fence.splitlines()
    if line.strip()
)


def harmless(command: str) -> str:
    """Replace a command that would install packages, run all tests, never end, take minutes or be tested elsewhere.

    A dry run or the help stands for commands that install packages, run all tests or never end. A smaller study stands
    for one that takes minutes.
    """
    if command in ("make table", "make test"):
        return command.replace("make", "make -n")
    stands_for = {
        "mlflow ui": "mlflow ui --help",
        "measure quick --batching": "measure smoke --batching --repeats 1 --questions 8 --output speed.json",
    }
    for words, others in stands_for.items():
        command = command.replace(words, others)
    return command


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the repository. Its environment counts as installed and runs the commands of this one.

    Of the smoke study, the runs stay that the pages name: each run is several jobs, and each job starts a process.
    """
    folder = copy_suite(tmp_path_factory.mktemp("checkout"))
    study = folder / "workflows/config/smoke.yaml"
    text = study.read_text(encoding="utf-8")
    few = re.sub(r"^  - id: marcos_wo_deep.*?(?=^$)|^  - \{id: text,.*?\n", "", text, flags=re.M | re.S)
    study.write_text(few, encoding="utf-8")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    commands = folder / ".venv/bin"
    commands.mkdir(parents=True)
    (commands / "marcos-bench").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m benchmarks.cli "$@"\n', encoding="utf-8"
    )
    (commands / "marcos-bench").chmod(0o755)
    (commands / "snakemake").symlink_to(Path(sys.executable).parent / "snakemake")
    (folder / ".venv/.installed").write_text(f"{folder}\n", encoding="utf-8")  # where `make` expects it
    return folder


def run(command: str, folder: Path) -> str:
    before = [folder / ".venv/bin", Path(sys.executable).parent]
    variables = environment(folder) | {"PATH": os.pathsep.join([*map(str, before), os.environ["PATH"]])}
    done = subprocess.run(["bash", "-euc", command], cwd=folder, env=variables, encoding="utf-8", capture_output=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def _wait_for(ready: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, "the workflow ended early"
        assert time.monotonic() < deadline, "the workflow is stuck"
        time.sleep(0.05)


def finished(log: str, runs: Path) -> list[Path]:
    """Return the training records of the runs that a workflow logged as done.

    A run that ended just before the workflow was killed is started again, from its last checkpoint.
    """
    started = dict(re.findall(r"rule train:\n.*?jobid: (\d+).*?run=(\S+)", log, re.S))
    return [runs / started[job] / "train.json" for job in re.findall(r"Finished jobid: (\d+) \(Rule: train\)", log)]


def working_for(workflow: int) -> list[int]:
    """Return the processes that a workflow has started, whether or not it is still alive."""
    found, mark = [], f"{PARENT_VARIABLE}={workflow}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process has ended meanwhile
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


@needs_linux
def test_killed_study_goes_on_with_the_same_command(checkout: Path) -> None:
    arguments = ("--config", "study=smoke", "--", TARGET)
    runs = checkout / "results/smoke/runs"
    with (checkout / "first.log").open("w", encoding="utf-8") as log:
        first = subprocess.Popen(
            command(*arguments), cwd=checkout, env=environment(checkout), stdout=log, stderr=log, encoding="utf-8"
        )
        try:
            _wait_for(lambda: bool(finished((checkout / "first.log").read_text(encoding="utf-8"), runs)), first)
            assert f"is being run by process {first.pid}" in snakemake(checkout, "--dry-run", *arguments)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
    done = {path: path.read_bytes() for path in finished((checkout / "first.log").read_text(encoding="utf-8"), runs)}
    assert done
    deadline = time.monotonic() + 60
    while working_for(first.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not working_for(first.pid), "orphans go on"
    assert not any(RunLock(path.parent).held() for path in runs.rglob(".lock")), "orphans go on writing"

    output = snakemake(checkout, *arguments)
    assert "is being run by" not in output
    assert all(path.read_bytes() == content for path, content in done.items()), "finished runs were run again"
    assert {json.loads(path.read_text(encoding="utf-8"))["run"] for path in runs.rglob("train.json")} == set(
        parse_study(
            yaml.safe_load((checkout / "workflows/config/smoke.yaml").read_text(encoding="utf-8")), "smoke"
        ).runs
    )
    table = (checkout / TARGET).read_text(encoding="utf-8")
    assert "MarCos" in table
    assert "not run" not in table
    assert "Nothing to be done" in snakemake(checkout, *arguments)


def test_commands_work_one_after_the_other(checkout: Path) -> None:
    """The commands use the results of the previous test, or make them. Then the new method joins the study."""
    for line in COMMANDS:
        name, *words = shlex.split(harmless(line))
        if module := MODULES.get(name):
            passed = forked(checkout, module, *words)
            assert name != "pytest" or int(re.findall(r"(\d+) passed", passed)[0]) > 10
        else:
            run(harmless(line), checkout)
    assert "MarCos" in (checkout / TARGET).read_text(encoding="utf-8")
    require_speed(json.loads((checkout / "speed.json").read_text(encoding="utf-8")))

    study = checkout / "workflows/config/smoke.yaml"
    row = re.search(r"^rows:\n(  - .*my_method.*\n)", ADD, re.M)
    assert row, "the section has a study's rows"
    few = re.sub(r"tokens: [\d.e+]+", "tokens: 1.0e+4", row[1])  # the budget of `quick`
    study.write_text(study.read_text(encoding="utf-8").replace("rows:\n", f"rows:\n{few}"), encoding="utf-8")
    planned = snakemake(checkout, "--dry-run", "--config", "study=smoke", "--", "results/table_main.md")
    assert set(re.findall(r"wildcards: study=smoke, run=\w+/(\w+)", planned)) == {"my_method"}
    forked(checkout, "benchmarks.cli", "train", "smoke", "equation/my_method/s0")


def require_speed(record: dict[str, Any]) -> None:
    """Check what `measure --batching` wrote: both ways give the same answers, and the batched one is faster."""
    assert record["answers"].keys() == available().keys()
    for method in record["answers"].values():
        assert method["same"] == 1.0
        assert method["batched"] > method["single"] > 0
    assert record["training"]["coconut"]["ratio"] > 4, "about a fifth of the naive time"
    assert record["training_step"]["layers"] == 2
    assert record["loop"]["difference"] < 1e-5, "else the two loops did not make the same updates"
    assert record["loop"]["ours"] > 0 and record["loop"]["trainer"] > 0


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_linked_exists(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")) if "://" not in link]
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def linked(page: Path) -> set[Path]:
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in links}


def test_every_page_is_linked() -> None:
    """From the README, or from the page of results if it is that of one study."""
    assert {page.resolve() for page in PAGES[1:]} <= linked(README) | linked(REFERENCE / "README.md")


def test_table_is_computed_from_the_committed_results() -> None:
    frame = pd.read_csv(REFERENCE / "quick_seeds/table_main.csv").query("decoding == 'default'")
    with tarfile.open(REFERENCE / "quick_seeds/records.tar.xz") as archive:
        runs = pd.read_csv(cast("IO[bytes]", archive.extractfile("frame.csv"))).query("decoding == 'default' and shown")
    tests = ("ring_in_domain", "ring_reworded", "ring_unseen")
    expected = {}
    for row, of_row in frame.groupby("row"):
        lines = of_row.set_index("test")
        accuracies = [f"{100 * lines.accuracy[test]:.1f} ± {100 * lines.spread[test]:.1f}" for test in tests]
        trainings = runs.loc[(runs["row"] == row) & (runs["test"] == tests[0]), "accuracy_mean"]
        times = f"{lines.train_epoch_seconds[tests[0]]:.0f}", f"{lines.test_seconds_median[tests[0]]:.2f}"
        each = ", ".join(f"{100 * accuracy:.0f}" for accuracy in trainings)
        expected[lines.title[tests[0]]] = [accuracies[0], each, *accuracies[1:], *times]
    printed = [line.strip("| ").split("|") for line in grid(block("README.md", "table: quick_seeds"))[2:]]
    assert {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in printed} == expected


def test_speed_table_names_methods() -> None:
    rows = [line.split("|")[1].strip() for line in grid(block("docs/performance.md", "speed"))[2:]]
    assert rows and set(rows) <= {method.title for method in available().values()}


def test_pages_name_every_study_and_command() -> None:
    studies, commands = ((ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("studies", "commands"))
    assert not [name for name in shipped() if f"`{name}`" not in studies]
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert not [name for name in known if f"marcos-bench {name.replace('_', '-')}" not in commands]
