"""What tests share: real inputs where variables name them, and a vocabulary that needs no training."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported: tests run side by side
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest

from benchmarks.data import prepare
from benchmarks.files import read_json
from benchmarks.processes import look_for_garbage_less
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training import start
from inflict import ROWS
from methods.base import Vocabulary
from small import fresh, small_study

ROOT = Path(__file__).resolve().parent.parent
# Files that take longest: they start first, so that workers end together
LONG = (
    "test_readme",
    "test_rank_faults",
    "test_ranks",
    "test_ended",
    "test_damaged",
    "test_paper_studies",
    "test_workflow",
    "test_plan_costs",
    "test_plan_counting",
    "test_training",
    "test_conformance",
    "test_tracking",
    "test_measuring",
)


def pytest_configure(config: pytest.Config) -> None:
    look_for_garbage_less()
    if config.pluginmanager.hasplugin("xdist"):  # which would start the files with the most tests first
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish() -> None:
    gc.freeze()  # what tests import stays


def _folder(variable: str, content: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} names no folder with {content}")
    return Path(value)


def bibtex_fields(citation: str) -> set[str]:
    """The names of an entry's fields; fails where the text is no entry."""
    entry = re.fullmatch(r"@\w+\{[^\s,{}]+,(.*)\}\s*", citation, re.DOTALL)
    assert entry and citation.count("{") == citation.count("}"), f"no BibTeX: {citation}"
    return set(re.findall(r"(\w+)\s*=\s*\{", entry[1]))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    return _folder("MARCOS_BENCH_DATA", "the published data sets")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return _folder("MARCOS_BENCH_GOLDEN", "golden cases")


@pytest.fixture(scope="session")
def tokenizer_dir() -> Path:
    return _folder("MARCOS_BENCH_TOKENIZER", "the tokenizer of Qwen2.5")


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """One token per ASCII character; end-of-text is 0."""
    return Vocabulary(size=128, eos=0, encode=lambda text: list(text.encode("ascii")))


# -- small runs that meet faults (tests/inflict.py)


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study, results = small_study(ROWS), tmp_path_factory.mktemp("results")
    prepare(study, study.blocks[0], results)
    return results


@pytest.fixture
def results(small_data: Path, tmp_path: Path) -> Path:
    """A results folder with data and no runs."""
    return fresh(small_data, tmp_path)


@pytest.fixture(scope="module")
def undisturbed_run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunSpec], Path]:
    """A results folder with a run that nothing disturbed."""
    known: dict[tuple[str, int], Path] = {}

    def folder(spec: RunSpec) -> Path:
        key = spec.row, spec.training.log_every
        if key not in known:
            known[key] = fresh(small_data, tmp_path_factory.mktemp("undisturbed"))
            start.train(spec, known[key])
        return known[key]

    return folder


@pytest.fixture(scope="module")
def undisturbed(undisturbed_run: Callable[[RunSpec], Path]) -> Callable[[RunSpec], str]:
    """The digest of the weights that a run has when nothing goes wrong."""
    return lambda spec: read_json(Paths(undisturbed_run(spec), spec).record("train"))["weights_sha256"]
