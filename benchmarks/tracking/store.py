"""The MLflow store: SQLite in the results folder by default, or the server that MLFLOW_TRACKING_URI names.

Each study is an experiment of its own. Every call of Snakemake reads :func:`tries`, so MLflow is imported late.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

from benchmarks.files import read_json_if_intact, report_full_disk
from benchmarks.processes.locks import lock, opened_by

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

DATABASE = "mlflow.db"  # in the results folder
ARTIFACTS = "mlartifacts"  # beside it: the files of all runs
PATIENCE = 10.0  # seconds to wait for another process that has locked the database
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # So that a server that is down is noticed within about a minute
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
# The kind of experiment, for which MLflow shows runs and not language-model traces
AS_TRAINING = {"mlflow.experimentKind": "custom_model_development"}

log = logging.getLogger(__name__)


def tries(path: Path) -> int:
    """Return a counter that Snakemake watches as a parameter of the rule ``track``, given ``track.json``: one higher
    while the last import is pending, so that the rule runs again, and unchanged once it is done."""
    state = read_json_if_intact(path)
    return state.get("tries", 1) + (state.get("status") == "pending")


def is_local() -> bool:
    """Return whether the database is the one in the results folder."""
    return not os.environ.get("MLFLOW_TRACKING_URI")


def tracking_uri(results: Path) -> str:
    if not is_local():
        return os.environ["MLFLOW_TRACKING_URI"]
    path = str((results / DATABASE).resolve())
    if not re.search(r"[?#%]", path):
        return f"sqlite:///{path}"
    # SQLite decodes it; SQLAlchemy would cut a plain path off at a question mark. The driver is named because MLflow
    # makes a folder `file:` where it runs if an address begins with `sqlite:///file:`
    return f"sqlite+pysqlite:///file:{quote(path)}?uri=true"


def artifact_root(results: Path) -> str:
    """Return the URI of the folder of all runs' files, if a server does not have them."""
    return (results / ARTIFACTS).resolve().as_uri()


def connect(results: Path) -> MlflowClient:
    """Return an MLflow client that gives up soon and logs little. MLflow is imported here because it loads slowly."""
    for name, value in SETTINGS.items():  # before the import of MLflow, which reads some of them
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri(results))


def find_experiments(client: MlflowClient) -> list[str]:
    """Return the ids of the experiments of all studies. Raise :class:`Outage` if there is none but one that somebody
    deleted."""
    from mlflow.entities import ViewType

    found = client.search_experiments(ViewType.ALL, filter_string="tags.study LIKE '%'")
    active = [experiment.experiment_id for experiment in found if experiment.lifecycle_stage == "active"]
    if found and not active:
        raise _deleted(found[0])
    return active


def _deleted(experiment: Experiment) -> Outage:
    id, name = experiment.experiment_id, experiment.name
    return Outage(
        f"the experiment {name} was deleted in MLflow",
        f"restore it with `mlflow experiments restore --experiment-id {id}`, or remove it for good with `mlflow gc "
        f"--experiment-ids {id}` (both want the database in MLFLOW_TRACKING_URI, gc also as --backend-store-uri); "
        "`marcos-bench track STUDY` then goes on, or starts anew",
    )


def experiment_id(client: MlflowClient, results: Path, study: str) -> str:
    """Return the id of a study's experiment, and create it if it is missing, with its artifacts in the results folder
    unless a server has them. Raise :class:`Outage` if somebody deleted it."""
    found = client.get_experiment_by_name(study)
    if found and found.lifecycle_stage == "deleted":
        raise _deleted(found)
    if found:
        if "study" not in found.tags:  # somebody made it by hand
            client.set_experiment_tag(found.experiment_id, "study", study)
        return found.experiment_id
    local = tracking_uri(results).startswith("sqlite")
    return client.create_experiment(study, artifact_root(results) if local else None, {"study": study, **AS_TRAINING})


def find_runs(client: MlflowClient, experiments: Sequence[str], query: str, deleted: bool = False) -> list[Run]:
    """Return all runs that match, newest first: those that are there, or those that were ``deleted``."""
    from mlflow.entities import ViewType
    from mlflow.utils import get_results_from_paginated_fn

    view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    order = ["attributes.start_time DESC"]
    return get_results_from_paginated_fn(
        lambda most, page: client.search_runs([*experiments], query, view, most, order, page), 1000
    )


@contextmanager
def exclusive_writer(results: Path) -> Iterator[str]:
    """Wait for others that create runs from the same folder, so that none is created twice. The kernel frees the lock
    if its holder dies. Yield the id of the results folder, which the lock file keeps: only runs with it may be replaced
    from here. The file's inode is kept beside it, so that a copy of the folder gets an id of its own and does not
    replace runs of the original on a server that both use."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / ".mlflow.lock").open("a+", encoding="utf-8") as file:
        lock(file, fcntl.LOCK_EX)
        file.seek(0)
        origin, _, inode = file.read().partition(" ")
        here = str(os.fstat(file.fileno()).st_ino)
        if not origin or inode not in ("", here):
            origin, inode = uuid.uuid4().hex, ""
        if not inode:
            with report_full_disk(results):
                file.truncate(0)
                file.write(f"{origin} {here}")
                file.flush()
        yield origin


class Outage(Exception):
    """The server cannot be reached, or the server, its database or the disk fails, or the store is in a state that only
    a user can change. ``remedy`` tells what to do."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.remedy = remedy


@contextmanager
def session(results: Path) -> Iterator[MlflowClient]:
    """Yield a client whose failures are raised as :class:`Outage`. If the local database may be missing, hold
    :func:`exclusive_writer`: it is created here."""
    try:
        if is_local() and (results / DATABASE).is_file():
            _settle(results)
        elif is_local():
            _create(results)
        yield connect(results)
    except Exception as error:
        if not _is_outage(error):
            raise
        path = results / DATABASE
        if "database is locked" in str(error):
            by = " or ".join(opened_by(path) if is_local() else ()) or "another process"
            remedy = "wait for what uses it, or stop that, and run the same command"
            raise Outage(f"{path} is locked by {by}, for more than {PATIENCE:g} s", remedy) from error
        remedy = "start the server that MLFLOW_TRACKING_URI names, or unset it to use the file in the results folder"
        if is_local():
            remedy = f"if {path} is damaged, move it away, and run `marcos-bench track STUDY`"
        raise Outage(without_credentials(str(error)), remedy) from error


def _create(results: Path) -> None:
    """Create the database of a results folder, whole or not at all. MLflow builds it by some fifty migrations, one
    transaction each. A process that is killed between two of them leaves a database that no later one can open, so it
    is made elsewhere and moved into place."""
    results.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".mlflow.", dir=results) as folder:
        connect(Path(folder)).search_experiments()
        (Path(folder) / DATABASE).replace(results / DATABASE)


def _settle(results: Path) -> None:
    """Make the database of a results folder that was copied or moved refer to the files in that folder. MLflow records
    the files of an experiment and of each run by absolute addresses: those of a copy would be the files of the
    original, to which everything would then be written."""
    path, here = results / DATABASE, artifact_root(results)
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=PATIENCE)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'experiments'").fetchall()
        query = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location LIKE ?"
        recorded = database.execute(query, (f"%/{ARTIFACTS}",)).fetchall() if tables else []
        moved = [before for (before,) in recorded if before != here]
        if not moved:
            return
        try:
            with database:  # in one transaction
                places = (("experiments", "artifact_location"), ("runs", "artifact_uri"))
                for before, (table, column) in product(moved, places):
                    database.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {column} = ? "
                        f"OR substr({column}, 1, ?) = ?",
                        (here, len(before) + 1, before, len(before) + 1, f"{before}/"),
                    )
        except sqlite3.OperationalError as error:
            if "readonly" not in str(error):
                raise
            raise Outage(
                f"{path} was copied or moved here from the folder of {moved[0]}, and cannot be written",
                "make it writable, or copy the results folder to a place where it is",
            ) from error
    log.warning("%s was copied or moved: its runs had their files in %s, and now have them in %s", path, moved[0], here)


def _is_outage(error: Exception) -> bool:
    """Return whether an error is a failure of the store. Imports are late, as in :func:`connect`. Any OSError counts,
    so users of a session must make sure beforehand that the files to import exist."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, (MlflowException, SQLAlchemyError, sqlite3.Error, OSError))


def without_credentials(text: str) -> str:
    """Return a text without the user names and passwords in its URLs."""
    return re.sub(r"//[^\s'\"]*@", "//", text)  # to the last @: passwords may hold any other character
