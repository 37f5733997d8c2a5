"""Runs a task on all ranks of a run: starts them, watches over them, and ends them all when one dies or hangs.

On one machine, DeepSpeed's launcher starts the ranks. On several, its runner does so over a hostfile, or ``srun``
inside a SLURM job. The output of each rank is in ``ranks/TASK/rank-N.log`` in the run's folder, and that of the
previous attempt in ``ranks/TASK-before``. The output of rank 0 is also printed here. The folder must be on a file
system that all nodes share.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from benchmarks.files import write_json
from benchmarks.processes import require_deepspeed
from benchmarks.processes.devices import CUDA_VARIABLE, visible
from benchmarks.processes.heartbeat import (
    ENVIRONMENT_FILE,
    FINISHED,
    STARTUP,
    Beat,
    RankFailure,
    read_beat,
    request_stop,
    stop,
    stragglers,
)
from benchmarks.processes.kernels import PORTABLE
from benchmarks.processes.preemption import EXIT_CODE, block_sigterm, defer_signals
from benchmarks.studies.paths import SPEC, Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import EngineSpec
from methods.errors import InputError

HOSTFILE_VARIABLE = "MARCOS_BENCH_HOSTFILE"
POLL = 0.1  # seconds
GRACE = 10.0  # seconds that a launcher has to end all ranks once one has ended
MODULE = "benchmarks.rank"
# Variables that ranks get through a file, because a runner over a hostfile passes on hardly any. No tokens: others may
# be able to read the file
CARRIED = ("MARCOS_BENCH_", "OMP_", "LOCAL_SIZE", "CUBLAS_", "HF_HOME", "HF_ENDPOINT", "HF_HUB_", "HF_DATASETS_")
CARRIED += ("PYTORCH_", "TORCH", "TRITON_", *PORTABLE)  # memory allocator, compiler, kernels


def run_ranks(spec: RunSpec, results: Path, task: Literal["train", "time"]) -> None:
    """Run ``task`` on the ranks of a run's engine. The caller holds the run's lock."""
    require_deepspeed()
    folder, threads = Paths(results, spec).ranks / task, spec.timing_threads if task == "time" else spec.threads
    empty_folder(folder)
    write_json(folder / SPEC, spec.model_dump(mode="json"))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "LOCAL_SIZE": str(spec.engine.gpus)}
    carried = {name: value for name, value in environment.items() if name.startswith(CARRIED)}
    if spec.engine.nodes == 1 and not visible():
        carried[CUDA_VARIABLE] = ""  # else the launcher would number GPUs itself, and show the ranks those hidden here
    if spec.engine.nodes > 1 and (uri := os.environ.get("MLFLOW_TRACKING_URI")):
        # An address may have a password: what is trained is then not in MLflow before `track`
        carried |= {"MARCOS_BENCH_LIVE": "no"} if "@" in uri else {"MLFLOW_TRACKING_URI": uri}
    write_json(folder / ENVIRONMENT_FILE, carried)
    given = [task, "--folder", str(folder.resolve()), "--results", str(results.resolve())]
    given += ["--parent", f"{os.getpid()}@{socket.gethostname()}"]
    # A scheduler sends SIGTERM to every process of a job. The launcher is shielded from it, because it would kill the
    # ranks 30 seconds later, whether or not their checkpoint is written
    with (folder / "launcher.log").open("wb") as log, block_sigterm():
        launcher = subprocess.Popen(
            command(spec.engine, threads, given), env=environment, stdout=log, stderr=log, start_new_session=True
        )
    watch = Watch(launcher, folder, spec.engine)
    try:
        with defer_signals(watch.pass_on):
            watch.until_done()
    finally:
        watch.kill()


def empty_folder(folder: Path) -> None:
    """Create an empty folder. That of the previous attempt stays beside it, since an error message may refer to it."""
    before = folder.with_name(f"{folder.name}-before")
    if folder.exists():
        shutil.rmtree(before, ignore_errors=True)
        folder.rename(before)
    folder.mkdir(parents=True)


def command(engine: EngineSpec, threads: int, given: list[str]) -> list[str]:
    """Return the command that starts all ranks, with ``threads`` threads each."""
    port = free_port()
    python = [sys.executable, "-u", "-m"]
    if engine.nodes == 1:
        devices = visible()[: engine.gpus]
        slots = devices if len(devices) == engine.gpus else list(range(engine.gpus))
        world = base64.urlsafe_b64encode(json.dumps({"localhost": slots}).encode()).decode()
        place = [f"--world_info={world}", "--master_addr=127.0.0.1", f"--master_port={port}"]
        return [*python, "deepspeed.launcher.launch", *place, "--no_local_rank", "--module", MODULE, *given]
    if "SLURM_JOB_ID" in os.environ:
        tasks = [f"--nodes={engine.nodes}", f"--ntasks={engine.ranks}", f"--ntasks-per-node={engine.gpus}"]
        tasks += [f"--cpus-per-task={threads}"]  # srun does not inherit it from its job
        tasks += ["--distribution=block"]  # the ranks of a node follow one another, whatever the site's default
        meet = ["--rendezvous", f"{socket.gethostname()}:{port}"]
        return ["srun", *tasks, "--overlap", "--kill-on-bad-exit=1", *python, MODULE, *given, *meet]
    if hostfile := os.environ.get(HOSTFILE_VARIABLE):
        if not os.path.isfile(hostfile):
            raise InputError(f"{HOSTFILE_VARIABLE} names {hostfile}, which is not a file: name a DeepSpeed hostfile")
        size = [f"--num_nodes={engine.nodes}", f"--num_gpus={engine.gpus}", f"--master_port={port}"]
        runner = [*python, "deepspeed.launcher.runner", f"--hostfile={hostfile}", *size]
        return [*runner, "--no_local_rank", "--module", MODULE, *given]
    raise InputError(
        f"the engine asks for {engine.nodes} nodes: run inside a SLURM job of as many, or name a hostfile of "
        f"DeepSpeed in {HOSTFILE_VARIABLE}"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Watch:
    """Watches over one launcher and its ranks."""

    def __init__(self, launcher: subprocess.Popen[bytes], folder: Path, engine: EngineSpec) -> None:
        self.launcher, self.folder, self.engine = launcher, folder, engine
        self.printed = 0
        self.moved = time.monotonic()  # when a rank last made progress
        self.beats: dict[int, Beat] = {}
        self.written: dict[int, float] = {}  # when each rank's file was last seen to change
        self.dead: Beat | None = None  # the rank that ended first
        self.status: int | None = None  # its exit status, if that was seen
        self.told_to_go = False

    def until_done(self) -> None:
        """Return when all ranks are done, or raise :class:`RankFailure`."""
        gone = None
        while self.launcher.poll() is None:
            time.sleep(POLL)
            self._look()
            if gone is None and self.dead:
                gone = time.monotonic()
            if gone and time.monotonic() - gone > GRACE:
                self._signal(signal.SIGKILL)  # the launcher waits for them, then reports how the first one died
            if self._finished() and time.monotonic() - self.moved > GRACE:
                return  # whatever else the launcher waits for
            if time.monotonic() - self.moved > self._patience():
                raise self._hang()
        self._look()
        if not self._finished():
            raise self._failure(self.launcher.returncode)

    def _finished(self) -> bool:
        """Return whether all ranks have done their work, all of which is written then."""
        return all(beat.where == FINISHED for beat in self._all())

    def _patience(self) -> float:
        """Return the seconds without progress that count as hanging: until all ranks have begun, at least STARTUP."""
        begun = len(self.beats) == self.engine.ranks and all(beat.count for beat in self.beats.values())
        return self.engine.hang_seconds if begun else max(self.engine.hang_seconds, STARTUP)

    def _all(self) -> list[Beat]:
        """Return the last beats of all ranks, with a placeholder for each rank that has never beaten."""
        ranks = range(self.engine.ranks)
        return [self.beats.get(rank, Beat(rank, "an unknown host", 0, -1, "not started", 0)) for rank in ranks]

    def _look(self) -> None:
        self._print_first()
        for rank in range(self.engine.ranks):
            beat, before = read_beat(self.folder, rank), self.beats.get(rank)
            if beat and (before is None or beat.written != before.written):
                self.written[rank] = time.monotonic()
                if before is None or beat.count != before.count:
                    self.moved = time.monotonic()
                self.beats[rank] = beat
        local = self._local()
        gone = [rank for rank, beat in local.items() if not alive(beat.pid)]
        if gone and not self.dead:  # the last beats of ranks may be newer than those read above
            last = {rank: read_beat(self.folder, rank) or beat for rank, beat in local.items()}
            # The first that failed: its neighbours lose their connections, and may exit before it does. A killed rank
            # has reported no error, so its `failed` of 0 comes first
            failed = [beat for rank, beat in last.items() if rank in gone or beat.failed]
            self.dead = min(failed, key=lambda beat: beat.failed)
            self.status = exit_status(self.dead.pid)

    def _local(self) -> dict[int, Beat]:
        """Return the beats of the ranks on this machine that are not done."""
        here = socket.gethostname()
        return {rank: beat for rank, beat in self.beats.items() if beat.host == here and beat.where != FINISHED}

    def _print_first(self) -> None:
        """Print what rank 0 has logged since the last look."""
        path = self.folder / "rank-0.log"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self.printed)
                text = file.read()
            self.printed += len(text)
            sys.stderr.write(text.decode(errors="replace"))
            sys.stderr.flush()

    def _hang(self) -> RankFailure:
        now = time.monotonic()
        still = {rank for rank in range(self.engine.ranks) if now - self.written.get(rank, 0.0) > 5.0}
        self._signal(signal.SIGUSR1)  # each rank writes its stack trace to its log
        time.sleep(0.5)
        named = stragglers(self._all(), still)
        if len(named) == self.engine.ranks > 1:
            who = f"no rank makes progress, and none is behind the others: look at the network between them; {named[0]}"
        else:
            who = f"{', '.join(map(str, named))}: it hangs, and all others wait for it"
        return RankFailure(
            f"nothing has moved for {self._patience():g} s. {who}. All ranks are stopped; their "
            f"logs are in {self.folder}",
            EXIT_CODE,
        )

    def _failure(self, code: int) -> RankFailure:
        if self.status is not None:  # the launcher may have seen only ranks that failed because this one was gone
            code = self.status
        number = 256 - code if 192 < code < 256 else -code  # launchers pass on a negative status modulo 256
        if self.told_to_go:  # all have saved, whatever error a rank reported that waited for another
            cause, code = "because it was told to stop", EXIT_CODE
        elif self.dead and self.dead.failed:
            cause, code = f"with exit code {self.dead.code}", self.dead.code
        elif 0 < number < 64:
            cause, code = f"by {signal.Signals(number).name}", 128 + number
        elif self.dead and self.status is None and any(beat.failed for beat in self._all()):
            # The launcher saw a rank that failed because of this one, and cleared this one away: it cannot be asked
            cause, code = "by a signal that nobody saw, most likely SIGKILL", 128 + signal.SIGKILL
        else:
            cause, code = f"with exit code {code}", code or 1
        who = str(self.dead) if self.dead else "a rank"
        log = self.folder / (f"rank-{self.dead.rank}.log" if self.dead else "launcher.log")
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]) if log.exists() else ""
        return RankFailure(f"{who}: ended {cause}; all others are stopped. The end of {log}:\n{tail}", code)

    def pass_on(self) -> None:
        """Tell the ranks to stop: they save their state and exit."""
        self.told_to_go = True
        request_stop(self.folder)

    def _signal(self, number: signal.Signals) -> None:
        for beat in self._local().values():
            with suppress(ProcessLookupError):
                os.kill(beat.pid, number)

    def kill(self) -> None:
        """Kill whatever is left of the launcher and of the ranks, on this machine and on others."""
        stop(self.folder)
        with suppress(ProcessLookupError):
            os.killpg(self.launcher.pid, signal.SIGKILL)
            self.launcher.wait()


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie (it has ended, but its parent has not noticed yet) does not."""
    return _state(pid)[:1] not in ([], ["Z"], ["X"])


def exit_status(pid: int) -> int | None:
    """Return the exit status of a zombie, negative for a signal; None if the process still runs or is gone."""
    state = _state(pid)
    return os.waitstatus_to_exitcode(int(state[-1])) if state[:1] == ["Z"] else None


def _state(pid: int) -> list[str]:
    """Return a process's fields in proc_pid_stat(5), from its state to its exit status, or [] if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []
