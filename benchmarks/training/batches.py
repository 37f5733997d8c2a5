"""The batches of a stage: collated examples, or cached features of a frozen model.

The features that a cached stage trains on are computed once and memory-mapped from disk.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.console import Progress
from benchmarks.data import Corpus, epoch_batches
from benchmarks.engine import ALONE, Engine, Ranks, autocast
from benchmarks.files import reserve
from benchmarks.studies.specs import TrainingSpec
from methods.base import Batch, Context, Method, Stage


class FeatureStore:
    """Rows of :meth:`Method.features` for a corpus, in memory-mapped files, with the dtype in which they were computed.

    The ranks of a node fill one store together, taking turns batch by batch; every node has a store of its own.
    """

    def __init__(self, folder: Path, label: str, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.folder = folder.with_name(f"{folder.name}-node{self.ranks.node}") if self.ranks.node else folder
        self.label = label
        self.rows: dict[str, Tensor] = {}

    @torch.no_grad()
    def fill(self, data: StageLoader, rows: np.ndarray, precision: str, batch_size: int) -> None:
        """Compute the features of some rows of a corpus in one pass, sorted by length, without dropout. Row i of the
        store is ``rows[i]``."""
        method, corpus, context = data.method, data.corpus, data.context(0, 0)
        self.remove()
        trains = method.training
        method.eval()
        self.ranks.wait("features begin")
        self.folder.mkdir(parents=True, exist_ok=True)
        order = np.argsort(corpus.lengths[rows], kind="stable")
        starts, world = range(0, len(order), batch_size), self.ranks.local_world
        turns = range(self.ranks.local_rank, math.ceil(len(starts) / world) * world, world)
        with Progress(self.label, len(turns)) as progress:
            for turn in turns:  # as many on each rank: one without a batch computes the first, and stores nothing
                start = starts[turn] if turn < len(starts) else 0
                self.ranks.beat(f"features, row {start}")
                places = order[start : start + batch_size]
                batch = method.collate(corpus.examples(rows[places]), context).to(method.device)
                with autocast(method.device, precision):
                    features = method.features(batch, context)
                for name, values in features.items():
                    column = self._column(name, len(rows), values)
                    if turn < len(starts):
                        column[torch.from_numpy(places)] = values.cpu()
                progress.advance()
        method.train(trains)
        self.ranks.wait("features of all ranks")

    def _column(self, name: str, length: int, rows: Tensor) -> Tensor:
        if name not in self.rows:
            shape = (length, *rows.shape[1:])
            path = self.folder / f"{name}.{str(rows.dtype).removeprefix('torch.')}"
            if self.ranks.local_rank == 0:
                reserve(path, rows.itemsize * math.prod(shape))
            self.ranks.wait(f"room for the features {name}")
            column = torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=rows.dtype)
            self.rows[name] = column.view(shape)
        return self.rows[name]

    def batch(self, method: Method, indices: np.ndarray) -> Batch:
        """Return some rows on the method's device, in float32. They are transferred first and converted there, because
        bfloat16 is half as much to move."""
        chosen = torch.from_numpy(indices)
        stored = Batch({name: column[chosen] for name, column in self.rows.items()}, {}, tokens=0).to(method.device)
        return method.collate_features({name: tensor.float() for name, tensor in stored.tensors.items()})

    def remove(self) -> None:
        self.rows.clear()
        if self.ranks.local_rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)


class StageLoader:
    """The micro-batches of one stage: examples collated for the method, or rows of its cached ``features``."""

    def __init__(self, method: Method, corpus: Corpus, stage: Stage, seed: int) -> None:
        self.method, self.corpus, self.stage, self.seed = method, corpus, stage, seed
        self.features: FeatureStore | None = None

    def context(self, epoch: int, step: int, training: bool = True) -> Context:
        return Context(self.stage, epoch, step, self.seed, training)

    def longest(self, indices: np.ndarray) -> int:
        """Return the tokens of the longest example (question, steps and answer), or 1 for cached features, which are
        all of one length."""
        return 1 if self.features is not None else int(self.corpus.lengths[indices].max())

    def batch(self, indices: np.ndarray, context: Context) -> Batch:
        """Return these rows as a micro-batch on the method's device."""
        if self.features is not None:
            return self.features.batch(self.method, indices)
        return self.method.collate(self.corpus.examples(indices), context).to(self.method.device)

    def close(self) -> None:
        """Remove cached features, if there are any."""
        if self.features is not None:
            self.features.remove()


@dataclass(frozen=True)
class Step:
    """The work of one rank in an optimizer step: the micro-batches of its share of a global batch, on the device, each
    with a flag for whether it counts."""

    indices: np.ndarray  # rows of the global batch
    context: Context
    batches: Sequence[tuple[Batch, bool]]


class PrefetchingLoader(Iterator[Step]):
    """Iterate over the steps of a stage. A step is collated when it is requested or, by :meth:`prefetch`, one step
    ahead: on a GPU the host has time for that while the device computes the previous step."""

    def __init__(self, engine: Engine, data: StageLoader, batches: Iterable[tuple[np.ndarray, Context]]) -> None:
        self.engine, self.data, self.batches = engine, data, iter(batches)
        self.ready: Step | None = None

    def prefetch(self) -> None:
        """Collate the next step, unless there is none or it is collated already."""
        if self.ready is None and (found := next(self.batches, None)):
            indices, context = found
            share = self.engine.shard(self.engine.split_microbatches(indices, self.data.longest(indices)))
            self.ready = Step(indices, context, [(self.data.batch(rows, context), counts) for rows, counts in share])

    def __next__(self) -> Step:
        self.prefetch()
        step, self.ready = self.ready, None
        if step is None:
            raise StopIteration
        return step


def batches_of(
    data: StageLoader, training: TrainingSpec, steps_per_epoch: int, steps: range
) -> Iterator[tuple[np.ndarray, Context]]:
    """Yield the global batch of each of some steps of a run, with its context. Epochs are counted across all stages."""
    batches: list[np.ndarray] = []
    for step in steps:
        epoch, position = divmod(step, steps_per_epoch)
        if position == 0 or not batches:
            batches = epoch_batches(
                data.corpus.lengths, training.batch_size, data.seed, epoch, training.group_by_length
            )
        yield batches[position], data.context(epoch, step)
