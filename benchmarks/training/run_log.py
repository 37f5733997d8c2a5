"""The log of a training run: ``log.jsonl``, one line of JSON per event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.files import space_in, sync, write_text


class RunLog:
    """Collect events in memory and append them to the log file on :meth:`flush`. A ``silent`` log, which every rank but
    the first has, keeps none."""

    def __init__(self, path: Path, silent: bool = False) -> None:
        self.path, self.silent = path, silent
        self.waiting: list[dict[str, Any]] = []

    def add(self, line: dict[str, Any]) -> None:
        """Add an event. ``line`` contains the ``step`` at which it was written."""
        if not self.silent:
            self.waiting.append(line)

    def flush(self) -> None:
        """Append the waiting lines to the file and sync it to disk. Call this before every checkpoint, so that the log
        never lacks anything that happened before one."""
        if self.silent:
            return
        with space_in(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.waiting)
            file.flush()
            sync(self.path)
        self.waiting.clear()

    def truncate(self, step: int) -> None:
        """Drop the lines of later steps, which a resumed run will write again, and any line that was cut off."""
        if self.silent or not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if (written := _step_of(line)) is not None and written <= step]
        write_text(self.path, "".join(line + "\n" for line in kept))


def _step_of(line: str) -> int | None:
    """Return the step of a line, or None if the line was cut off when its run was killed."""
    try:
        return json.loads(line)["step"]
    except json.JSONDecodeError:
        return None
