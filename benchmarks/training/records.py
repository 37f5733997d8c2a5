"""What a training leaves besides weights: its log, its record, and the key that ties both to its settings.

A finished run is never trained again, nor lost: a second copy of its record lies beside its weights.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import checkpoints
from benchmarks.checkpoints import DIGEST, read_weights
from benchmarks.engine.adapters import whole_weights
from benchmarks.files import BrokenRecord, json_digest, read_json, report_full_disk, sync, write_json, write_text
from benchmarks.models import published_model
from benchmarks.studies.paths import DONE, Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.task_dependencies import task_modules
from methods.registry import code_digest

log = logging.getLogger(__name__)


def training_key(spec: RunSpec, paths: Paths, parent: str | None) -> str:
    """Return a digest of everything that training depends on. ``parent`` is the digest of the weights of the run that
    this one starts from. A checkpoint is resumed only if its key is the same."""
    data = read_json(paths.data / DONE)["tokenised"]
    parts = [spec.digest("train"), code_digest(spec.method, *task_modules(spec, "train")), data, parent]
    if spec.backbone.pretrained:  # a folder, or a branch on the hub, may change under its name
        parts.append(checkpoints.digest(dict(whole_weights(published_model(spec, paths.data)))))
    return json_digest(parts)


def restore_finished(spec: RunSpec, paths: Paths) -> dict[str, Any] | None:
    """If the run is already trained with today's settings, data and code, and its weights are intact, put its record
    back and return it; otherwise return None.

    Snakemake removes ``train.json`` of a job that fails, even at its very end, and of one that it is about to run. The
    proof that a run has ended therefore lies beside its weights.
    """
    try:
        record = read_json(paths.ended)
        parent = read_weights(paths.start).metadata[DIGEST] if paths.start else None
        left = {paths.weights: record["weights_sha256"]}
        left |= {paths.stage_weights(at): stage.get("weights_sha256") for at, stage in enumerate(record["stages"])}
        if record["key"] != training_key(spec, paths, parent):
            log.warning("%s was trained with other settings, data or code: it is trained anew in its place", spec.id)
            return None
        if any(read_weights(path).metadata[DIGEST] != digest for path, digest in left.items() if digest):
            return None
    except BrokenRecord:  # of a run that has not ended, for one
        return None
    log.warning("%s is trained already; to train it again, remove its folder %s", spec.id, paths.run)
    write_final_record(paths, record)
    return record


def write_final_record(paths: Paths, record: dict[str, Any]) -> None:
    """Write the record of a run that has ended, whose checkpoints nobody needs any more."""
    write_json(paths.ended, record)
    shutil.rmtree(paths.checkpoints, ignore_errors=True)
    write_json(paths.record("train"), record)


class RunLog:
    """Collect events in memory and append them to the log file on :meth:`flush`. A ``silent`` log, which every rank but
    the first has, keeps none. A ``listener`` is given every line at once, those that a resumed run keeps included."""

    def __init__(self, path: Path, silent: bool = False) -> None:
        self.path, self.silent = path, silent
        self.waiting: list[dict[str, Any]] = []
        self.listener: Callable[[dict[str, Any]], None] | None = None

    def add(self, line: dict[str, Any]) -> None:
        """Add an event. ``line`` contains the ``step`` at which it was written."""
        if not self.silent:
            self.waiting.append(line)
            self._pass_on(line)

    def flush(self) -> None:
        """Append the waiting lines to the file and sync it to disk. Call this before every checkpoint, so that the log
        never lacks anything that happened before one."""
        if self.silent:
            return
        with report_full_disk(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.waiting)
            file.flush()
            sync(self.path)
        self.waiting.clear()

    def truncate(self, step: int) -> None:
        """Drop the lines of later steps, which a resumed run will write again, and any line that was cut off."""
        if self.silent or not self.path.exists():
            return
        kept = list[str]()
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # it was cut off when its run was killed
                kept += [line] if json.loads(line)["step"] <= step else []
        write_text(self.path, "".join(line + "\n" for line in kept))
        for line in kept:
            self._pass_on(json.loads(line))

    def _pass_on(self, line: dict[str, Any]) -> None:
        if self.listener:
            self.listener(line)
