"""What one run will take, and what follows: hours, whether it fits on a GPU, and what to change if it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.plan.hardware import GPU
from benchmarks.plan.memory import ZERO, Memory
from benchmarks.studies.micro_batches import parts_of
from benchmarks.studies.runs import RunSpec
from methods.registry import get_method

USABLE = 0.92  # share of a GPU's memory: the rest is its context and gaps between tensors
LAUNCH = 0.004  # seconds for a layer, forward and backward: Coconut's and CODI's layers took 4.2 and 5.6 ms on an H200


@dataclass(frozen=True)
class RunPlan:
    """What one run takes. ``layers``: the number of layers that one micro-batch of each step goes through in sequence,
    summed over all steps. ``disk``: peak bytes while it trains; ``left``: bytes of the weights that stay. ``row``:
    bytes that one of the longest rows takes in a pass. ``basis``: where the lengths come from; ``lengths``: a sample of
    example lengths, in tokens. ``even_passes``: see :attr:`Method.even_passes`."""

    run: RunSpec
    parameters: int
    tokens_per_epoch: float
    epochs: float
    flops: float
    layers: float
    memory: Memory
    disk: float
    left: float
    row: float
    basis: str
    lengths: Sequence[int]
    even_passes: bool = True

    @property
    def ranks(self) -> int:
        return self.run.engine.ranks

    @property
    def needed(self) -> float:
        """Bytes on each GPU, with the study's own settings."""
        return self.needed_at(self.run.engine.zero_stage)

    def needed_at(self, stage: int) -> float:
        """Return the bytes on each GPU at a ZeRO stage. From the study's own stage on, what the study offloads is not
        counted; a lower stage may not be able to offload it."""
        engine = self.run.engine
        return self.memory.on(self.ranks, stage, engine.offload if stage >= engine.zero_stage else "none")

    @property
    def parts(self) -> float:
        """Micro-batches of a step, which :meth:`Engine.deal` deals to the ranks: the mean over batches of the sampled
        ``lengths``."""
        return fmean(self._parts)

    @property
    def passes(self) -> float:
        """Micro-batches of a step on the rank that has most of them: the mean over batches of the sampled
        ``lengths``."""
        return fmean(math.ceil(parts / self.ranks) for parts in self._parts)

    @property
    def _parts(self) -> list[int]:
        """Micro-batches of a step, for a batch of each of the sampled ``lengths``."""
        run = self.run
        return [parts_of(run.training.batch_size, self.ranks, run.engine, length) for length in self.lengths]

    @property
    def occupancy(self) -> float:
        """Share of the ranks' time in which they work. The first rank has most examples of a step, and ranks with fewer
        wait for it."""
        batch = self.run.training.batch_size
        most = fmean(
            sum(math.ceil((batch - part) / parts) for part in range(0, parts, self.ranks)) for parts in self._parts
        )
        return batch / (most * self.ranks)

    def hours(self, gpu: GPU, utilisation: float) -> float:
        return max(self._computing(gpu, utilisation), self._launching()) / 3600

    def waits_for_host(self, gpu: GPU, utilisation: float) -> bool:
        return self._launching() > self._computing(gpu, utilisation)

    def _computing(self, gpu: GPU, utilisation: float) -> float:
        """Return the seconds that the GPUs take to compute."""
        busy = self.ranks * self.occupancy
        return self.flops / (busy * gpu.peak(self.run.engine.precision) * utilisation)

    def _launching(self) -> float:
        """Return the seconds that the host of the busiest rank takes to launch the layers."""
        return self.layers * self.passes * LAUNCH

    def fits(self, gpu: GPU) -> bool:
        return self.needed <= USABLE * gpu.memory

    def advice(self, gpu: GPU) -> str:
        """Return what to change so that the run fits."""
        room = USABLE * gpu.memory
        own = self.run.engine.zero_stage
        stages = ZERO if self.even_passes else ZERO[:-1]
        for stage in stages[own + 1 :]:
            if self.needed_at(stage) <= room:
                return f"DOES NOT FIT: set {self._stage(stage)}"
        for stage in dict.fromkeys((own, stages[-1])):
            room_for = math.floor((room - self.needed_at(stage) + self.memory.activations) / self.row)
            if room_for >= 1:
                more = "" if stage == own else f"{self._stage(stage)} and "
                return f"DOES NOT FIT: set {more}{self._micro_batch_of(room_for)}"
        return "DOES NOT FIT: take more GPUs, or larger ones"

    def _stage(self, stage: int) -> str:
        uncompiled = " and compile to false" if self.run.engine.compile and stage == ZERO[-1] else ""
        return f"zero_stage to {stage}{uncompiled}"

    def _micro_batch_of(self, rows: int) -> str:
        """Return the advice to set a micro-batch of at most ``rows``. It is the largest that leaves no rank idle, if
        there is one, reduced until all micro-batches of a batch are about equally large."""
        batch = self.run.training.batch_size
        size = next((size for size in range(rows, 0, -1) if math.ceil(batch / size) % self.ranks == 0), rows)
        terms = get_method(self.run.method).batch_terms
        another = f" (another run: {', '.join(terms)} depends on it)" if terms else ""
        return f"micro_batch to {math.ceil(batch / math.ceil(batch / size))}{another}"
