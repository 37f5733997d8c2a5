"""GPUs of this machine, each used by one process of the suite (or by the ranks of one run) at a time."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping
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
    """Call :func:`pin` for as many GPUs as an engine has on one node. With several nodes nothing is locked: whatever
    assigns them has to give each node to one run only, as SLURM does. The locks belong to this machine, which need not
    be one of the nodes, and DeepSpeed's runner takes the first GPUs of each host, whichever are pinned here."""
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
            f"the engine needs {count} GPUs, and {len(names)} are visible ({', '.join(names)}): lower `gpus`, or list "
            f"more in {CUDA_VARIABLE}"
        )
    folder = folder or Path(tempfile.gettempdir()) / f"marcos-bench-{os.getuid()}"
    job = f"{os.environ['SLURM_JOB_ID']}-" if "SLURM_JOB_ID" in os.environ else ""  # each job counts its GPUs from 0
    locks = {name: FileLock(folder / f"gpu-{job}{name}.lock", f"work on GPU {name}") for name in names}
    door = FileLock(folder / "door.lock", "choosing GPUs")  # one process at a time, or two might deadlock
    _take({"door": door}, 1, PATIENCE)
    try:
        taken = _take(locks, count, patience=0)
    finally:
        door.release()
    _held.extend(locks[name] for name in taken)
    os.environ[CUDA_VARIABLE] = ",".join(taken)
    return taken


def _take(locks: Mapping[str, FileLock], count: int, patience: float) -> list[str]:
    """Wait until this process holds ``count`` of these locks, and return their names. Log once who holds the others."""
    taken: list[str] = []
    reported: set[str] = set()
    while True:
        busy: set[str] = set()
        for name in locks:
            if name not in taken and len(taken) < count:
                try:
                    locks[name].acquire(patience)
                    taken.append(name)
                except Locked as error:
                    busy.add(str(error))
        if len(taken) == count:
            return taken
        for message in busy - reported:
            log.warning("waiting: %s", message)
        reported |= busy
        time.sleep(POLL)
