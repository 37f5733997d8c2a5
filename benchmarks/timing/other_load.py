"""Whether a machine did something else while it measured."""

from __future__ import annotations

import time

import psutil

MUCH = 0.05  # of a machine's CPU time: more than a system's own services take
IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests' time is in `user` and `nice` already


class OtherLoad:
    """Watches the CPU time that all other processes of the machine take, from its making on."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _others()

    def share(self) -> float:
        """The share of the machine's CPU time since this object was made that other processes took; what ended children
        of this process took is not theirs."""
        available = (time.perf_counter() - self._began) * (psutil.cpu_count() or 1)
        return max(0.0, _others() - self._before) / available


def _others() -> float:
    """Seconds since the machine started that were spent on other processes."""
    total = sum(seconds for name, seconds in psutil.cpu_times()._asdict().items() if name not in IDLE)
    return total - sum(psutil.Process().cpu_times()[:4])
