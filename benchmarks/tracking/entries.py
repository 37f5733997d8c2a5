"""What a study's runs look like in MLflow, whoever writes them: a recorder while one trains, or the import of records.

Each row of a study is a run named BLOCK/ROW, and its trainings are nested in it. This module imports little, since a
recorder starts with every training.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes.locks import FileLock
from benchmarks.tracking.store import find_runs, is_local

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric, Run

KINDS = {"step": "train", "validation": "validation"}  # by kind of log line: the prefix of its metrics
DIGEST = "record_digest"  # a tag of runs that are complete: the digest of what their numbers are from
SUPERSEDED = "superseded_by"  # a tag of runs that an import deleted: the id of the run in their place
KEY = "training_key"  # a tag of runs that were recorded while they trained: what their weights depend on
OF_TRAININGS = {"id", "seed", "starts_from", "starts_at"}  # settings in which the trainings of a row differ
FINISHING = 60.0  # seconds that a recorder has after its training


def recording_lock(run: Path) -> FileLock:
    """Return the lock that the recorder of a run with this folder holds."""
    return FileLock(run / ".recorder.lock", f"the recording in MLflow of {run}")


def row_id(spec: Mapping[str, Any]) -> str:
    """Return the name of the row that a run belongs to, given the run's specification."""
    return f"{spec['block']}/{spec['row']}"


def tags_of(spec: Mapping[str, Any], kind: str, origin: str, commit: str | None) -> dict[str, str]:
    """Return the tags of a run (kind ``run``) or of its row (kind ``row``). ``origin`` distinguishes the results
    folders that write to the same server. MLflow shows the source and the commit (as version) in columns of their
    own."""
    tags = {"study": spec["study"], "kind": kind, "run": spec["id"] if kind == "run" else row_id(spec)}
    tags |= {"origin": origin, "mlflow.source.name": "marcos-bench train", "mlflow.source.type": "LOCAL"}
    return tags | ({"mlflow.source.git.commit": commit} if commit else {})


def params_of(spec: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return a specification as MLflow's parameters; for a row, those that its trainings share."""
    shared = {name: value for name, value in spec.items() if kind == "run" or name not in OF_TRAININGS}
    return {name: str(value) for name, value in _flat(shared)}


def inputs_of(data: Mapping[str, Any]) -> list[DatasetInput]:
    """Return the data sets in the record of a block's data, with their digests."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = []
    for place, digest in data.get("digests", {}).items():
        name, _, split = place.partition("/")
        card = data.get("cards", {}).get(name, {})
        source = {"tags": {key: str(card[key]) for key in ("source", "revision") if key in card}}
        dataset = Dataset(place, digest[:36], "code", json.dumps(source))
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
    return inputs


def metrics(values: Mapping[str, float], timestamp: int, step: int) -> Iterator[Metric]:
    """Yield numbers as metrics, under names that MLflow allows. ``timestamp`` is in milliseconds."""
    from mlflow.entities import Metric

    for name, value in values.items():
        if not math.isnan(value):
            yield Metric(re.sub(r"[^\w./: -]", "_", name), float(value), timestamp, step)


def metrics_of(line: Mapping[str, Any], timestamp: int) -> Iterator[Metric]:
    """Yield the numbers of a line of a run's log."""
    if prefix := KINDS.get(line["kind"]):
        numbers = {f"{prefix}/{name}": v for name, v in line.items() if isinstance(v, (int, float)) and name != "step"}
        yield from metrics(numbers, timestamp, line["step"])


def is_curve(metric: str) -> bool:
    """Return whether training logs a metric of this name, step by step; all others are results."""
    return metric.split("/")[0] in KINDS.values()


def points_of(client: MlflowClient, run: Run) -> set[tuple[str, int]]:
    """Return the metrics and steps of the curves that a run has already."""
    curves = filter(is_curve, run.data.metrics)
    return {(name, point.step) for name in curves for point in client.get_metric_history(run.info.run_id, name)}


def log_params(client: MlflowClient, run: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param
    from mlflow.utils import chunk_list
    from mlflow.utils.validation import MAX_PARAMS_TAGS_PER_BATCH

    for part in chunk_list([Param(name, value) for name, value in params.items()], MAX_PARAMS_TAGS_PER_BATCH):
        client.log_batch(run, params=part)


def log_metrics(client: MlflowClient, run: str, found: Iterable[Metric]) -> None:
    from mlflow.utils import chunk_list
    from mlflow.utils.validation import MAX_METRICS_PER_BATCH

    for part in chunk_list([*found], MAX_METRICS_PER_BATCH):
        client.log_batch(run, metrics=part)


def is_owned(run: Run, origin: str) -> bool:
    """Return whether a results folder may change a run. A copied folder has another origin than its database."""
    return is_local() or run.data.tags.get("origin") == origin


def create(
    client: MlflowClient, experiment: str, spec: Mapping[str, Any], kind: str, start: int, tags: dict[str, str]
) -> str:
    """Create a run, with its parameters and the tags of :func:`tags_of`, and return its id. Its status is RUNNING."""
    run = client.create_run(experiment, start_time=start, tags=tags, run_name=tags["run"]).info.run_id
    log_params(client, run, params_of(spec, kind))
    return run


def update_row_status(client: MlflowClient, experiment: str, row: str) -> None:
    """Give a row's run the status of its trainings, and if none runs any more, the end of the last of them."""
    own = find_runs(client, [experiment], f"tags.`mlflow.parentRunId` = '{row}'")
    statuses = {run.info.status for run in own}
    status = next((name for name in ("RUNNING", "FAILED", "KILLED") if name in statuses), "FINISHED")
    if status == "RUNNING":
        client.update_run(row, status)
    else:
        client.set_terminated(row, status, max((run.info.end_time or 0 for run in own), default=None))


def mark_killed(client: MlflowClient, run: Run) -> None:
    """End a run whose process is gone, at the last moment of which something is known."""
    moments = [run.info.start_time]
    if curve := next(filter(is_curve, run.data.metrics), None):
        moments += [point.timestamp for point in client.get_metric_history(run.info.run_id, curve)]
    client.set_terminated(run.info.run_id, "KILLED", max(moments))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
