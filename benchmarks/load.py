"""Whether a machine did something else while it measured, or was slower than at other times."""

from __future__ import annotations

import time
from statistics import median

import psutil
import torch

MUCH = 0.05  # of a machine's CPU time: more than a system's own services take
SLOWER = 1.25  # times: more than a quiet machine's pace varies
IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests' time is in `user` and `nice` already


class OtherLoad:
    """Watches the CPU time that all other processes of the machine take, from its making on."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _others()

    def share(self) -> float:
        """Of the CPU time that the machine had since then; what children of this process took that have ended counts
        as its own."""
        available = (time.perf_counter() - self._began) * (psutil.cpu_count() or 1)
        return max(0.0, _others() - self._before) / available


class Pace:
    """How fast the machine's CPUs are, between measurements. What slows a virtual machine down from outside, or a
    processor's clock, is in no count of CPU time."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def take(self) -> None:
        """Do a fixed piece of work, of about a tenth of a second: products of large and small matrices."""
        few, many, square = torch.ones(64, 64), torch.ones(64, 256), torch.ones(512, 512)
        began = time.perf_counter()
        for _ in range(50):
            for _ in range(10):
                (few @ many).relu().sum()
            square @ square
        self._seconds.append(time.perf_counter() - began)

    def seconds(self) -> float:
        """Of that work, the median."""
        return median(self._seconds)


def _others() -> float:
    """Seconds since the machine started that were spent on other processes."""
    total = sum(seconds for name, seconds in psutil.cpu_times()._asdict().items() if name not in IDLE)
    return total - sum(psutil.Process().cpu_times()[:4])
