"""Whether a machine was quiet during a measurement: CPU time of other processes, and the time of a fixed piece of work.

Slowdowns of a virtual machine from outside and changes of a processor's clock rate do not show in counts of CPU time.
"""

from __future__ import annotations

import time
from statistics import median

import psutil
import torch

from methods.backbone import load_backbone

MUCH = 0.05  # share of a machine's CPU time: more than system services take
IDLE = ("idle", "iowait", "guest", "guest_nice")  # `user` and `nice` already include guests' time
SLOWER = 1.25  # factor: more than the pace varies on a quiet machine


class OtherLoad:
    """Watches the CPU time that all other processes of the machine take, from its construction on."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _others()

    def share(self) -> float:
        """Return the share of the machine's CPU time since construction that other processes took. Children of this
        process that have ended do not count as others."""
        available = (time.perf_counter() - self._began) * (psutil.cpu_count() or 1)
        return max(0.0, _others() - self._before) / available


def _others() -> float:
    """Return the CPU seconds spent on other processes since the machine started."""
    total = sum(seconds for name, seconds in psutil.cpu_times()._asdict().items() if name not in IDLE)
    return total - sum(psutil.Process().cpu_times()[:4])


class Pace:
    """Times a fixed piece of work: forward passes of a tiny transformer over a batch on the CPU, as in answers at small
    size. It slows down as much as they do, whereas plain matrix products hardly do."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self._lm = load_backbone("qwen2-tiny", vocab_size=2048).causal_lm().eval()
        self._seconds: list[float] = []

    @torch.no_grad()
    def take(self) -> None:
        """Do the work once more and time it; it takes about a tenth of a second."""
        ids = torch.ones(64, 8, dtype=torch.long)
        began = time.perf_counter()
        for _ in range(25):
            self._lm(input_ids=ids, use_cache=False)
        self._seconds.append(time.perf_counter() - began)

    def seconds(self) -> float:
        """Return the median time that the work has taken."""
        return median(self._seconds)
