"""File locks that the kernel releases when their holder dies, and a watchdog that ends orphaned processes.

A process that is killed leaves files behind, but no ``flock``. A lock here is therefore never stale, whatever its file
says: the file only tells others who holds it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import select
import shlex
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from benchmarks.files import report_full_disk
from methods.errors import InputError

WORKFLOW_LOCK = Path("results/.workflow.lock")
SNAKEMAKE_LOCKS = Path(".snakemake/locks")
PATIENCE = 0.5  # seconds; a process that only checks a lock (``held``) also holds it for an instant
PARENT_VARIABLE = "MARCOS_BENCH_PARENT"  # holds the process id of the workflow that started a task


class Locked(InputError):
    """Raised when another live process holds the lock. The message names that process and says what to do."""


class FileLock:
    """An exclusive lock on ``path``, held from ``acquire`` to ``release`` or until the process dies."""

    def __init__(self, path: Path, task: str) -> None:
        self.path, self.task = path, task
        self._file: IO[str] | None = None

    def acquire(self, patience: float = PATIENCE) -> None:
        """Take the lock, or raise :class:`Locked` if it is not free within ``patience`` seconds."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+", encoding="utf-8")  # closed on exec, so jobs started by the holder do not hold it
        deadline = time.monotonic() + patience
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                file.close()
                raise Locked(f"{self.task} is already being done by {self.holder()}: wait for it, or stop it")
            time.sleep(0.05)
        start, command = time.strftime("%Y-%m-%d %H:%M:%S"), shlex.join(sys.argv)
        with report_full_disk(self.path.parent):
            file.truncate(0)
            json.dump({"pid": os.getpid(), "host": socket.gethostname(), "start": start, "command": command}, file)
            file.flush()
        self._file = file

    def release(self) -> None:
        """Release the lock. Its file stays: without it, a second process could lock another file of that name."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None

    def holder(self) -> str:
        """Return a description of the process that holds the lock."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not yet written, or just released
            return "another process"
        return f"process {found['pid']} on {found['host']} (since {found['start']}: {found['command']})"

    def held(self) -> bool:
        """Return whether a live process, possibly this one, holds the lock."""
        try:
            with self.path.open("r+", encoding="utf-8") as file:
                return not _try_lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()


class RunLock(FileLock):
    """A lock on a directory that tasks of a run write: one live process may write in it at a time."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / ".lock", f"work in {directory}")


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        lock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(file: IO[str], kind: int) -> None:
    """Lock an open file as ``flock`` does. Raise :class:`InputError` if its file system has no locks."""
    try:
        fcntl.flock(file, kind)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise InputError(
            f"{file.name} cannot be locked ({error.strerror}): mount its file system with locks (Lustre: `-o flock`), "
            "or name a results folder on another one"
        ) from error


def opened_by(path: Path) -> list[str]:
    """Return descriptions of the other processes that have a file open, as far as the system shows them."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it is gone, or of another user
            if process.pid != os.getpid() and str(path.resolve()) in (file.path for file in process.open_files()):
                command = " ".join(shlex.join(process.cmdline()).split())  # on one line
                found.append(f"process {process.pid} ({command[:200]})")
    return found


def workflow_lock() -> FileLock:
    """Return the lock of workflows that write into this directory's results, which several may share by links."""
    return FileLock(WORKFLOW_LOCK, f"the workflow of {WORKFLOW_LOCK.parent.resolve()}")


def clear_stale_locks() -> str | None:
    """Delete the locks of a Snakemake that was killed, before a new one looks for them. If a live process runs the
    workflow, delete nothing and return a description of that process."""
    lock = workflow_lock()
    if lock.held():
        return lock.holder()
    for path in SNAKEMAKE_LOCKS.glob("*.lock"):
        path.unlink(missing_ok=True)
    return None


def announce_parent() -> None:
    """Make the tasks that this workflow starts end when its process ends, however that happens."""
    os.environ[PARENT_VARIABLE] = str(os.getpid())


def watch_parent() -> None:
    """Exit as soon as the workflow that started this task dies, so that it cannot race the next one. No more is lost
    than with SIGKILL: every file is written to a temporary path first and then moved."""
    if parent := os.environ.get(PARENT_VARIABLE):
        if not re.fullmatch(r"[1-9][0-9]{0,8}", parent):
            raise InputError(f"{PARENT_VARIABLE} is {parent!r}, which is no process: unset it, as workflows set it")
        die_with(int(parent), "the workflow")


def die_with(pid: int, what: str) -> None:
    """End this process as soon as the process ``pid`` is gone. ``what`` names that process in the message."""
    threading.Thread(target=_exit_when_gone, args=(pid, what), name=f"watch {what}", daemon=True).start()


def _exit_when_gone(pid: int, what: str) -> None:
    if sys.platform == "linux":
        with suppress(ProcessLookupError):  # gone already
            select.select([os.pidfd_open(pid)], [], [])  # readable once it has ended, even if nobody reaps it
    else:
        import psutil

        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
    try:
        print(f"{what} (process {pid}) is gone: stopping", file=sys.stderr, flush=True)
    finally:  # printing fails if the reader of our output is gone too
        os._exit(1)
