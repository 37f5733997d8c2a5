"""Shared fixtures of the tests: a vocabulary without training, prepared data and small runs."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, which reads it: tests run side by side
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MARCOS_BENCH_LIVE"] = "no"  # a process per training takes seconds; tests/test_live_tracking.py starts them
os.environ.pop("MLFLOW_TRACKING_URI", None)  # no test writes to a server but those that name their own

import pytest
from hypothesis import settings

from benchmarks.data import prepare
from benchmarks.files import read_json
from benchmarks.processes import collect_garbage_less_often
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.loop import train
from inflict import ROWS
from methods.base import Vocabulary
from methods.registry import left_out
from small import fresh, small_study

# DeepSpeed cannot be installed on macOS, which has no /proc either
needs_deepspeed = pytest.mark.skipif(not find_spec("deepspeed"), reason="DeepSpeed is not installed")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")
ROOT = Path(__file__).resolve().parent.parent
MEMORY = "/dev/shm"
# Files that run workflows, several processes, or trainings: `make quicktest` leaves them out. They start first, and of
# them those that take longest, so that all workers end together
SLOW = (
    "test_readme",
    "test_paper_studies",
    "test_reference_results",
    "test_rank_faults",
    "test_workflow",
    "test_ranks",
    "test_verification",
    "test_ended",
    "test_damaged",
    "test_plan_costs",
    "test_training",
    "test_plan_flops",
    "test_compiled",
    "test_conformance",
    "test_measuring",
    "test_timing",
    "test_live_tracking",
    "test_adapters",
    "test_tracking",
    "test_analysis_task",
    "test_any_input",
    "test_architectures",
    "test_archive",
    "test_claims",
    "test_comparison",
    "test_data_store",
    "test_data_synthetic",
    "test_distribution",
    "test_dropout",
    "test_evaluation",
    "test_explaining",
    "test_model_folder",
    "test_figure_sweeps",
    "test_figures",
    "test_further_tables",
    "test_heartbeat",
    "test_kernels",
    "test_launch",
    "test_models",
    "test_out_of_memory",
    "test_plan_memory",
    "test_pretrained",
    "test_recalled",
    "test_rehearsal",
    "test_scaffold",
    "test_static_cache",
    "test_steps",
    "test_sweep",
    "test_synthetic",
    "test_tables",
    "test_task_dependencies",
    "test_text_answers",
    "test_tracking_places",
    "test_validation_accuracy",
)


# The same few examples in every run: tests are quick, and one that fails does so everywhere
settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    # Temporary folders are in memory where they fit: a small training syncs hundreds of files
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**31:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    # Else each of the many processes that tests start would compile the suite again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    collect_garbage_less_often()
    if config.pluginmanager.hasplugin("xdist"):  # by default, it would start the files with the most tests first
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()  # exclude what tests import from garbage collection


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which methods there are no tests of. A header would not be shown when pytest is asked to be quiet."""
    for place, why in left_out().items():
        terminalreporter.write_line(f"{place} is left out: {why}", yellow=True)


def bibtex_fields(citation: str) -> set[str]:
    """Return the names of a BibTeX entry's fields. Fail if the text is not an entry."""
    entry = re.fullmatch(r"@\w+\{[^\s,{}]+,(.*)\}\s*", citation, re.DOTALL)
    assert entry and citation.count("{") == citation.count("}"), f"no BibTeX: {citation}"
    return set(re.findall(r"(\w+)\s*=\s*\{", entry[1]))


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """A vocabulary with one token per ASCII character. End-of-text is 0."""
    return Vocabulary(size=128, eos=0, encode=lambda text: list(text.encode("ascii")))


# -- small runs, some with injected faults (tests/inflict.py)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared data of every small study with the block that it has by default."""
    study, results = small_study(ROWS), tmp_path_factory.mktemp("results")
    prepare(study, study.blocks[0], results)
    return results


@pytest.fixture
def results(small_data: Path, tmp_path: Path) -> Path:
    """A results folder with data and no runs."""
    return fresh(small_data, tmp_path)


@pytest.fixture(scope="session")
def undisturbed_run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunSpec], Path]:
    """Return the results folder of a run that ended without faults. Each run is trained once."""
    known: dict[tuple[str, int], Path] = {}

    def folder(spec: RunSpec) -> Path:
        key = spec.row, spec.training.log_every
        if key not in known:
            known[key] = fresh(small_data, tmp_path_factory.mktemp("undisturbed"))
            train(spec, known[key])
        return known[key]

    return folder


@pytest.fixture(scope="session")
def undisturbed(undisturbed_run: Callable[[RunSpec], Path]) -> Callable[[RunSpec], str]:
    """Return the digest of a run's weights after training without faults."""
    return lambda spec: read_json(Paths(undisturbed_run(spec), spec).record("train"))["weights_sha256"]
