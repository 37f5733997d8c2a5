"""Trainings that appear in MLflow as they run, and that MLflow can neither stop nor change."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.records import results as records
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.tracking import importer, store
from benchmarks.tracking.entries import recording_lock
from benchmarks.training.live_tracking import VARIABLE
from benchmarks.training.loop import train
from conftest import needs_linux
from inflict import FORKS, ROWS, STEPS, _train, nth_call, run_of
from small import small_study, stopped_after

STUDY = small_study(ROWS, training={"log_every": 1})
PATIENCE = 180.0  # seconds; a recorder runs when nothing else does, and the machine may be busy


@pytest.fixture(autouse=True)
def _live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")


def waiting_in_step(count: int) -> None:
    """Arm a training, in a process of its own, to wait in a step until it is killed."""
    plain(count)
    nth_call(torch.optim.AdamW, "step", count, lambda *_: time.sleep(600))


def plain(_: int) -> None:
    os.environ[VARIABLE] = "yes"


def start(fault: Callable[[int], None], count: int, spec: RunSpec, results: Path) -> Any:
    child = FORKS.Process(target=_train, args=(fault, count, spec, results))
    child.start()
    return child


def queried(results: Path, query: str, *values: str) -> list[Any]:
    """Ask the database, without creating it. It is asked again while it is being created."""
    try:
        with closing(sqlite3.connect(f"file:{results}/mlflow.db?mode=ro", uri=True)) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.OperationalError:
        return []


def statuses(results: Path) -> dict[str, str]:
    found = queried(results, "SELECT name, status FROM runs WHERE lifecycle_stage = 'active'")
    assert len(dict(found)) == len(found), "no run is there twice"
    return dict(found)


def steps_in(results: Path, run: str, metric: str = "train/loss") -> list[int]:
    query = "SELECT step FROM metrics JOIN runs USING (run_uuid) WHERE name = ? AND key = ? ORDER BY step"
    return [step for (step,) in queried(results, query, run, metric)]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "this takes too long"
        time.sleep(0.1)


def until_recorded(spec: RunSpec, results: Path, status: str) -> None:
    until(lambda: statuses(results).get(spec.id) == statuses(results).get("equation/" + spec.row) == status)


@needs_linux
def test_a_run_from_its_first_steps_to_its_import(results: Path, undisturbed: Callable[[RunSpec], str]) -> None:
    """It runs, is killed, goes on, ends, and is imported: all of that is one run with one curve."""
    spec = STUDY.runs["equation/cot_sft/s0"]
    child = start(waiting_in_step, 12, spec, results)
    until(lambda: len(steps_in(results, spec.id)) == 11)
    assert statuses(results) == {"equation/cot_sft": "RUNNING", spec.id: "RUNNING"}
    child.kill()
    until_recorded(spec, results, "KILLED")
    assert train(spec, results)["weights_sha256"] == undisturbed(spec)
    until_recorded(spec, results, "FINISHED")
    assert steps_in(results, spec.id) == list(range(1, STEPS + 1))
    before = queried(results, "SELECT run_uuid FROM runs WHERE name = ?", spec.id)
    records.collect(STUDY, results)
    state = importer.track(STUDY, results)
    assert [(state["runs"][spec.id],)] == before and state["status"] == "done"
    assert statuses(results) == dict.fromkeys(("equation/cot_sft", spec.id), "FINISHED")
    assert steps_in(results, spec.id) == list(range(1, STEPS + 1))
    assert steps_in(results, spec.id, "train_wall_seconds") == [0]
    with store.session(results) as client:
        run = client.get_run(state["runs"][spec.id])
        names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"train.json"} and run.data.params["seed"] == "0" and "record_digest" in run.data.tags
    assert run.inputs and {entry.dataset.name for entry in run.inputs.dataset_inputs} >= {"embedded/train"}
    assert run.data.tags["mlflow.source.name"] == "marcos-bench train"
    assert importer.track(STUDY, results) == state


@needs_linux
def test_what_was_killed_with_its_recorder_is_marked_and_completed_later(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a recorder, the run goes on unrecorded, and `track` adds the steps that are missing."""
    spec = STUDY.runs["equation/cot_sft/s0"]
    child = start(waiting_in_step, 12, spec, results)
    until(lambda: len(steps_in(results, spec.id)) == 11)
    recorder = json.loads(recording_lock(Paths(results, spec).run).path.read_text(encoding="utf-8"))["pid"]
    records.collect(STUDY, results)
    importer.track(STUDY, results)
    assert statuses(results)[spec.id] == "RUNNING", "so it does"
    os.kill(recorder, signal.SIGKILL)
    child.kill()
    child.join()
    importer.track(STUDY, results)
    assert statuses(results) == {"equation/cot_sft": "KILLED", spec.id: "KILLED"}
    monkeypatch.setenv(VARIABLE, "no")
    train(spec, results)
    records.collect(STUDY, results)
    importer.track(STUDY, results)
    assert statuses(results) == dict.fromkeys(("equation/cot_sft", spec.id), "FINISHED")
    assert steps_in(results, spec.id) == list(range(1, STEPS + 1))


def test_a_run_that_fails(results: Path) -> None:
    spec = STUDY.runs["equation/cot_sft/s0"]
    with stopped_after(5):
        train(spec, results)
    until_recorded(spec, results, "FAILED")
    assert steps_in(results, spec.id) == [1, 2, 3, 4, 5]


def test_two_trainings_at_once(results: Path) -> None:
    """They start with no database."""
    children = [start(plain, 0, spec, results) for spec in STUDY.runs.values()]
    for child in children:
        child.join()
    for spec in STUDY.runs.values():
        until_recorded(spec, results, "FINISHED")
        assert steps_in(results, spec.id) == list(range(1, STEPS + 1))


def test_a_locked_database_changes_nothing(results: Path, undisturbed: Callable[[RunSpec], str]) -> None:
    spec = run_of("cot_sft", log_every=1)
    with store.session(results) as client:
        store.experiment_id(client, results, "small")
    with closing(sqlite3.connect(results / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert train(spec, results)["weights_sha256"] == undisturbed(spec)
        other.execute("COMMIT")
    until_recorded(spec, results, "FINISHED")
    assert steps_in(results, spec.id) == list(range(1, STEPS + 1))


def test_a_server_that_is_not_there_changes_nothing(
    results: Path,
    undisturbed: Callable[[RunSpec], str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spec = run_of("cot_sft", log_every=1)
    undisturbed(spec)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    began = time.monotonic()
    assert train(spec, results)["weights_sha256"] == undisturbed(spec)
    assert time.monotonic() - began < 30, "it does not wait for the server"
    assert capfd.readouterr().err.count("WARNING") <= 1
    assert not (results / "mlflow.db").exists()
