"""One optimizer step of any method, and the batches of a stage: collated examples, or cached features of a frozen
model.

The features that a cached stage trains on are computed once and memory-mapped from disk.
"""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.budgets import steps_of
from benchmarks.console import Progress
from benchmarks.data import Corpus, epoch_batches
from benchmarks.engine import Engine, PlaceInPhase, Ranks, autocast
from benchmarks.engine.device import memory_for
from benchmarks.files import reserve
from benchmarks.studies.micro_batches import cuts, rows_per_pass
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import TrainingSpec
from methods.base import Batch, Context, Method, Output, Stage
from methods.errors import InputError


class FeatureStore:
    """Rows of :meth:`Method.features` for a corpus, in memory-mapped files, with the dtype in which they were computed.

    The ranks of a node fill one store together, taking turns batch by batch; every node has a store of its own.
    """

    def __init__(self, folder: Path, label: str, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self.folder = folder.with_name(f"{folder.name}-node{self.ranks.node}") if self.ranks.node else folder
        self.label = label
        self.rows: dict[str, Tensor] = {}

    @torch.no_grad()
    def fill(
        self, method: Method, precision: str, corpus: Corpus, rows: np.ndarray, context: Context, batch_size: int
    ) -> None:
        """Compute the features of some rows of the corpus in one pass, sorted by length, without dropout. Row i of the
        store is ``rows[i]``."""
        self.remove()
        trains = method.training
        method.eval()
        self.ranks.wait("features begin")
        self.folder.mkdir(parents=True, exist_ok=True)
        order = np.argsort(corpus.lengths[rows], kind="stable")
        all_starts = range(0, len(order), batch_size)
        starts = all_starts[self.ranks.local_rank :: self.ranks.local_world] or all_starts[:1]
        with Progress(self.label, len(starts)) as progress:
            for start in starts:
                self.ranks.beat(f"features, row {start}")
                places = order[start : start + batch_size]
                batch = method.collate(corpus.examples(rows[places]), context).to(method.device)
                with autocast(method.device, precision):
                    features = method.features(batch, context)
                for name, values in features.items():
                    self._column(name, len(rows), values)[torch.from_numpy(places)] = values.cpu()
                progress.advance()
        for _ in range(len(starts), math.ceil(len(all_starts) / self.ranks.local_world)):
            self.ranks.beat("features done")  # a rank with one batch fewer must not look as if it lagged behind
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


class NonFiniteLoss(InputError):
    """Training met a loss or a gradient that is not a finite number."""


class StageLoader:
    """The micro-batches of one stage: examples collated for the method, or rows of its cached features."""

    def __init__(self, method: Method, corpus: Corpus, stage: Stage, seed: int, features: FeatureStore | None) -> None:
        self.method, self.corpus, self.stage, self.seed, self.features = method, corpus, stage, seed, features

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

    def ids(self, step: Step) -> list[str]:
        """Return the ids of the examples in a step's global batch."""
        return [example.id for example in self.data.corpus.examples(step.indices)]


@dataclass
class Sums:
    """Loss sums, denominators and statistics of several micro-batches, as Python numbers. Added tensors stay on the
    device until :meth:`fetch`: reading each number at once would keep the device waiting for the next micro-batch."""

    losses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    denominators: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    statistics: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    norms: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the same on all ranks
    tokens: int = 0
    examples: int = 0
    waiting: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def expect(self, batch: Batch, counts: bool = True) -> None:
        self.tokens += batch.tokens * counts
        for name, value in batch.denominators.items():
            self.denominators[name] += value * counts

    def add(self, output: Output, counts: bool = True) -> None:
        for kind, tensors in (("losses", output.losses), ("statistics", output.statistics)):
            for name, value in tensors.items():
                own = value.detach().double() if counts else value.new_zeros((), dtype=torch.float64)
                self.waiting[kind, name] = self.waiting[kind, name] + own if (kind, name) in self.waiting else own

    def fetch(self) -> None:
        """Transfer all added tensors from the device at once, and add them to the sums."""
        if self.waiting:
            for (kind, name), value in zip(self.waiting, torch.stack([*self.waiting.values()]).tolist(), strict=True):
                getattr(self, kind)[name] += value
            self.waiting.clear()

    def terms(self) -> dict[str, float]:
        return {name: value / max(self.denominators[name], 1.0) for name, value in self.losses.items()}


def optimizer_step(steps: PrefetchingLoader, number: int) -> Sums:
    """Perform the next update, from one global batch. ``number`` counts the steps of the stage.

    Loss sums are divided by the denominators of the *global* batch, so neither the number of ranks nor gradient
    accumulation changes them. The host waits for the device only once, after it has queued all work of this step and
    collated the next batch. A loss that is not finite is therefore noticed after the update, but before any checkpoint:
    :class:`NonFiniteLoss` is raised.
    """
    step, engine = next(steps), steps.engine
    sums = Sums(examples=len(step.indices))
    for batch, counts in step.batches:
        sums.expect(batch, counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    for place, (batch, counts) in enumerate(step.batches):
        output = engine.forward(batch, step.context, counts, place)
        _require_sums(engine.method.name, output, sums, step.context.stage)
        losses = [value / max(sums.denominators[name], 1.0) for name, value in output.losses.items()]
        engine.backward(torch.stack(losses).sum() * counts, last=place + 1 == len(step.batches))
        sums.add(output, counts)
    sums.waiting["norms", "grad_norm"] = engine.step(number).double()
    steps.prefetch()
    reduce_sums(sums, engine.ranks)
    if bad := _not_finite(sums.losses) or _not_finite(sums.norms):
        raise _stop(bad, "", sums, step.context, f"; examples {steps.ids(step)}")
    return sums


def _require_sums(method: str, output: Output, sums: Sums, stage: Stage) -> None:
    """Refuse what a method's `forward` returns if it does not go with what its `collate` and `stages` do."""
    known = sorted(sums.denominators)
    if unknown := sorted(output.losses.keys() - sums.denominators.keys()):
        raise InputError(
            f"{method}: `forward` gives a loss {unknown[0]!r}, for which `collate` has no "
            f"denominator; it has {known}: use the same names"
        )
    if unknown := sorted({*stage.select_on} - output.losses.keys()):
        raise InputError(
            f"{method}: stage {stage.name!r} selects on {unknown[0]!r}, which is no loss; `forward` gives "
            f"{sorted(output.losses)}"
        )
    for name, value in {**output.losses, **output.statistics}.items():
        if not isinstance(value, Tensor) or value.dim():
            found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"of type {type(value).__name__}"
            raise InputError(
                f"{method}: `forward` gives {name!r} {found}: return its sum over the micro-batch, a tensor of no "
                "dimensions"
            )


def reduce_sums(sums: Sums, ranks: Ranks) -> None:
    """Sum losses, statistics and tokens over all ranks, in one call."""
    sums.fetch()
    kinds = {"loss": sums.losses, "statistic": sums.statistics}
    own = {f"{kind} {name}": value for kind, values in kinds.items() for name, value in values.items()}
    total = ranks.sum({**own, "tokens": sums.tokens})
    for kind, values in kinds.items():
        values.update({name: total[f"{kind} {name}"] for name in values})
    sums.tokens = round(total["tokens"])


def _not_finite(values: Mapping[str, float]) -> list[str]:
    return [name for name, value in values.items() if not math.isfinite(value)]


def _stop(names: Sequence[str], place: str, sums: Sums, context: Context, rows: str) -> NonFiniteLoss:
    """Return the error that stops a run before weights that are not finite get into a checkpoint."""
    return NonFiniteLoss(
        f"step {context.step} ({context.stage.name}): {', '.join(names)} is not finite{place}; loss terms "
        f"{sums.terms()}{rows}. The last checkpoint is kept, and lies before this step; lower the learning rate, or "
        "look at these rows"
    )


def memory_for_training(spec: RunSpec) -> AbstractContextManager[None]:
    """Raise :class:`OutOfMemory`, with what takes less memory, if a training pass inside does not fit."""
    rows = rows_per_pass(spec.training.batch_size, spec.engine.ranks, spec.engine.micro_batch)
    return memory_for(
        f"{spec.study}: training {spec.id}",
        f"A training pass has at most {rows} rows: lower `engine.micro_batch` or `engine.micro_tokens`, or set "
        "`engine.activation_checkpointing`; `marcos-bench plan` says what fits",
    )


@torch.no_grad()
def validation_sums(engine: Engine, data: StageLoader, context: Context, batch_size: int) -> Sums:
    """Return losses and statistics over the validation rows, in batches that are cut like those of training. Raise
    :class:`NonFiniteLoss` if a loss term is not finite."""
    order = np.argsort(data.corpus.lengths, kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    parts = [engine.split_microbatches(batch, data.longest(batch)) for batch in batches]
    if cuts(engine.spec):  # deal them together, so that fewer ranks are idle; otherwise a pass stays within one batch
        parts = [[part for own in parts for part in own]]
    sums = Sums()
    for rows, counts in chain.from_iterable(map(engine.shard, parts)):
        batch = data.batch(rows, context)
        sums.expect(batch, counts)
        sums.add(engine.forward(batch, context, counts), counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    reduce_sums(sums, engine.ranks)
    if bad := _not_finite(sums.terms()):
        raise _stop(bad, " over the validation rows", sums, context, "")
    return sums


def batches_of(
    data: StageLoader, training: TrainingSpec, steps_per_epoch: int, steps: range
) -> Iterator[tuple[np.ndarray, Context]]:
    """Yield the global batch of each of some steps of a run, with its context. Epochs are counted across all stages."""
    batches: list[np.ndarray] = []
    for step in steps:
        epoch, position = divmod(step, steps_per_epoch)
        if position == 0 or not batches:
            batches = epoch_batches(data.corpus.lengths, training.batch_size, data.seed, epoch)
        yield batches[position], data.context(epoch, step)


def phase_of(stages: Sequence[Stage], index: int, steps_per_epoch: int) -> PlaceInPhase:
    """Return where the stage at ``index`` lies within its phase."""
    steps = [steps_of(stage, steps_per_epoch) * (stage.phase == stages[index].phase) for stage in stages]
    return PlaceInPhase(before=sum(steps[:index]), steps=sum(steps))
