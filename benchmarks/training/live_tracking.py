"""Has a training recorded in MLflow as it runs, by a process beside it.

Importing MLflow takes two to three seconds of CPU, and logging each batch of metrics takes milliseconds. In the process
that trains, both would hold the GIL while the model waits. The training therefore only puts each line of its log into a
queue; a thread writes them into a pipe, and :mod:`benchmarks.tracking.recorder` reads them. Nothing that happens there
can stop the training.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from benchmarks.environment import commit
from benchmarks.processes.preemption import Preempted
from benchmarks.studies.paths import DONE

if TYPE_CHECKING:
    from benchmarks.training.loop import Trainer

VARIABLE = "MARCOS_BENCH_LIVE"  # `no`: nothing is recorded before `track`
NO = ("no", "off", "false", "0")
PATIENCE = 5.0  # seconds that a training waits in the end for its last lines to get into the pipe
ROOM = 2**20  # bytes in the pipe, so that they get there even if its reader has not started yet

log = logging.getLogger(__name__)


@contextmanager
def track_live(trainer: Trainer, results: Path) -> Iterator[None]:
    """Record what is trained in this block, on the first rank, unless :data:`VARIABLE` says no."""
    if not trainer.ranks.first or os.environ.get(VARIABLE, "").lower() in NO:
        yield
        return
    about = {
        "spec": trainer.spec.model_dump(mode="json"),
        "key": trainer.key,
        "results": str(results.absolute()),
        "run": str(trainer.paths.run.absolute()),
        "data": str((trainer.paths.data / DONE).absolute()),
        "started": _now(),
    }
    feed = _Feed(about)
    trainer.log.listener = feed.add
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except (Preempted, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        feed.end(status)


class _Feed:
    """Passes lines to a recorder that it starts."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.process: subprocess.Popen[str] | None = None
        self.thread = threading.Thread(target=self._write, name="lines for MLflow", daemon=True)
        self.thread.start()

    def add(self, line: dict[str, Any]) -> None:
        self.lines.put({"time": _now(), "line": line})

    def end(self, status: str) -> None:
        """Say how the training ended. The recorder finishes by itself."""
        self.lines.put({"time": _now(), "status": status})
        self.lines.put(None)
        self.thread.join(PATIENCE)

    def _write(self) -> None:
        try:
            # In a process group of its own, so that Ctrl-C does not end it before it has written how training ended.
            # In the training's session, since the kernel shares cores between sessions before it looks at priorities
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "benchmarks.tracking.recorder"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                encoding="utf-8",
                pipesize=ROOM,
                process_group=0,
            )
            assert self.process.stdin is not None
            line: dict[str, Any] | None = {**self.about, "commit": commit()}
            with self.process.stdin as pipe:
                while line is not None:
                    pipe.write(json.dumps(line) + "\n")
                    pipe.flush()
                    line = self.lines.get()
        except (OSError, ValueError) as error:
            id, study = self.about["spec"]["id"], self.about["spec"]["study"]
            log.warning(
                "%s is no longer recorded in MLflow (%s): `marcos-bench track %s` adds the rest", id, error, study
            )


def _now() -> int:
    """Return the time in milliseconds, as MLflow counts it."""
    return int(1000 * time.time())
