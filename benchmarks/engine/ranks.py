"""The processes that train one run together, and their communication. Only the first of them writes records."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.engine.device import pick_device
from benchmarks.processes import require_deepspeed
from benchmarks.processes.heartbeat import STARTUP, Heartbeat

T = TypeVar("T")


class Ranks:
    """A process on its own; :class:`ProcessGroup` has the same methods for several processes. All ranks make the same
    calls in the same order."""

    rank, world = 0, 1
    local_rank, local_world, node = 0, 1, 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        return pick_device()

    def beat(self, where: str) -> None:
        """Note that this rank has reached ``where``. All ranks make the same beats in the same order."""

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums over all ranks, which must all give the same names."""
        return dict(values)

    def all_reduce(self, own: Tensor, counts: bool = True) -> Tensor:
        """Return the sum of a tensor over all ranks for which it ``counts``. It stays on the device, so that no host
        waits for it."""
        return own

    def from_first(self, value: T) -> T:
        """Return the first rank's value on every rank. It must be a small, plain Python value."""
        return value

    def gather(self, value: T) -> list[T]:
        """Return every rank's value on every rank. These must be small, plain Python values."""
        return [value]

    def wait(self, where: str) -> None:
        """Wait until all ranks have made this call."""


ALONE = Ranks()  # it has no state


class ProcessGroup(Ranks):
    """The ranks of ``torch.distributed``: NCCL between GPUs, gloo between CPU processes."""

    def __init__(self, heartbeat: Heartbeat | None) -> None:
        import torch.distributed as group

        self._group, self._heartbeat = group, heartbeat
        self.rank, self.world = group.get_rank(), group.get_world_size()
        self.local_world = int(os.environ["LOCAL_WORLD_SIZE"])
        # Ranks are placed in blocks. LOCAL_RANK is the number of the GPU: 0 on each rank that sees its own alone
        self.node, self.local_rank = divmod(self.rank, self.local_world)

    @property
    def device(self) -> torch.device:
        found = pick_device()
        return torch.device("cuda", torch.cuda.current_device()) if found.type == "cuda" else found

    def beat(self, where: str) -> None:
        if self._heartbeat:
            self._heartbeat.beat(where)

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        self.beat("a sum over ranks")
        names = sorted(values)
        total = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self.device)
        self._group.all_reduce(total)
        return dict(zip(names, total.tolist(), strict=True))

    def all_reduce(self, own: Tensor, counts: bool = True) -> Tensor:
        self.beat("a statistic over ranks")
        total = own.clone() if counts else torch.zeros_like(own)
        self._group.all_reduce(total)
        return total

    def from_first(self, value: T) -> T:
        self.beat("news from rank 0")
        values = [value]
        self._group.broadcast_object_list(values, device=self.device)
        return values[0]

    def gather(self, value: T) -> list[T]:
        self.beat("news from all ranks")
        values: list[T] = [value] * self.world
        self._group.all_gather_object(values, value)
        return values

    def wait(self, where: str) -> None:
        self.beat(where)
        self._group.barrier()


@contextmanager
def join(seconds: float, heartbeat: Heartbeat | None = None) -> Iterator[ProcessGroup]:
    """Join the process group that the environment describes (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` …) until the
    block ends.

    The launcher gives up after ``seconds`` without progress (at least :data:`STARTUP` until all ranks have begun) and
    names the rank that hangs. The timeout of the groups is somewhat longer: it ends the ranks that wait for another
    one, and they would be named instead.
    """
    require_deepspeed()
    import deepspeed
    from deepspeed.utils import groups

    # Otherwise DeepSpeed compiles an operator for CPU ranks, or waits for the lock of a rank that died
    setattr(deepspeed.ops, "__compatible_ops__", {})  # noqa: B010
    device = pick_device()
    if device.type == "cuda":
        # If a scheduler shows each rank its own GPU alone, that is number 0. DeepSpeed reads the variable too
        os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        leave_nvml_out()
    timeout = timedelta(seconds=1.2 * max(seconds, STARTUP) + 30)
    deepspeed.init_distributed(
        dist_backend="nccl" if device.type == "cuda" else "gloo",
        timeout=timeout,
        auto_mpi_discovery=False,
        verbose=False,
    )
    # ZeRO communicates over a clone of the group. DeepSpeed would make it with NCCL's default timeout of ten minutes
    groups._WORLD_GROUP = torch.distributed.new_group(timeout=timeout)
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # from DeepSpeed's own calls
    yield ProcessGroup(heartbeat)  # a rank that fails just ends: leaving the group would mean waiting for others
    deepspeed.comm.destroy_process_group()  # PyTorch's own call would leave dead subgroups behind for the next join


def leave_nvml_out() -> None:
    """Have DeepSpeed ask PyTorch how much memory is free. If pynvml is installed, DeepSpeed would ask that, and fail if
    ``CUDA_VISIBLE_DEVICES`` has UUIDs or parts of GPUs (MIG), because it takes all names for numbers."""
    from deepspeed.accelerator import cuda_accelerator, get_accelerator

    get_accelerator()  # looks for pynvml when it is first called
    cuda_accelerator.pynvml = None
