"""Import run records into MLflow, and complete there what was recorded while runs trained.

Runs that are complete, by the digest of what their numbers are from, are left alone. A server that is down never fails
a study: ``track.json`` then has the status ``pending``, and the next call catches up. The workflow calls again as long
as :func:`tries` counts up.
"""

from __future__ import annotations

import base64
import json
import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.files import BrokenRecord, json_digest, write_json
from benchmarks.processes.locks import RunLock
from benchmarks.records.provenance import hardware
from benchmarks.records.results import StudyRecords, load_collected, to_frame, with_starts
from benchmarks.records.schema import RunRecords
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import TASKS
from benchmarks.studies.study import Study
from benchmarks.tracking import entries
from benchmarks.tracking.store import (
    Outage,
    exclusive_writer,
    experiment_id,
    find_runs,
    session,
    tracking_uri,
    tries,
    without_credentials,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

PER_TEST = {  # metrics of each test set, and their columns in the frame
    "accuracy": "accuracy_mean",
    "accuracy_std": "accuracy_std",
    "strict": "strict",
    "no_answer": "no_answer",
    "deduplicated": "deduplicated",
    "forward_passes": "forward_passes",
    "test_seconds": "test_seconds_median",
    "all_steps_seconds": "all_steps_seconds_median",
    "ms_per_question": "ms_per_question",
    "peak_memory": "peak_memory",
}
PER_RUN = ("parameters", "training_flops", "train_epoch_seconds", "train_wall_seconds", "train_tokens_per_second")

NOTE = "mlflow.note.content"  # a tag whose text MLflow shows as Markdown
VIEW = "mlflow.sharedViewState.accuracies"  # a tag that holds a saved view of an experiment

log = logging.getLogger(__name__)


def track(study: Study, results: Path) -> dict[str, Any]:
    """Import what ``collect`` gathered, write ``track.json`` and return its content."""
    records = load_collected(study, results)
    path = records.folder / "track.json"
    uri = without_credentials(tracking_uri(results))
    _await_recorders(records)
    with exclusive_writer(results) as origin:
        state: dict[str, Any] = {"uri": uri, "tries": tries(path)}
        try:
            with session(results) as client:
                importer = _Importer(client, experiment_id(client, results, study.name), records, origin)
                runs = importer.import_runs()
                _describe(client, importer.experiment, study)
            state |= {"status": "done", "reason": None, "runs": runs}
        except Outage as error:
            state |= {"status": "pending", "reason": str(error)}
            log.warning("nothing was imported into MLflow at %s: %s: %s", uri, error, error.remedy)
        write_json(path, state)
    return state


def _await_recorders(records: StudyRecords) -> None:
    """Wait until trainings that are over are written, so that nothing is written twice. They have a minute for it."""
    deadline = time.monotonic() + entries.FINISHING
    for run in records.study.runs:
        folder = records.paths(run).run
        lock = entries.recording_lock(folder)
        while lock.held() and not RunLock(folder).held() and time.monotonic() < deadline:
            time.sleep(0.1)


def _describe(client: MlflowClient, experiment: str, study: Study) -> None:
    """Give an experiment a description, and a view that shows accuracies."""
    from mlflow.utils.validation import MAX_EXPERIMENT_TAG_VAL_LENGTH as MOST

    tests = dict.fromkeys(test for block in study.blocks for test in study.tests_of(block))
    shown = [f"accuracy/{test}" for test in tests]
    wanted = {
        NOTE: f"{study.title}. {study.description}",
        VIEW: _view("Accuracies", [*shown, "parameters", "train_wall_seconds"]),
    }
    tags = client.get_experiment(experiment).tags
    for name, value in wanted.items():
        if tags.get(name) != value and len(value) <= MOST:
            client.set_experiment_tag(experiment, name, value)


def _view(name: str, shown: Sequence[str]) -> str:
    """Return a view of an experiment's runs that shows some metrics, as the button *Views* of MLflow saves it. By
    default, its list shows none."""
    columns = [f"attributes.`{column}`" for column in ("Source", "Version", "Dataset")]
    state = {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [*columns, *(f"metrics.`{metric}`" for metric in shown)],
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "FIRST_10_RUNS",
        "groupsExpanded": {},
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"})


def _digest(records: StudyRecords, run: str) -> str:
    """Return a digest of what a run's metrics come from: its records, and what its warm starts add to its costs."""
    own, *starts = (records.runs[id] for id in with_starts(records.study, records.study.runs[run]))
    kept = [own.model_dump(mode="json", include=set(TASKS))]
    kept += [start.model_dump(mode="json", include={"train", "time"}) for start in starts]
    return json_digest([run, *kept])


class _Importer:
    """Brings the runs of one study into its experiment."""

    def __init__(self, client: MlflowClient, experiment: str, records: StudyRecords, origin: str) -> None:
        self.client, self.experiment, self.records, self.origin = client, experiment, records, origin
        self.study, self.frame = records.study, to_frame(records)
        self.known = find_runs(client, [experiment], "")
        deleted = find_runs(client, [experiment], "", deleted=True)
        self.deleted = [run for run in deleted if entries.SUPERSEDED not in run.data.tags]  # by users
        self.anew: list[Run] = []  # runs that were deleted, and are imported once more

    def import_runs(self) -> dict[str, str]:
        """Complete or create the runs of all trainings with records, and of their rows. Return the trainings' ids by
        run. What they replace is deleted."""
        rows: dict[str, list[str]] = {}
        for id, own in self.records.runs.items():
            if own.tasks:
                rows.setdefault(entries.row_id(self.study.runs[id].model_dump()), []).append(id)
        made: dict[str, str] = {}
        runs: dict[str, str] = {}
        for row, trainings in rows.items():
            digests = {id: _digest(self.records, id) for id in trainings}
            digest = json_digest([row, digests])
            parent = self._known("row", row, digest)
            made[row] = parent.info.run_id if parent else self._open_row(row, trainings)
            for id in trainings:
                runs[id] = self._training(id, digests[id], made[row])
            if not parent:
                self._close_row(made[row], trainings, digest)
        self._clear(made | runs)
        if self.anew:
            log.warning(
                "imported anew, as they were deleted in MLflow: %s. To have the deleted runs back instead, delete the "
                "new ones and `mlflow runs restore --run-id` %s",
                ", ".join(str(run.info.run_name) for run in self.anew),
                ", ".join(run.info.run_id for run in self.anew),
            )
        return runs

    def _known(self, kind: str, name: str, digest: str) -> Run | None:
        """Return the complete run of a training or row, if there is one."""
        for run in self.known:
            tags = run.data.tags
            if (tags.get("kind"), tags.get("run"), tags.get(entries.DIGEST)) == (kind, name, digest):
                return run
        self.anew += [run for run in self.deleted if run.data.tags.get(entries.DIGEST) == digest][:1]
        return None

    def _unfinished(self, kind: str, name: str, params: Mapping[str, str], key: str | None = None) -> Run | None:
        """Return the run that was recorded during a training with this key, or for a row, if it can be completed: its
        parameters are those of the study, and it has no results yet."""
        for run in self.known:
            tags = run.data.tags
            same = (tags.get("kind"), tags.get("run"), tags.get(entries.KEY)) == (kind, name, key)
            fits = all(params.get(param) == value for param, value in run.data.params.items())
            unfinished = entries.DIGEST not in tags and all(map(entries.is_curve, run.data.metrics))
            if same and fits and unfinished and entries.is_owned(run, self.origin):
                return run
        return None

    def _training(self, id: str, digest: str, row: str) -> str:
        """Return the id of the run of a training, which is completed, or created whole."""
        if known := self._known("run", id, digest):
            if known.data.tags.get("mlflow.parentRunId") != row:  # the row of before was deleted
                self.client.set_tag(known.info.run_id, "mlflow.parentRunId", row)
            return known.info.run_id
        spec, paths, records = self.study.runs[id], self.records.paths(id), self.records.runs[id]
        files = list(_files(paths, records))
        made, start, end = self._made(id)
        settings = spec.model_dump(mode="json")
        tags = entries.tags_of(settings, "run", self.origin, made["commit"])
        tags |= {"mlflow.parentRunId": row, "hardware": hardware(made)}
        params = entries.params_of(settings, "run")
        found = self._unfinished("run", id, params, records.train.key) if records.train else None
        run = self._open(found, settings, "run", start, tags)
        points = entries.points_of(self.client, found) if found else set()
        missing = [point for point in self._logged(id, start) if (point.key, point.step) not in points]
        results = entries.metrics(run_results(self.frame, id), end, 0)
        entries.log_metrics(self.client, run, [*missing, *results, *self._by_stage(id, end)])
        for path, folder in files:
            self.client.log_artifact(run, str(path), folder)
        self._finish(run, end, digest)
        return run

    def _logged(self, id: str, start: int) -> Iterator[Metric]:
        """Yield the numbers of a run's log, step by step."""
        for line in self.records.log(id):
            yield from entries.metrics_of(line, start + int(1000 * line.get("seconds", 0)))

    def _made(self, id: str) -> tuple[dict[str, Any], int, int]:
        """Return where a run was trained, and when that began and ended (milliseconds)."""
        made = next(iter(self.records.runs[id].tasks.values())).environment
        return made, _milliseconds(made["started"]), _milliseconds(made["finished"])

    def _open_row(self, row: str, trainings: Sequence[str]) -> str:
        settings = self.study.runs[trainings[0]].model_dump(mode="json")
        made, _, _ = self._made(trainings[0])
        start = min(start for _, start, _ in map(self._made, trainings))
        tags = entries.tags_of(settings, "row", self.origin, made["commit"]) | {"hardware": hardware(made)}
        found = self._unfinished("row", row, entries.params_of(settings, "row"))
        return self._open(found, settings, "row", start, tags)

    def _close_row(self, run: str, trainings: Sequence[str], digest: str) -> None:
        """Give a row the means of its trainings' results."""
        end = max(end for _, _, end in map(self._made, trainings))
        results = [run_results(self.frame, id) for id in trainings]
        means = {
            name: fmean(own[name] for own in results) for name in results[0] if all(name in own for own in results)
        }
        entries.log_metrics(self.client, run, entries.metrics(means | {"trainings": len(trainings)}, end, 0))
        self._finish(run, end, digest)

    def _open(self, found: Run | None, settings: Mapping[str, Any], kind: str, start: int, tags: dict[str, str]) -> str:
        """Return the id of an unfinished run that is brought up to date, or of a new one."""
        if found is None:
            run = entries.create(self.client, self.experiment, settings, kind, start, tags)
        else:
            run = found.info.run_id
            entries.log_params(self.client, run, entries.params_of(settings, kind))
            for name, value in tags.items():
                self.client.set_tag(run, name, value)
        if found is None or not (found.inputs and found.inputs.dataset_inputs):
            self.client.log_inputs(run, entries.inputs_of(self.records.data.get(settings["block"], {})))
        return run

    def _finish(self, run: str, end: int, digest: str) -> None:
        """End a run. The digest of the records is set last: without it, the run is incomplete."""
        self.client.set_terminated(run, end_time=end)
        self.client.set_tag(run, entries.DIGEST, digest)

    def _clear(self, kept: Mapping[str, str]) -> None:
        """Delete runs that are superseded, or that a killed import left incomplete. Mark those as killed that were
        recorded while they trained, by a process that is gone."""
        left = set()
        for run in self.known:
            tags = run.data.tags
            if tags.get("kind") not in ("run", "row") or not entries.is_owned(run, self.origin) or self._trains(run):
                continue
            name = tags.get("run", "")
            if name in kept:
                if run.info.run_id != kept[name]:
                    self.client.set_tag(run.info.run_id, entries.SUPERSEDED, kept[name])
                    self.client.delete_run(run.info.run_id)
            elif tags["kind"] == "run" and run.info.status == "RUNNING":
                entries.mark_killed(self.client, run)
                left.add(tags.get("mlflow.parentRunId"))
        for run in self.known:
            if run.info.run_id in left - set(kept.values()):
                entries.update_row_status(self.client, self.experiment, run.info.run_id)

    def _trains(self, run: Run) -> bool:
        """Return whether a process is training or recording what an unfinished run is of."""
        if run.info.status != "RUNNING" or run.data.tags.get("kind") != "run":
            return False
        folder = self.records.folder / "runs" / run.data.tags["run"]
        return RunLock(folder).held() or entries.recording_lock(folder).held()

    def _by_stage(self, run: str, timestamp: int) -> Iterator[Metric]:
        """Yield ``accuracy_by_stage/TEST`` at the steps at which stages ended, if there are several."""
        evaluated = self.records.runs[run].evaluate
        stages = evaluated.by_stage.values() if evaluated else ()
        for stage, scores in stages if len(stages) > 1 else ():
            means = {f"accuracy_by_stage/{test}": fmean(own.accuracy) for test, own in scores.tests.items()}
            yield from entries.metrics(means, timestamp, stage.steps)


def run_results(frame: pd.DataFrame, run: str) -> dict[str, float]:
    """Return a run's numbers from the frame of its study, under their names in MLflow: ``accuracy/TEST`` for the
    default decoding, and ``accuracy_DECODING/TEST`` for others."""
    lines = frame.loc[frame["run"] == run].to_dict("records")
    values: dict[str, Any] = {}
    for line in lines:
        suffix = "" if line["decoding"] == "default" else f"_{line['decoding']}"
        values |= {f"{name}{suffix}/{line['test']}": line[column] for name, column in PER_TEST.items()}
    values |= {name: lines[0][name] for name in PER_RUN}
    return {name: float(value) for name, value in values.items() if pd.notna(value)}


def _files(paths: Paths, records: RunRecords) -> Iterator[tuple[Path, str | None]]:
    """Yield the files of a run that are imported, each with its folder in MLflow. Raise :class:`BrokenRecord` if one is
    missing, so that this is not taken for a failure of the server later."""
    files: list[tuple[Path, str, str | None]] = [(paths.record(task), task, None) for task in records.tasks]
    if records.evaluate:
        files += [(paths.predictions(name), "evaluate", "predictions") for name in records.evaluate.predictions]
    for path, task, folder in files:
        if not path.is_file():
            raise BrokenRecord(f"{path} does not exist, and is in the collected records: run `{task}`, then `collect`")
        yield path, folder


def _milliseconds(time: str) -> int:
    return int(1000 * datetime.fromisoformat(time).timestamp())
