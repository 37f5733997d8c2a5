"""How fast a machine is between measurements, by a fixed piece of work.

What slows a virtual machine down from outside, or a processor's clock, is in no count of CPU time.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from methods.backbone import load_backbone

SLOWER = 1.25  # times: more than the pace of a quiet machine varies


class Pace:
    """The work is that of answers at small size: passes of a tiny transformer over a batch, on the CPU. It slows down
    as much as they do, where products of matrices alone hardly do."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self._lm = load_backbone("qwen2-tiny", vocab_size=2048).causal_lm().eval()
        self._seconds: list[float] = []

    @torch.no_grad()
    def take(self) -> None:
        """Do the work, of about a tenth of a second, once more."""
        ids = torch.ones(64, 8, dtype=torch.long)
        began = time.perf_counter()
        for _ in range(25):
            self._lm(input_ids=ids, use_cache=False)
        self._seconds.append(time.perf_counter() - began)

    def seconds(self) -> float:
        """The median time of the work that was done."""
        return median(self._seconds)
