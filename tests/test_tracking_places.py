"""Tracked results that were copied or moved, deleted in MLflow, locked, or have odd names."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow.tracking._tracking_service import utils as tracking_service

from benchmarks import comparison
from benchmarks.comparison import Comparison
from benchmarks.files import read_json
from benchmarks.records import results
from benchmarks.studies.study import Study
from benchmarks.tracking import importer, store
from benchmarks.tracking.store import exclusive_writer, experiment_id, find_runs, session
from fabricate import collected, study, update_record
from methods.errors import InputError

RUNS = "text/cot/s0", "text/oracle/s0"


def small() -> Study:
    """Return a study of two runs, so that its import is quick."""
    rows = [{"id": "cot", "method": "cot_sft"}, {"id": "oracle", "method": "cot_sft", "title": "Gold answers"}]
    return study(blocks=[{"id": "text", "title": "Text", "data": {"train": "corpus"}}], rows=rows)


def compare(a: str, b: str, results: Path, test: str | None, decoding: str) -> Comparison:
    """Compare runs as MLflow has them: by their ids there, of which a pending import knows none."""
    ids = read_json(results / "fake/track.json").get("runs", dict.fromkeys(RUNS, "0" * 32))
    return comparison.compare(ids.get(a, a), ids.get(b, b), results, test, decoding)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "results"
    collected(small(), folder)
    importer.track(small(), folder)
    return folder


def as_another_process() -> None:
    """Make MLflow forget where the files of runs are. It remembers that per process, and runs of copies share ids."""
    tracking_service._artifact_repos_cache.clear()


@pytest.fixture(autouse=True)
def _as_another_process() -> None:
    as_another_process()


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    """Return a copy in a folder whose name has characters that mean something in URLs."""
    return Path(shutil.copytree(original, tmp_path / "a?b#c%20d é:'\"e&f" / "results"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_has_its_own_files_and_leaves_the_original_alone(
    original: Path, copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = contents(original)
    assert len(compare(*RUNS, copied, None, "default").tests)
    assert caplog.text.count("was copied or moved") == 1
    path, files = copied / "fake/runs/text/cot/s0/train.json", len(contents(copied / "mlartifacts"))
    update_record(path, wall_seconds=63.0)  # so that the run is imported anew
    results.collect(small(), copied)
    assert importer.track(small(), copied)["status"] == "done"
    assert contents(original) == before and len(contents(copied / "mlartifacts")) > files
    assert not list(copied.parent.parent.glob("a")), "the question mark belongs to the name"


def test_a_moved_folder_works_without_the_place_that_it_was_moved_from(copied: Path) -> None:
    compare(*RUNS, copied, None, "default")
    moved = copied.rename(copied.parent.parent / "moved")
    as_another_process()
    assert len(compare(*RUNS, moved, None, "default").tests)
    assert importer.track(small(), moved)["status"] == "done"


def test_results_start_in_a_folder_with_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written elsewhere: MLflow would make a folder `file:` where it runs."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "100%? #1" / "r:e's"
    collected(small(), folder)
    assert importer.track(small(), folder)["status"] == "done" and (folder / "mlflow.db").is_file()
    assert len(compare(*RUNS, folder, None, "default").tests)
    assert [path.name for path in tmp_path.iterdir()] == ["100%? #1"]


def test_a_database_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder that was killed while MLflow built its database left one that nothing could open."""
    collected(small(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("mlflow.store.db.utils._upgrade_db", Mock(side_effect=OSError("killed between two migrations")))
        assert importer.track(small(), tmp_path)["status"] == "pending"
    assert not (tmp_path / "mlflow.db").exists()
    assert importer.track(small(), tmp_path)["status"] == "done"


def test_a_copy_is_another_folder_to_a_server(original: Path, copied: Path) -> None:
    with exclusive_writer(original) as one, exclusive_writer(copied) as other:
        assert one != other
    with exclusive_writer(original) as again:
        assert again == one


def test_a_deleted_experiment_is_restored_or_removed_by_its_owner(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with session(copied) as client:
        client.delete_experiment(experiment := experiment_id(client, copied, "fake"))
    caplog.clear()
    assert importer.track(small(), copied)["status"] == "pending"
    assert "was deleted in MLflow" in caplog.text and "will catch up" not in caplog.text
    with pytest.raises(InputError, match=rf"mlflow experiments restore --experiment-id {experiment}`"):
        compare(*RUNS, copied, None, "default")
    with session(copied) as client:
        client.restore_experiment(experiment)
    assert importer.track(small(), copied)["status"] == "done"


def test_deleted_runs_are_imported_anew_and_trainings_get_the_new_row(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = importer.track(small(), copied)
    with session(copied) as client:
        row = client.get_run(state["runs"][RUNS[0]]).data.tags["mlflow.parentRunId"]
        for run in (row, state["runs"][RUNS[0]]):
            client.delete_run(run)
    with pytest.raises(InputError, match="was deleted in MLflow: bring it back with `mlflow runs restore"):
        compare(state["runs"][RUNS[0]], RUNS[1], copied, None, "default")
    assert importer.track(small(), copied)["status"] == "done"
    assert f"deleted in MLflow: text/cot, {RUNS[0]}." in caplog.text and row in caplog.text
    with session(copied) as client:
        found = find_runs(client, [experiment_id(client, copied, "fake")], "")
    runs = {str(run.info.run_name): run for run in found}
    assert runs[RUNS[0]].data.tags["mlflow.parentRunId"] == runs["text/cot"].info.run_id != row
    assert set(runs) == {*small().runs, *(name.rpartition("/")[0] for name in small().runs)}


def test_runs_that_an_import_replaced_are_not_said_to_be_deleted(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copied / "fake/runs/text/cot/s0/train.json"
    before = read_json(path)["wall_seconds"]
    for seconds in (before + 1, before):
        update_record(path, wall_seconds=seconds)
        results.collect(small(), copied)
        assert importer.track(small(), copied)["status"] == "done"
    assert "imported anew" not in caplog.text


def test_a_run_that_is_gone_for_good_is_made_anew(copied: Path) -> None:
    state = importer.track(small(), copied)
    with sqlite3.connect(copied / "mlflow.db") as database:  # as `mlflow gc` does
        for table in ("tags", "latest_metrics", "metrics", "params", "runs"):
            database.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (state["runs"][RUNS[0]],))
    again = importer.track(small(), copied)
    assert again["status"] == "done" and again["runs"].keys() == state["runs"].keys()
    assert again["runs"][RUNS[0]] != state["runs"][RUNS[0]] and again["runs"][RUNS[1]] == state["runs"][RUNS[1]]


@contextmanager
def locking(database: Path) -> Iterator[int]:
    """Lock a database from another process, and yield that process's id."""
    code = (
        "import sqlite3, sys\nheld = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "held.execute('BEGIN EXCLUSIVE')\nprint('locked', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        yield other.pid
        other.communicate()


def test_a_locked_database_is_not_called_damaged(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE", 0.2)
    with locking(copied / "mlflow.db") as pid, pytest.raises(InputError) as refused:
        compare(*RUNS, copied, None, "default")
    message = str(refused.value)
    assert f"mlflow.db is locked by process {pid} (" in message and "BEGIN EXCLUSIVE" in message
    assert "damaged" not in message and "wait for what uses it" in message
    assert len(compare(*RUNS, copied, None, "default").tests)


def test_a_copy_that_cannot_be_written_is_named(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **named: whole(path.replace("mode=rw", "mode=ro"), **named))
    with pytest.raises(
        InputError, match=r"was copied or moved here from .*, and cannot be written.*: make it writable"
    ):
        compare(*RUNS, copied, None, "default")
