"""Import into MLflow: complete, idempotent, and robust to a server that is down."""

from __future__ import annotations

import itertools
import re
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from requests import RequestException

import fabricate
from benchmarks.files import BrokenRecord, read_json, write_json
from benchmarks.records import results
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study
from benchmarks.tables.render import render
from benchmarks.tracking import importer as tracking
from benchmarks.tracking.store import connect, experiment_id, find_runs
from fabricate import ENVIRONMENT, collected, update_record

ROWS = [{"id": "cot", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}]
ONE_BLOCK = [{"id": "text", "title": "Text", "data": {"train": "corpus"}}]  # so that its import is quick
UNREACHABLE = "http://127.0.0.1:9"  # the discard port, which refuses connections at once


def study(**changes: Any) -> Study:
    return fabricate.study(**{"rows": ROWS} | changes)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a results folder with everything imported, and the state. Creating the database takes seconds."""
    folder = tmp_path_factory.mktemp("tracked")
    collected(study(), folder)
    return folder, tracking.track(study(), folder)


def all_runs(folder: Path, name: str = "fake") -> dict[str, Any]:
    client = connect(folder)
    found = find_runs(client, [experiment_id(client, folder, name)], "")
    assert len({run.info.run_name for run in found}) == len(found)
    return {str(run.info.run_name): run for run in found}


def test_an_experiment_per_study_a_run_per_row_and_its_trainings_below(tracked: tuple[Path, dict[str, Any]]) -> None:
    folder, state = tracked
    runs = all_runs(folder)
    rows = {name.rpartition("/")[0] for name in study().runs}
    assert set(runs) == {*rows, *study().runs}
    for name in study().runs:
        assert runs[name].data.tags["mlflow.parentRunId"] == runs[name.rpartition("/")[0]].info.run_id
    assert state["status"] == "done" and state["runs"] == {name: runs[name].info.run_id for name in study().runs}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert read_json(folder / "fake" / "track.json") == state
    experiment = connect(folder).get_experiment_by_name("fake")
    assert experiment and experiment.tags["mlflow.note.content"].startswith("A fabricated study. Nothing was trained.")


def test_what_a_row_holds(tracked: tuple[Path, dict[str, Any]]) -> None:
    """Its results are means over trainings, and its time is theirs."""
    folder, _ = tracked
    made = study(name="seeds", blocks=ONE_BLOCK, rows=[{"id": "cot", "method": "cot_sft"}], seeds=[0, 1])
    collected(made, folder)
    tracking.track(made, folder)
    runs = all_runs(folder, "seeds")
    row, *trainings = (runs[name] for name in ("text/cot", "text/cot/s0", "text/cot/s1"))
    accuracies = [run.data.metrics["accuracy/alpha"] for run in trainings]
    assert row.data.metrics["accuracy/alpha"] == pytest.approx(sum(accuracies) / 2)
    assert row.data.metrics["parameters"] == 240_000 and row.data.metrics["train_wall_seconds"] == 60.0
    assert row.data.metrics["trainings"] == 2 and row.data.params["method"] == "cot_sft"
    assert "seed" not in row.data.params and not any(name.startswith("train/") for name in row.data.metrics)
    for run in (row, *trainings):
        assert run.info.end_time - run.info.start_time == 300_000, "the five minutes of the record"
        assert run.data.tags["mlflow.source.name"] == "marcos-bench train"
        assert run.data.tags["mlflow.source.git.commit"] == ENVIRONMENT["commit"]
        assert {entry.dataset.name for entry in run.inputs.dataset_inputs} >= {"corpus/train", "alpha/test"}


def test_what_a_run_holds(tracked: tuple[Path, dict[str, Any]]) -> None:
    folder, state = tracked
    client = connect(folder)
    run = client.get_run(state["runs"]["equation/marcos/s0"])
    params, metrics, tags = run.data.params, run.data.metrics, run.data.tags
    assert (params["method"], params["training.batch_size"], params["options.tau"]) == ("marcos", "256", "16")
    assert metrics["accuracy/alpha"] == pytest.approx(0.8, abs=0.1) and "accuracy_mean_r/beta" in metrics
    assert metrics["test_seconds/alpha"] == 2.0 and metrics["all_steps_seconds/beta"] == 4.0
    assert metrics["train_epoch_seconds"] == 12.5 and metrics["parameters"] == 240_000
    assert tags["mlflow.source.git.commit"] == ENVIRONMENT["commit"] and "Example CPU" in tags["hardware"]
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in losses] == [(i, pytest.approx(2 / i)) for i in range(1, 21)]
    assert metrics["validation/answer"] == 0.5 and "train/step" not in metrics
    inputs = {entry.dataset.name: entry for entry in run.inputs.dataset_inputs} if run.inputs else {}
    assert set(inputs) == {"corpus/train", "alpha/test", "beta/test"}
    assert inputs["corpus/train"].dataset.digest == "a" * 36 and inputs["corpus/train"].tags[0].value == "train"
    names = {file.path for path in (None, "predictions") for file in client.list_artifacts(run.info.run_id, path)}
    assert names >= {"train.json", "evaluate.json", "time.json", "predictions/default.parquet"}
    assert (folder / "mlartifacts").is_dir()


def test_importing_again_does_nothing(tracked: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, state = tracked
    for call in ("create_run", "log_batch", "log_inputs", "log_artifact", "set_terminated", "set_tag", "delete_run"):
        monkeypatch.setattr(MlflowClient, call, Mock(side_effect=AssertionError(f"{call} is called")))
    assert tracking.track(study(), folder) == state
    assert len(all_runs(folder)) == 4 + 4


def test_a_lost_state_file_duplicates_nothing(tracked: tuple[Path, dict[str, Any]]) -> None:
    folder, state = tracked
    path = folder / "fake" / "track.json"
    path.unlink()
    again = tracking.track(study(), folder)
    assert again["runs"] == state["runs"]
    write_json(path, state)


def test_a_changed_record_replaces_its_run(tracked: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = tracked
    before = tracking.track(study(), folder)
    path = folder / "fake/runs/text/cot/s0/train.json"
    update_record(path, wall_seconds=61.0)
    results.collect(study(), folder)
    after = tracking.track(study(), folder)
    changed = {name for name in after["runs"] if after["runs"][name] != before["runs"][name]}
    assert changed == {"text/cot/s0"}
    assert all_runs(folder)["text/cot/s0"].data.metrics["train_wall_seconds"] == 61.0


def test_a_warm_start_that_is_timed_again_replaces_what_starts_from_it_too(
    tracked: tuple[Path, dict[str, Any]],
) -> None:
    """Its epoch counts in theirs. Its answers do not."""
    folder, _ = tracked
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "coconut", "method": "coconut"}]
    made = study(name="chained", blocks=ONE_BLOCK, rows=rows)
    collected(made, folder)
    found = [tracking.track(made, folder)["runs"]]
    for stage in ("evaluate", "time"):
        path = folder / f"chained/runs/text/cot_sft/s0/{stage}.json"
        record = read_json(path)
        if stage == "time":
            record["train"]["phases"]["phase 1"]["epoch_seconds"] = 20.0
        write_json(path, record | {"seconds": 1.0})
        results.collect(made, folder)
        found.append(tracking.track(made, folder)["runs"])
    changed = [[run for run in made.runs if one[run] != other[run]] for one, other in itertools.pairwise(found)]
    assert changed == [["text/cot_sft/s0"], ["text/cot_sft/s0", "text/coconut/s0"]]
    assert all_runs(folder, "chained")["text/coconut/s0"].data.metrics["train_epoch_seconds"] == 20.0 + 2.5 + 12.5


def test_a_killed_import_is_done_over(tracked: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = tracked
    path = folder / "fake/runs/text/cot/s0/train.json"
    update_record(path, wall_seconds=62.0)
    results.collect(study(), folder)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tracking._Importer, "_by_stage", Mock(side_effect=KeyboardInterrupt))
        tracking.track(study(), folder)
    tracking.track(study(), folder)
    # The tag shows that no half-imported run was found
    assert "record_digest" in all_runs(folder)["text/cot/s0"].data.tags


def test_readers_do_not_disturb_a_writer(tracked: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = tracked
    other = study(name="other")
    collected(other, folder)
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(tracking.track, made, folder) for made in (other, study())]
        readers = [pool.submit(all_runs, folder) for _ in range(6)]
        assert [writer.result()["status"] for writer in writers] == ["done", "done"]
        assert all(len(reader.result()) == 8 for reader in readers)


def test_a_server_that_is_down_leaves_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", UNREACHABLE.replace("//", "//user:pa@secret@"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    made = study(name="patient", blocks=ONE_BLOCK)
    collected(made, tmp_path)
    state = tracking.track(made, tmp_path)
    assert state["status"] == "pending" and "127.0.0.1" in state["reason"]
    assert read_json(tmp_path / "patient" / "track.json") == state and "secret" not in str(state)
    assert tracking.track(made, tmp_path) == state | {"tries": 2}, "so that the workflow sees that it is not over"


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("create_run", 2),
        ("log_artifact", 2),
        ("set_terminated", 2),
    ],
)
def test_an_import_that_breaks_off_anywhere_is_made_whole(
    behind: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """The study was never imported before."""
    made = study(name="new", blocks=ONE_BLOCK)
    collected(made, behind)
    whole, calls = getattr(MlflowClient, call), itertools.count(1)

    def once(*arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            raise RequestException("the server went away")
        return whole(*arguments, **named)

    monkeypatch.setattr(MlflowClient, call, once)
    assert tracking.track(made, behind)["status"] == "pending"
    state = tracking.track(made, behind)
    runs = all_runs(behind, "new")
    assert state["status"] == "done" and set(runs) == {
        *made.runs,
        *(name.rpartition("/")[0] for name in made.runs),
    }
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {name: runs[name].info.run_id for name in made.runs} == state["runs"]


@pytest.fixture
def behind(tracked: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """Return a copy of the results in which one record is newer than its import."""
    folder = tmp_path / "results"
    shutil.copytree(tracked[0], folder)
    path = folder / "fake/runs/text/cot/s0/train.json"
    update_record(path, wall_seconds=63.0)
    results.collect(study(), folder)
    (folder / "fake" / "track.json").unlink()
    return folder


def track_and_render(folder: Path) -> str:
    """Return the reason why tracking is pending. The table is written nevertheless."""
    state = tracking.track(study(), folder)
    assert state["status"] == "pending"
    files = render(study(), folder, Table.main)
    assert all(file.stat().st_size for file in files)
    return state["reason"]


def assert_catches_up(folder: Path) -> None:
    assert tracking.track(study(), folder)["status"] == "done"
    assert all_runs(folder)["text/cot/s0"].data.metrics["train_wall_seconds"] == 63.0


def test_a_missing_file_of_a_run_is_no_outage(behind: Path) -> None:
    """Such an import is not tried again: someone has to make the file first."""
    shutil.rmtree(behind / "fake/runs/text/cot/s0/predictions")
    again = "run `evaluate`, then `collect`"
    with pytest.raises(BrokenRecord, match=rf"text/cot/s0/predictions/default\.parquet does not exist.*{again}"):
        tracking.track(study(), behind)
    assert not (behind / "fake" / "track.json").exists()


def test_a_database_that_is_read_only_fails_no_table(behind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.chdir(behind)  # MLflow creates a folder of that name in the working directory
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///file:{behind}/mlflow.db?mode=ro&uri=true")
        assert "readonly" in track_and_render(behind)
    assert_catches_up(behind)


def test_a_database_that_cannot_grow_fails_no_table(behind: Path) -> None:
    """Files may not grow beyond the size of the database, so all other files can be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((behind / "mlflow.db").stat().st_size, limits[1]))
    try:
        assert re.search("disk I/O error|full", track_and_render(behind))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_catches_up(behind)
