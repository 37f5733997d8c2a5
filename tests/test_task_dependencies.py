"""A result is made again after an edit of the code that it depends on, and only then."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

from benchmarks.task_dependencies import CODE
from conftest import ROOT
from copies import copy_suite, environment, snakemake, stand_in
from methods.code_digest import source_files
from test_workflow import STAND_IN, planned

# Modules that read, write, wait, log or name things, or hold settings and data with digests of their own
NEUTRAL = {
    f"benchmarks.{name}"
    for name in (
        *("checkpoints", "task_dependencies", "data", "environment", "files", "processes"),
        *("console", "records.schema", "training.live_tracking", "training.records"),
        *(f"studies.{name}" for name in ("paths", "runs", "specs", "study", "validation_errors")),
    )
}


def imported(module: str) -> set[str]:
    """Return the modules below ``benchmarks`` that a module or package imports from.

    A package is returned if the name is imported from the package itself.
    """
    found: set[str] = set()
    for path in source_files(module):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.suffix == ".py" else ():
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "benchmarks":
                modules = {path.stem for path in ROOT.joinpath(*node.module.split(".")).glob("*")}
                inside = {alias.name for alias in node.names} & modules
                found |= {f"{node.module}.{name}" for name in inside} or {node.module}
    return found


def test_packages_depend_on_each_other_in_one_direction() -> None:
    tops = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*")}
    needs = {top: {name.split(".")[1] for name in imported(f"benchmarks.{top}") if "." in name} - {top} for top in tops}
    order = [*TopologicalSorter(needs).static_order()]  # raises an error that names the cycle, if there is one
    assert order.index("studies") < order.index("training") < order.index("cli")


def unlisted(modules: Iterable[str], listed: Iterable[str]) -> set[str]:
    """Return the imports that ``listed`` does not cover. It may list modules, packages or parts of packages."""
    names = {f"{name}." for module in modules for name in imported(module)}
    known = [f"{module}." for module in listed]
    return {name for name in names if not any(name.startswith(one) or one.startswith(name) for one in known)}


@pytest.mark.parametrize("task", ["train", "answer", "evaluate", "analyse", "time"])
def test_the_code_of_a_task_is_all_that_decides_its_numbers(task: str) -> None:
    # What training asks held-out questions by, and the scorers, count only if accuracy selects weights
    apart = {"benchmarks.training.validation_accuracy", "benchmarks.scoring"} if task in ("train", "time") else set()
    assert not unlisted(CODE[task], {*CODE[task], *NEUTRAL, *apart})


def test_what_selects_by_accuracy_is_listed() -> None:
    assert not unlisted(CODE["select"], {*CODE["select"], *CODE["train"], *NEUTRAL})


def test_an_edit_of_what_tables_import_renders_them_anew() -> None:
    assert not unlisted(["benchmarks.tables"], CODE["table"])


@pytest.mark.parametrize("task", ["train", "answer", "evaluate", "analyse", "time"])
def test_settings_count_by_their_digest_and_not_by_the_code_that_reads_them(task: str) -> None:
    readers = [f"benchmarks.studies.{name}" for name in ("study", "specs", "runs", "validation_errors")]
    assert not [reader for reader in readers if reader.startswith(CODE[task])]


@pytest.mark.parametrize("task", CODE)
def test_what_is_listed_is_there(task: str) -> None:
    assert all(source_files(module) for module in CODE[task])


def test_one_test_set_more_prepares_the_data_of_its_own_blocks_anew(tmp_path: Path) -> None:
    folder = copy_suite(tmp_path)
    stand_in(folder, STAND_IN)
    study = yaml.safe_load((folder / "workflows/config/smoke.yaml").read_text(encoding="utf-8")) | {"name": "own"}
    study["blocks"][0]["tests"] = ["embedded_in_domain"]
    targets = [f"results/own/data/{block['id']}/done.json" for block in study["blocks"]]
    words = ("--configfile", "own.yaml", "--", *targets)
    (folder / "own.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    assert planned(snakemake(folder, *words)) == {"data": 2}
    study["evaluation"]["tests"].append("multiarith")
    (folder / "own.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    output = snakemake(folder, "--dry-run", *words)
    assert planned(output) == {"data": 1} and "block=equation" in output


def printed(folder: Path, code: str) -> str:
    """Return what code prints in a copy of the suite."""
    call = [sys.executable, "-c", code]
    return subprocess.run(call, cwd=folder, env=environment(folder), capture_output=True, encoding="utf-8").stdout


def edit(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\nEDITED = True\n")


def test_another_data_set_prepares_nothing_anew_and_an_edited_one_does(tmp_path: Path) -> None:
    """The other one is the example for contributors."""
    folder = copy_suite(tmp_path)
    stand_in(folder, STAND_IN)
    words = "--config", "study=smoke", "--", "results/smoke/data/equation/done.json"
    snakemake(folder, *words)
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M | re.S
    )
    (folder / "benchmarks/data/sets/mine.py").write_text(example, encoding="utf-8")
    assert "Nothing to be done" in snakemake(folder, "--dry-run", *words)
    assert printed(folder, "from benchmarks.data import DATASETS; print(DATASETS['mine'].card.title)") == "Mine\n"
    edit(folder / "benchmarks/data/sets/embedded.py")
    assert planned(snakemake(folder, "--dry-run", *words)) == {"data": 1}


def test_another_scorer_scores_nothing_anew_and_an_edited_one_what_names_it(tmp_path: Path) -> None:
    folder = copy_suite(tmp_path)
    stand_in(folder, STAND_IN)
    words = "--config", "study=smoke", "--", "results/smoke/runs/equation/cot_sft/s0/evaluate.json"
    snakemake(folder, *words)
    scorers = folder / "benchmarks/scoring"
    text = (scorers / "text.py").read_text(encoding="utf-8")
    (scorers / "mine.py").write_text(text.replace('name = "text"', 'name = "mine"'), encoding="utf-8")
    edit(scorers / "synthetic.py")  # of synthetic tasks, which are not among the tests
    assert "Nothing to be done" in snakemake(folder, "--dry-run", *words)
    assert printed(folder, "from benchmarks.scoring import SCORERS; print(SCORERS['mine'].name)") == "mine\n"
    edit(scorers / "numeric.py")
    assert planned(snakemake(folder, "--dry-run", *words)) == {"evaluate equation/cot_sft/s0": 1}
