"""Locks are freed with their holder and name it while it lives, and a workflow's orphans end."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.processes.locks import (
    PARENT_VARIABLE,
    SNAKEMAKE_LOCKS,
    WORKFLOW_LOCK,
    Locked,
    RunLock,
    clear_stale_locks,
    workflow_lock,
)
from benchmarks.tracking.store import exclusive_writer
from conftest import ROOT
from methods.errors import InputError

START = "import sys, time; from pathlib import Path; from benchmarks.processes.locks import *; "
HOLD_RUN = START + "lock = RunLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); time.sleep(60)"
HOLD_WORKFLOW = START + "lock = workflow_lock(); lock.acquire(); print('held', flush=True); time.sleep(60)"
WATCH = "import time; from benchmarks.processes.locks import watch_parent; "
WATCH += "watch_parent(); print('on', flush=True); time.sleep(60)"


@contextmanager
def process(code: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process, and wait for its first line of output."""
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert started.stdout and started.stdout.readline(), "it ended before its first line"
        yield started
    finally:
        started.kill()
        started.wait()


def test_second_process_is_told_who_holds_the_run(tmp_path: Path) -> None:
    with process(HOLD_RUN, str(tmp_path)) as holder, pytest.raises(Locked, match=f"process {holder.pid} on .*stop"):
        RunLock(tmp_path).acquire()


def test_lock_is_free_after_release_and_after_sigkill(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        pass
    with process(HOLD_RUN, str(tmp_path)) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with RunLock(tmp_path):
            assert RunLock(tmp_path).held()
    assert not RunLock(tmp_path).held()


def test_jobs_of_the_holder_do_not_hold_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        job = subprocess.Popen(["sleep", "60"])
    try:
        assert not RunLock(tmp_path).held()
    finally:
        job.kill()
        job.wait()


def test_only_locks_without_a_live_holder_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SNAKEMAKE_LOCKS.mkdir(parents=True)
    (stale := SNAKEMAKE_LOCKS / "0.output.lock").write_text("results/table_main.md\n", encoding="utf-8")
    with process(HOLD_WORKFLOW) as holder:
        assert f"process {holder.pid}" in str(clear_stale_locks())
        assert stale.exists()
    assert clear_stale_locks() is None
    assert not stale.exists()
    with workflow_lock():
        assert f'"pid": {os.getpid()}' in WORKFLOW_LOCK.read_text(encoding="utf-8")


def test_task_ends_with_the_workflow_that_started_it() -> None:
    workflow = subprocess.Popen(["sleep", "60"])
    with process(WATCH, **{PARENT_VARIABLE: str(workflow.pid)}) as task:
        assert task.poll() is None
        workflow.kill()
        workflow.wait()
        assert task.wait(timeout=60) == 1


def test_task_without_a_workflow_goes_on() -> None:
    with process(WATCH, **{PARENT_VARIABLE: ""}) as task:
        time.sleep(0.2)
        assert task.poll() is None


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(InputError, match=r"\.lock cannot be locked .*: mount its file system with locks"):
        RunLock(tmp_path).acquire()
    with pytest.raises(InputError, match=r"\.mlflow\.lock cannot be locked"), exclusive_writer(tmp_path):
        pass
