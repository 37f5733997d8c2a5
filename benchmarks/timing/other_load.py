"""Whether a machine did other work during a measurement."""

from __future__ import annotations

import time

import psutil

MUCH = 0.05  # share of a machine's CPU time: more than system services take
IDLE = ("idle", "iowait", "guest", "guest_nice")  # `user` and `nice` already include guests' time


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
