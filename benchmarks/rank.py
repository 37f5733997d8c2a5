"""One rank of a run, as the launcher starts it: ``python -m benchmarks.rank``."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from benchmarks.processes import collect_garbage_less_often
from benchmarks.processes.heartbeat import ENVIRONMENT_FILE, Heartbeat
from benchmarks.processes.locks import die_with
from methods.errors import InputError


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["train", "time"])
    parser.add_argument(
        "--folder", type=Path, required=True, help="of heartbeats and logs; holds spec.json and the environment"
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--parent", required=True, help="PID@HOST of the process that all ranks end with")
    parser.add_argument("--rendezvous", help="HOST:PORT, if the launcher puts none into the environment")
    return parser.parse_args()


def complete_environment(gpus: int, rendezvous: str | None) -> int:
    """Add the variables that a process group reads from the environment and the launcher left out. Return the rank."""
    slurm = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
    for name, other in slurm.items():
        os.environ.setdefault(name, os.environ.get(other, ""))
    if rendezvous:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = rendezvous.rsplit(":", 1)
    os.environ["LOCAL_WORLD_SIZE"] = str(gpus)
    return int(os.environ["RANK"])


def log_to(path: Path) -> None:
    """Redirect everything that this process prints to a file, including the output of C libraries."""
    file = path.open("ab", buffering=0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file.fileno(), stream.fileno())


def main() -> None:
    collect_garbage_less_often()
    given = arguments()
    carried = given.folder / ENVIRONMENT_FILE
    os.environ.update(json.loads(carried.read_text(encoding="utf-8")))  # before torch is imported, as torch reads it
    from benchmarks.files import read_json
    from benchmarks.processes.preemption import EXIT_CODE, Preempted, unblock_sigterm
    from benchmarks.studies.paths import SPEC
    from benchmarks.studies.runs import RunSpec

    unblock_sigterm()
    spec = RunSpec.model_validate(read_json(given.folder / SPEC))
    rank = complete_environment(spec.engine.gpus, given.rendezvous)
    log_to(given.folder / f"rank-{rank}.log")
    heartbeat = Heartbeat(given.folder, rank)
    faulthandler.register(signal.SIGUSR1)  # the parent sends it to a rank that hangs, to get a stack trace
    pid, host = given.parent.split("@", 1)
    if host == socket.gethostname():
        die_with(int(pid), "the parent of all ranks")
    logging.basicConfig(level=logging.ERROR if rank else logging.WARNING, format="%(levelname)s: %(message)s")

    from benchmarks.engine.ranks import join
    from benchmarks.timing.task import time_as
    from benchmarks.training.loop import train_as

    try:
        with join(spec.engine.hang_seconds, heartbeat) as ranks:
            gc.freeze()  # imported objects stay: garbage collection at the end of each stage skips them
            {"train": train_as, "time": time_as}[given.task](ranks, spec, given.results)
    except BaseException as error:
        code = 2 if isinstance(error, InputError) else EXIT_CODE if isinstance(error, Preempted) else 1
        heartbeat.fail(code)
        if code == 2:  # bad input: one message instead of a traceback, as in the CLI
            print(f"error: {error}", file=sys.stderr)
        elif code == 1:
            traceback.print_exc()
        leave(code)
    heartbeat.done()


def leave(code: int) -> NoReturn:
    """End this process at once. Python's own way out frees the process group, which may wait for the other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
