"""GPUs of this machine, each used by one process of the suite (or by the ranks of one run) at a time."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path

import torch

from benchmarks.processes.locks import PATIENCE, FileLock, Locked
from benchmarks.studies.specs import EngineSpec
from methods.errors import InputError

log = logging.getLogger(__name__)
CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
NONE = ("", "-1", "NoDevFiles")  # names that stand for no GPU
POLL = 1.0  # seconds
_held: list[FileLock] = []  # locks held until this process ends


def visible() -> list[str]:
    """Return the GPUs that this process may use, without initialising any. As in CUDA, a name that stands for no GPU
    hides all names after it."""
    named = os.environ.get(CUDA_VARIABLE)
    if named is not None:
        return list(takewhile(lambda name: name not in NONE, (name.strip() for name in named.split(","))))
    return [str(index) for index in range(torch.cuda.device_count())]


def pin_for(engine: EngineSpec) -> None:
    """Call :func:`pin` for as many GPUs as an engine has on one node. With several nodes nothing is locked.

    Whatever assigns nodes to runs then has to give each node to one run only, as SLURM does: the locks belong to this
    machine, which need not be one of the nodes, and DeepSpeed's runner takes the first GPUs of each host, whichever are
    pinned here.
    """
    if engine.nodes == 1:
        pin(engine.gpus)


def pin(count: int, folder: Path | None = None) -> list[str]:
    """Wait for ``count`` GPUs that no other process holds, hide all others from this process, and return their names.
    Call this before CUDA is used. Without GPUs it does nothing; raise :class:`InputError` if there are fewer than
    ``count``. The locks are released when the process ends, however it ends."""
    names = list(dict.fromkeys(visible()))
    if not names:
        return []
    if len(names) < count:
        raise InputError(
            f"this machine shows {len(names)} GPUs ({', '.join(names)}), and the engine asks for "
            f"{count}: lower `gpus`, or widen {CUDA_VARIABLE}"
        )
    folder = folder or Path(tempfile.gettempdir()) / f"marcos-bench-{os.getuid()}"
    job = f"{os.environ['SLURM_JOB_ID']}-" if "SLURM_JOB_ID" in os.environ else ""  # each job counts its GPUs from 0
    own: dict[str, FileLock] = {}

    def take_free() -> list[Locked]:
        busy: list[Locked] = []
        for name in names:
            if len(own) < count and name not in own:
                lock = FileLock(folder / f"gpu-{job}{name}.lock", f"work on GPU {name}")
                if found := _take(lock, patience=0):
                    busy += found
                else:
                    own[name] = lock
        return busy if len(own) < count else []

    door = FileLock(folder / "door.lock", "choosing GPUs")  # one process at a time, or two might deadlock
    _until_free(lambda: _take(door))
    try:
        _until_free(take_free)
    finally:
        door.release()
    _held.extend(own.values())
    os.environ[CUDA_VARIABLE] = ",".join(own)
    return list(own)


def _take(lock: FileLock, patience: float = PATIENCE) -> list[Locked]:
    """Take a lock. Return what is in the way: nothing, or that another process holds it."""
    try:
        lock.acquire(patience)
    except Locked as error:
        return [error]
    return []


def _until_free(take: Callable[[], Iterable[Locked]]) -> None:
    """Call ``take`` until nothing is in its way, and log once who was."""
    reported: set[str] = set()
    while messages := {str(error) for error in take()}:
        for message in messages - reported:
            log.warning("waiting: %s", message)
        reported |= messages
        time.sleep(POLL)
