"""The speed of a machine between measurements, found by timing a fixed piece of work.

Slowdowns of a virtual machine from outside and changes of a processor's clock rate show in no count of CPU time.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from methods.backbone import load_backbone

SLOWER = 1.25  # factor: more than the pace varies on a quiet machine


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
