"""The MLflow store: SQLite in the results folder by default, or the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.files import BrokenRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "marcos-bench"
DATABASE = "mlflow.db"  # in the results folder
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # So that a server that is down is noticed within about a minute
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def tracking_uri(results: Path) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(results / DATABASE).resolve()}"


def advice(results: Path) -> str:
    """Return advice on a store that cannot be queried."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return "start the server that MLFLOW_TRACKING_URI names, or unset it to use the file in the results folder"
    return f"if {results / DATABASE} is damaged, move it away, and run `marcos-bench track STUDY`"


def connect(results: Path) -> MlflowClient:
    """Return an MLflow client that gives up soon and logs little. MLflow is imported here because it loads slowly."""
    for name, value in SETTINGS.items():  # before the import of MLflow, which reads some of them
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    results.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri(results))


def require_store(results: Path) -> None:
    """Raise :class:`BrokenRecord` if the local database is missing, so that mere reading does not create one.

    The message names the database and the command that fills it.
    """
    path = (results / DATABASE).absolute()
    if not os.environ.get("MLFLOW_TRACKING_URI") and not path.is_file():
        raise BrokenRecord(
            f"{path} does not exist, so no run is tracked there: run `marcos-bench track STUDY`, or "
            "name the folder that has it (--results)"
        )


def find_experiment(client: MlflowClient) -> str | None:
    """Return the id of the experiment that holds all studies, or None if nothing was ever tracked."""
    found = client.get_experiment_by_name(EXPERIMENT)
    return found.experiment_id if found else None


def experiment_id(client: MlflowClient, results: Path) -> str:
    """Return the id of the experiment that holds all studies, and create it if it is missing.

    Its artifacts are in the results folder, unless a server has them.
    """
    if found := find_experiment(client):
        return found
    local = tracking_uri(results).startswith("sqlite:")
    return client.create_experiment(EXPERIMENT, (results / "mlartifacts").resolve().as_uri() if local else None)


def find_runs(client: MlflowClient, experiment: str, query: str) -> list[Run]:
    """Return all runs that match, newest first."""
    found: list[Run] = []
    page = None
    while True:
        runs = client.search_runs([experiment], query, order_by=["attributes.start_time DESC"], page_token=page)
        found += runs
        if not (page := runs.token):
            return found


class Outage(Exception):
    """The server cannot be reached, or the server, its database or the disk fails."""


@contextmanager
def session(results: Path) -> Iterator[MlflowClient]:
    """Yield a client whose failures are raised as :class:`Outage`."""
    try:
        yield connect(results)
    except Exception as error:
        if not _is_outage(error):
            raise
        raise Outage(public(str(error))) from error


def _is_outage(error: Exception) -> bool:
    """Return whether an error is a failure of the store. Imports are late, as in :func:`connect`.

    Any OSError counts, so users of a session must make sure beforehand that the files to import exist.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, (MlflowException, SQLAlchemyError, OSError))


def public(text: str) -> str:
    """Return a text without the user names and passwords in its URLs."""
    return re.sub(r"//[^/@\s]*@", "//", text)
