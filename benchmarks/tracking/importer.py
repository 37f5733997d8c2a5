"""Import run records into MLflow.

One process writes at a time. Runs that are already there, by the digest of what their numbers are from, are left alone.
A server that is down never fails a study: ``track.json`` then has the status ``pending``, and the next call catches up.
The workflow calls again as long as :func:`tries` counts up.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.files import BrokenRecord, json_digest, write_json
from benchmarks.records.provenance import hardware
from benchmarks.records.results import StudyRecords, load_collected, to_frame, with_starts
from benchmarks.records.schema import RunRecords
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import TASKS, RunSpec
from benchmarks.studies.study import Study
from benchmarks.tracking.state import read_state, tries
from benchmarks.tracking.store import (
    Fixable,
    Outage,
    experiment_id,
    find_runs,
    is_local,
    local_artifacts,
    public,
    session,
    tracking_uri,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric, Run

KINDS = {"step": "train", "validation": "validation"}  # by kind of log line: the prefix of its metrics
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

log = logging.getLogger(__name__)


def track(study: Study, results: Path) -> dict[str, Any]:
    """Import what ``collect`` gathered, write ``track.json`` and return its content."""
    records = load_collected(study, results)
    path = records.folder / "track.json"
    with _one_writer(results) as origin:
        state: dict[str, Any] = {"uri": public(tracking_uri(results)), "tries": tries(path)}
        try:
            with session(results) as client:
                parent, runs = _import(client, records, origin)
                _attach(client, parent, sorted(path.parent.glob("table_*")))  # rendered while the server was down
            state |= {"status": "done", "reason": None, "parent": parent, "runs": runs}
        except Fixable as error:
            state |= {"status": "pending", "reason": str(error)}
            log.warning("nothing was imported into MLflow at %s: %s: %s", state["uri"], error, error.remedy)
        except Outage as error:
            state |= {"status": "pending", "reason": str(error)}
            log.warning("MLflow at %s cannot be used now, `track` will catch up: %s", state["uri"], error)
        write_json(path, state)
    return state


def attach_table(study: Study, results: Path, files: Iterable[Path]) -> None:
    """Attach rendered tables to the study's parent run. If the server is down, the next ``track`` does it."""
    path = results / study.name / "track.json"
    state = read_state(path)
    if state.get("status") != "done":
        return
    try:
        with _one_writer(results), session(results) as client:
            if client.get_run(state["parent"]).info.lifecycle_stage == "deleted":
                raise Outage(f"the study's run {state['parent']} was deleted")
            _attach(client, state["parent"], files)
    except Outage as error:
        write_json(path, state | {"status": "pending", "reason": str(error)})
        log.warning("the tables are not in MLflow yet, `track` will catch up: %s", error)


@contextmanager
def _one_writer(results: Path) -> Iterator[str]:
    """Wait for other imports from the same folder. The kernel frees the lock if its holder dies.

    Yield the id of the results folder, which the lock file keeps. Only runs with it may be replaced from this folder.
    The file's inode is kept beside it, so that a copy of the folder gets an id of its own: it must not replace runs of
    the original on a server that both use.
    """
    results.mkdir(parents=True, exist_ok=True)
    with (results / ".mlflow.lock").open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        origin, _, inode = file.read().partition(" ")
        here = str(os.fstat(file.fileno()).st_ino)
        if not origin or inode not in ("", here):
            origin, inode = uuid.uuid4().hex, ""
        if not inode:
            file.truncate(0)
            file.write(f"{origin} {here}")
            file.flush()
        yield origin


def _attach(client: MlflowClient, parent: str, files: Iterable[Path]) -> None:
    for file in files:
        client.log_artifact(parent, str(file), "tables")


def _import(client: MlflowClient, records: StudyRecords, origin: str) -> tuple[str, dict[str, str]]:
    """Import new runs, delete those that this folder's records replaced, and return the parent's id and ids by run."""
    study, experiment = records.study, experiment_id(client, records.results)
    query = f"tags.study = '{study.name}'"
    known, deleted = find_runs(client, experiment, query), find_runs(client, experiment, query, deleted=True)
    parents = [run for run in known if run.data.tags.get("kind") == "study"]
    anew = [] if parents else [run for run in deleted if run.data.tags.get("kind") == "study"][:1]
    made = parents[-1] if parents else _create_parent(client, experiment, study)
    if made.info.status != "FINISHED":  # it is new, or the server went away before it was finished
        client.set_terminated(made.info.run_id)
    parent = made.info.run_id
    by_digest = {run.data.tags.get("record_digest"): run for run in known}
    importer = _Importer(client, experiment, parent, records, origin)
    runs: dict[str, str] = {}
    for id, own in records.runs.items():
        if not own.tasks:
            continue
        digest = _digest(records, id)
        if run := by_digest.get(digest):
            runs[id] = run.info.run_id
            importer.mend(study.runs[id], run)
        else:
            anew += [run for run in deleted if run.data.tags.get("record_digest") == digest][:1]
            runs[id] = importer.create(study.runs[id], digest)
    for run in known:  # delete runs that are superseded, or left incomplete by a killed import
        tags = run.data.tags
        mine = is_local() or tags.get("origin") == origin  # a copied folder has another origin than its database
        if mine and tags.get("run") in runs and run.info.run_id != runs[tags["run"]]:
            client.delete_run(run.info.run_id)
    if anew:
        log.warning(
            "imported anew, as they were deleted in MLflow: %s. To have the deleted runs back instead, delete the new "
            "ones and `mlflow runs restore --run-id` %s",
            ", ".join(str(run.info.run_name) for run in anew),
            ", ".join(run.info.run_id for run in anew),
        )
    return parent, runs


def _create_parent(client: MlflowClient, experiment: str, study: Study) -> Run:
    tags = {"study": study.name, "kind": "study", "mlflow.note.content": f"{study.title}. {study.description}"}
    return client.create_run(experiment, tags=tags, run_name=study.name)


def _digest(records: StudyRecords, run: str) -> str:
    """Return a digest of what a run's metrics come from: its records, and what its warm starts add to its costs."""
    own, *starts = (records.runs[id] for id in with_starts(records.study, records.study.runs[run]))
    kept = [own.model_dump(mode="json", include=set(TASKS))]
    kept += [start.model_dump(mode="json", include={"train", "time"}) for start in starts]
    return json_digest([run, *kept])


class _Importer:
    """Creates the MLflow runs of one study."""

    def __init__(self, client: MlflowClient, experiment: str, parent: str, records: StudyRecords, origin: str) -> None:
        self.client, self.experiment, self.parent, self.origin = client, experiment, parent, origin
        self.records, self.frame = records, to_frame(records)

    def create(self, spec: RunSpec, digest: str) -> str:
        """Create a child run and return its id. The digest of the records is set last: without it, it is incomplete."""
        paths, records = self.records.paths(spec.id), self.records.runs[spec.id]
        files = list(_files(paths, records))
        environments = [record.environment for record in records.tasks.values()]
        start, end = _milliseconds(environments[0].get("started")), _milliseconds(environments[-1].get("finished"))
        tags = self._tags(spec, environments[0])
        run = self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=spec.id).info.run_id
        self._log_batches(run, spec, [*_logged(paths.log, start or 0), *self._results(spec.id, end or 0)])
        self.client.log_inputs(run, self._inputs(spec))
        for path, folder in files:
            self.client.log_artifact(run, str(path), folder)
        self.client.set_terminated(run, end_time=end)
        self.client.set_tag(run, "record_digest", digest)
        return run

    def mend(self, spec: RunSpec, run: Run) -> None:
        """Give a run that is there already the parent that it lost, and the files, if they were in the results folder
        and are gone."""
        if run.data.tags.get("mlflow.parentRunId") != self.parent:
            self.client.set_tag(run.info.run_id, "mlflow.parentRunId", self.parent)
        if not is_local():
            return
        stored = local_artifacts(run)
        for path, folder in _files(self.records.paths(spec.id), self.records.runs[spec.id]):
            if not (stored / (folder or "") / path.name).is_file():
                self.client.log_artifact(run.info.run_id, str(path), folder)

    def _tags(self, spec: RunSpec, environment: dict[str, Any]) -> dict[str, str]:
        """Return a run's tags. ``origin`` distinguishes the results folders that import into the same server."""
        tags = {"mlflow.parentRunId": self.parent, "study": spec.study, "kind": "run", "run": spec.id}
        tags |= {"origin": self.origin, "hardware": hardware(environment)}
        if commit := environment.get("commit"):
            tags["mlflow.source.git.commit"] = commit
        return tags

    def _log_batches(self, run: str, spec: RunSpec, metrics: list[Metric]) -> None:
        """Log parameters and metrics in batches of the sizes that MLflow accepts."""
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAMS_TAGS_PER_BATCH

        params = [Param(name, str(value)) for name, value in _flat(spec.model_dump(mode="json"))]
        for start in range(0, len(params), MAX_PARAMS_TAGS_PER_BATCH):
            self.client.log_batch(run, params=params[start : start + MAX_PARAMS_TAGS_PER_BATCH])
        for start in range(0, len(metrics), MAX_METRICS_PER_BATCH):
            self.client.log_batch(run, metrics=metrics[start : start + MAX_METRICS_PER_BATCH])

    def _results(self, run: str, timestamp: int) -> Iterator[Metric]:
        """Yield the numbers of the tables.

        Names are ``accuracy/TEST`` for the default decoding, ``accuracy_DECODING/TEST`` for others, and
        ``accuracy_by_stage/TEST`` at the steps at which stages ended (if there are several).
        """
        lines = [line for line in self.frame.to_dict("records") if line["run"] == run]
        for line in lines:
            suffix = "" if line["decoding"] == "default" else f"_{line['decoding']}"
            names = {f"{name}{suffix}/{line['test']}": column for name, column in PER_TEST.items()}
            yield from _metrics({name: line[column] for name, column in names.items()}, timestamp, 0)
        yield from _metrics({name: lines[0][name] for name in PER_RUN}, timestamp, 0)
        evaluated = self.records.runs[run].evaluate
        stages = evaluated.by_stage.values() if evaluated else ()
        for stage, scores in stages if len(stages) > 1 else ():
            means = {f"accuracy_by_stage/{test}": fmean(own.accuracy) for test, own in scores.tests.items()}
            yield from _metrics(means, timestamp, stage.steps)

    def _inputs(self, spec: RunSpec) -> list[DatasetInput]:
        """Return the block's data sets, with the digests of the data that were used."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = self.records.data.get(spec.block, {})
        inputs = []
        for place, digest in data.get("digests", {}).items():
            name, _, split = place.partition("/")
            card = data.get("cards", {}).get(name, {})
            source = {"tags": {key: str(card[key]) for key in ("source", "revision") if key in card}}
            dataset = Dataset(place, digest[:36], "code", json.dumps(source))
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
        return inputs


def _files(paths: Paths, records: RunRecords) -> Iterator[tuple[Path, str | None]]:
    """Yield the files of a run that are imported, each with its folder in MLflow.

    Raise :class:`BrokenRecord` if one is missing, so that this is not taken for a failure of the server later.
    """
    files: list[tuple[Path, str, str | None]] = [(paths.record(task), task, None) for task in records.tasks]
    if records.evaluate:
        files += [(paths.predictions(name), "evaluate", "predictions") for name in records.evaluate.predictions]
    for path, stage, folder in files:
        if not path.is_file():
            raise BrokenRecord(f"{path} does not exist, and is in the collected records: run `{stage}`, then `collect`")
        yield path, folder


def _metrics(values: dict[str, Any], timestamp: int, step: int) -> Iterator[Metric]:
    """Yield the numbers among ``values``, under names that MLflow allows."""
    from mlflow.entities import Metric

    for name, value in values.items():
        if pd.notna(value):
            yield Metric(re.sub(r"[^\w./: -]", "_", name), float(value), timestamp, step)


def _logged(path: Path, start: int) -> Iterator[Metric]:
    """Yield the numbers of a run's log, step by step, if there is a log. Raise :class:`BrokenRecord` on broken JSON."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise BrokenRecord(
                f"{path}, line {number}: broken JSON ({error.msg}): remove the folder, and train this run again"
            ) from error
        if entry["kind"] in KINDS:
            numbers = {k: v for k, v in entry.items() if isinstance(v, (int, float)) and k != "step"}
            named = {f"{KINDS[entry['kind']]}/{name}": value for name, value in numbers.items()}
            yield from _metrics(named, start + int(1000 * entry.get("seconds", 0)), entry["step"])


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _milliseconds(time: str | None) -> int | None:
    return int(1000 * datetime.fromisoformat(time).timestamp()) if time else None
