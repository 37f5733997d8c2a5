"""What a run says of itself while it trains: ``log.jsonl``, a line of JSON for each event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.files import space_in, sync, write_text


class RunLog:
    """Lines wait in memory until :meth:`flush`. A ``silent`` log, that of any rank but the first, keeps none."""

    def __init__(self, path: Path, silent: bool = False) -> None:
        self.path, self.silent = path, silent
        self.waiting: list[dict[str, Any]] = []

    def add(self, line: dict[str, Any]) -> None:
        """``line`` says at which ``step`` it was written."""
        if not self.silent:
            self.waiting.append(line)

    def flush(self) -> None:
        """Append the waiting lines to the file, down to the disk. To be called before every checkpoint, so that the log
        never lacks what happened before one."""
        if self.silent:
            return
        with space_in(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.waiting)
            file.flush()
            sync(self.path)
        self.waiting.clear()

    def truncate(self, step: int) -> None:
        """Drop lines of later steps, which a resumed run will write again, and one that was cut off."""
        if self.silent or not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if (written := _step_of(line)) is not None and written <= step]
        write_text(self.path, "".join(line + "\n" for line in kept))


def _step_of(line: str) -> int | None:
    """None if the line was cut off when its run was killed."""
    try:
        return json.loads(line)["step"]
    except json.JSONDecodeError:
        return None
