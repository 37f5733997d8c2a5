"""Read the metrics and answers of one run from MLflow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.files import BrokenRecord, read_json, read_parquet
from benchmarks.records.provenance import outdated_scorers
from benchmarks.records.schema import ScoredBy
from benchmarks.tracking.entries import is_curve
from benchmarks.tracking.store import DATABASE, Outage, find_experiments, is_local, session
from methods.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run


def tracked_run(id: str, results: Path, decoding: str) -> tuple[str, dict[str, float], dict[str, pd.DataFrame]]:
    """Return a label of the run with an MLflow run id, its results by the names of metrics, without those logged during
    training, and its answers under one decoding by test set. Raise :class:`InputError` if MLflow cannot be asked, or
    has no such run or no such answers."""
    database = (results / DATABASE).absolute()
    if is_local() and not database.is_file():  # mere reading does not create one
        raise BrokenRecord(
            f"{database} does not exist, so no run is tracked there: run `marcos-bench track STUDY`, or "
            "name the folder that has it (--results)"
        )
    try:
        with session(results) as client:
            if not find_experiments(client):
                raise InputError(
                    f"MLflow has no run {id!r}; it has no run at all: `marcos-bench track STUDY` brings some"
                )
            run = _by_id(client, id)
            answers = _answers(client, run, decoding)
    except Outage as outage:
        cause = str(outage).partition("\n")[0]
        raise InputError(f"MLflow cannot be asked ({cause}): {outage.remedy}") from outage
    metrics = {name: value for name, value in run.data.metrics.items() if not is_curve(name)}
    return f"{run.data.tags.get('study')}:{run.info.run_name} (MLflow {id})", metrics, answers


def _by_id(client: MlflowClient, id: str) -> Run:
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(id)
    except MlflowException as error:
        raise InputError(f"MLflow has no run {id!r}: {error}") from error
    if run.info.lifecycle_stage == "deleted":
        raise InputError(f"run {id} was deleted in MLflow: bring it back with `mlflow runs restore --run-id {id}`")
    return run


def _answers(client: MlflowClient, run: Run, decoding: str) -> dict[str, pd.DataFrame]:
    known = [Path(file.path).stem for file in client.list_artifacts(run.info.run_id, "predictions")]
    if not known:
        raise InputError(
            f"MLflow has no predictions of {run.info.run_name}: name a training of a row (they are listed "
            "below it), or evaluate, collect and track it"
        )
    if decoding not in known:
        raise InputError(f"{run.info.run_name} has no predictions of decoding {decoding!r}; it has: {known}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(client.download_artifacts(run.info.run_id, f"predictions/{decoding}.parquet", folder))
        record = read_json(Path(client.download_artifacts(run.info.run_id, "evaluate.json", folder)))
        if older := outdated_scorers({test: ScoredBy(**by) for test, by in record["scorers"].items()}):
            raise InputError(
                f"{run.info.run_name} was scored by another version of the scorer than today's ({', '.join(older)}): "
                "run `marcos-bench rescore` where its records are, then collect and track it"
            )
        answers = read_parquet(path, record["predictions"][decoding], "`track`")
        return {str(test): frame for test, frame in answers.groupby("test", sort=False)}
