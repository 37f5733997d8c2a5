"""Heartbeats: one file per rank that says how far the rank has come. The parent reads them to name a rank that hangs.

When one rank hangs, all others soon wait for it. They have come further than it has, and the counts show that. If all
hang in the same place, the counts are equal; a rank whose file is no longer written then does not even run.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ENVIRONMENT_FILE = "environment.json"  # also in the ranks' folder: variables that they share with their parent
PERIOD = 0.5  # seconds between writes
STARTUP = 600.0  # seconds that ranks have to start
FINISHED = "done"


class RankFailure(RuntimeError):
    """A rank died or hangs, and all others are stopped. ``code`` is the exit code that reports it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Beat:
    """The last message of one rank: ``count`` steps of progress so far, the last of them at ``where``; ``written``
    counts how often the file was written. ``failed``: when an error was (seconds since the epoch), or 0; ``code``: the
    exit code that it leads to."""

    rank: int
    host: str
    pid: int
    count: int
    where: str
    written: int
    failed: float = 0.0
    code: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host}): {self.where}"


def beat_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.beat"


def read_beat(folder: Path, rank: int) -> Beat | None:
    """Return the last beat of a rank, or None if it has not written one or is just writing it."""
    try:
        return Beat(**json.loads(beat_file(folder, rank).read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError):
        return None


def request_stop(folder: Path) -> None:
    """Have every rank send itself SIGTERM, whatever machine it is on, even a rank that has yet to begin."""
    (folder / "stop-requested").touch()


def stop(folder: Path) -> None:
    """Have all remaining ranks end at once, even if no signal reaches them. On a full disk this does nothing."""
    with suppress(OSError):
        (folder / "stopped").touch()


class Heartbeat:
    """Writes a rank's beats from a thread: a beat slows no training step, and a rank that waits still shows that it is
    alive. The thread ends the rank when its parent has given it up: the parent has said so, or has made a new folder
    for another attempt, whose rank of the same number this one must not be taken for."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = beat_file(folder, rank)
        self.last = Beat(rank, socket.gethostname(), os.getpid(), count=0, where="start", written=0)
        self.one_at_a_time, self.obeyed = threading.Lock(), False
        self.inode = folder.stat().st_ino
        self._write()
        threading.Thread(target=self._go_on, name="heartbeat", daemon=True).start()

    def beat(self, where: str) -> None:
        self.last.where = where
        self.last.count += 1

    def done(self) -> None:
        self.beat(FINISHED)
        self._write()

    def fail(self, code: int) -> None:
        """Record that an error ends this rank, with this exit code. A rank killed by a signal cannot do so: its
        ``failed`` stays 0."""
        self.last.failed, self.last.code = time.time(), code
        self._write()

    def _go_on(self) -> None:
        while self.last.where != FINISHED:
            time.sleep(PERIOD)
            if self._given_up():
                reason = "the launcher has given up on this rank, or another attempt has begun"
                print(f"stopping: {reason}", file=sys.stderr, flush=True)
                os._exit(1)
            self._write()
            if not self.obeyed and (self.path.parent / "stop-requested").exists():
                self.obeyed = True
                os.kill(self.last.pid, signal.SIGTERM)

    def _given_up(self) -> bool:
        try:
            return self.path.parent.stat().st_ino != self.inode or "stopped" in os.listdir(self.path.parent)
        except FileNotFoundError:
            return True
        except OSError:  # a temporary failure of a shared file system
            return False

    def _write(self) -> None:
        """Write the last beat to its file. A beat that cannot be written, as on a full disk, is skipped: the work
        itself can go on without it."""
        with self.one_at_a_time, suppress(OSError):
            self.last.written += 1
            temporary = self.path.with_suffix(".partial")
            temporary.write_text(json.dumps(asdict(self.last)), encoding="utf-8")
            temporary.replace(self.path)


def stragglers(beats: list[Beat], still: set[int]) -> list[Beat]:
    """Return the ranks that the others wait for, out of ranks that make no progress. ``still`` contains the ranks whose
    files are no longer written."""
    behind = min(beat.count for beat in beats)
    if any(beat.count > behind for beat in beats):
        return [beat for beat in beats if beat.count == behind]
    return [beat for beat in beats if beat.rank in still] or beats
