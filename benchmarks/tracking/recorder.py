"""The process that records one training in MLflow while it runs: ``python -m benchmarks.tracking.recorder``.

It reads JSON lines: what the training is (:func:`benchmarks.training.live_tracking.track_live` writes it), the lines of
its log with the time of each, and its status in the end. If its input ends without that, the training was killed. A
database that is locked or a server that is down is tried again, while the lines wait here; what is missing in the end,
`track` adds.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from benchmarks.files import BrokenRecord, read_json
from benchmarks.tracking import entries
from benchmarks.tracking.store import (
    exclusive_writer,
    experiment_id,
    find_runs,
    session,
    tracking_uri,
    without_credentials,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Line = dict[str, Any]
NICENESS = 19  # training goes first where cores are few
OFTEN, SELDOM = 5.0, 60.0  # seconds: the longest wait between two batches, and between two tries to reach a server


class Recorder:
    """Writes one training. ``about`` has its ``spec``, ``key``, ``commit``, ``results`` folder, folder of ``data`` and
    when it ``started`` (milliseconds)."""

    def __init__(self, about: Line) -> None:
        self.about, self.spec = about, about["spec"]
        self.results = Path(about["results"])
        self.opened: tuple[str, str, str] | None = None  # ids of experiment, row and run
        self.points: set[tuple[str, int]] = set()  # metrics and steps that MLflow has

    def record(self, lines: list[Line]) -> None:
        """Write some lines of the log, and first of all that the training runs."""
        _, _, run = self._open()
        with session(self.results) as client:
            found = [metric for line in lines for metric in entries.metrics_of(line["line"], line["time"])]
            new = {at: metric for metric in found if (at := (metric.key, metric.step)) not in self.points}
            entries.log_metrics(client, run, new.values())
            self.points |= new.keys()

    def end(self, status: str, moment: int) -> None:
        experiment, row, run = self._open()
        with session(self.results) as client:
            client.set_terminated(run, status, moment)
            with exclusive_writer(self.results):
                entries.update_row_status(client, experiment, row)

    def _open(self) -> tuple[str, str, str]:
        """Return the ids of the experiment, the row and the run. Whatever is missing, the database included, is created
        under a lock: other rows and trainings start at the same time."""
        if not self.opened:
            with exclusive_writer(self.results) as origin, session(self.results) as client:
                experiment = experiment_id(client, self.results, self.spec["study"])
                if known := self._known(client, experiment, "row", entries.row_id(self.spec), origin):
                    row = known[0].info.run_id
                    client.update_run(row, "RUNNING")
                else:
                    row = self._create(client, experiment, "row", origin, {})
                self.opened = experiment, row, self._run(client, experiment, origin, row)
        return self.opened

    def _run(self, client: MlflowClient, experiment: str, origin: str, row: str) -> str:
        """Return the run of an earlier attempt at the same training, or a new one. A resumed training repeats the steps
        after its checkpoint, which are not written twice."""
        known = self._known(client, experiment, "run", self.spec["id"], origin)
        unfinished = [run for run in known if entries.DIGEST not in run.data.tags]
        same = [run for run in unfinished if run.data.tags.get(entries.KEY) == self.about["key"]][:1]
        for run in unfinished:
            if run not in same and run.info.status == "RUNNING":
                entries.mark_killed(client, run)
        if not same:
            tags = {entries.KEY: self.about["key"], "mlflow.parentRunId": row}
            return self._create(client, experiment, "run", origin, tags)
        self.points = entries.points_of(client, same[0])
        run = same[0].info.run_id
        client.set_tag(run, "mlflow.parentRunId", row)
        client.update_run(run, "RUNNING")
        return run

    def _known(self, client: MlflowClient, experiment: str, kind: str, name: str, origin: str) -> list[Run]:
        found = find_runs(client, [experiment], f"tags.kind = '{kind}' and tags.run = '{name}'")
        return [run for run in found if entries.is_owned(run, origin)]

    def _create(self, client: MlflowClient, experiment: str, kind: str, origin: str, more: dict[str, str]) -> str:
        tags = entries.tags_of(self.spec, kind, origin, self.about["commit"]) | more
        run = entries.create(client, experiment, self.spec, kind, self.about["started"], tags)
        with suppress(BrokenRecord):
            client.log_inputs(run, entries.inputs_of(read_json(Path(self.about["data"]))))
        return run


def follow(about: Line, lines: SimpleQueue[Line | None]) -> None:
    """Write a training's lines until it ends. They are gathered for some seconds, so that batches are few."""
    recorder, waiting, over, warned = Recorder(about), [], False, False
    end: Line | None = None
    pause = 0.0
    while not over:
        found, over = _gathered(lines, pause)
        waiting += found
        if waiting and "status" in waiting[-1]:
            end = waiting.pop()
        try:
            if waiting or not recorder.opened:
                recorder.record(waiting)
                waiting.clear()
            if over:
                end = end or {"status": "KILLED", "time": int(1000 * time.time())}
                recorder.end(end["status"], end["time"])
            pause = min(max(2 * pause, 0.5), OFTEN)
        except Exception as error:  # whatever happens here, the training goes on
            if not warned:
                cause = without_credentials(str(error)).partition("\n")[0]
                where = without_credentials(tracking_uri(recorder.results))
                print(
                    f"WARNING: {about['spec']['id']} cannot be recorded in MLflow at {where} now ({cause}). Training "
                    f"continues; `marcos-bench track {about['spec']['study']}` will add what is missing",
                    file=sys.stderr,
                    flush=True,
                )
            warned = True
            pause = min(max(2 * pause, 1.0), SELDOM)


def _gathered(lines: SimpleQueue[Line | None], seconds: float) -> tuple[list[Line], bool]:
    """Return the lines that arrive within so many seconds, and whether they were the last."""
    found, deadline = [], time.monotonic() + seconds
    while True:
        try:
            line = lines.get(timeout=max(deadline - time.monotonic(), 0.001))
        except Empty:
            return found, False
        if line is None:
            return found, True
        found.append(line)


def _read(lines: SimpleQueue[Line | None]) -> None:
    """Pass lines on, so that the training never waits for this process. After its end, nothing more is printed, since a
    pipe that copies the training's output would wait for it, and this process ends soon, whatever a server does."""
    for text in sys.stdin:
        if text.endswith("\n"):  # else the training was killed while it wrote this
            lines.put(json.loads(text))
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    lines.put(None)
    time.sleep(entries.FINISHING)
    os._exit(1)


def main() -> None:
    os.nice(NICENESS)
    logging.disable(logging.ERROR)  # of MLflow and its libraries; the one warning that counts is printed here
    lines: SimpleQueue[Line | None] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    if about := lines.get():
        lock = entries.recording_lock(Path(about["run"]))
        lock.acquire(patience=2 * entries.FINISHING)  # the recorder of an earlier attempt may still be writing
        try:
            follow(about, lines)
        finally:
            lock.release()


if __name__ == "__main__":
    main()
