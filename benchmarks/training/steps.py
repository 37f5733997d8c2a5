"""One optimizer step of any method, and which batches a run's steps take."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import Corpus, epoch_batches
from benchmarks.engine import Engine, Phase, Ranks
from benchmarks.studies.micro_batches import cuts
from benchmarks.studies.specs import TrainingSpec
from benchmarks.training.budgets import steps_of
from benchmarks.training.features import FeatureStore
from methods.base import Batch, Context, Method, Output, Stage
from methods.errors import InputError


class NonFiniteLoss(InputError):
    """Training met a loss or a gradient that is not a finite number."""


class StageData:
    """Micro-batches of one stage: examples collated for the method, or rows of its cached features."""

    def __init__(self, method: Method, corpus: Corpus, stage: Stage, seed: int, features: FeatureStore | None) -> None:
        self.method, self.corpus, self.stage, self.seed, self.features = method, corpus, stage, seed, features

    def context(self, epoch: int, step: int, training: bool = True) -> Context:
        return Context(self.stage, epoch, step, self.seed, training)

    def longest(self, indices: np.ndarray) -> int:
        """Tokens of the longest example (question, steps and answer). Features are of one length."""
        return 1 if self.features is not None else int(self.corpus.lengths[indices].max())

    def batch(self, indices: np.ndarray, context: Context) -> Batch:
        """On the method's device."""
        if self.features is not None:
            return self.features.batch(self.method, indices)
        return self.method.collate(self.corpus.examples(indices), context).to(self.method.device)


@dataclass(frozen=True)
class Step:
    """What one rank works on in an optimizer step: the micro-batches of its share of a global batch, on the device, and
    whether each of them counts."""

    indices: np.ndarray  # of the global batch
    context: Context
    batches: Sequence[tuple[Batch, bool]]


class Steps(Iterator[Step]):
    """A stage's steps, one after the other, collated when they are asked for or, by :meth:`prepare`, one ahead: on a
    GPU the host has time for that while the device works on the step before."""

    def __init__(self, engine: Engine, data: StageData, batches: Iterable[tuple[np.ndarray, Context]]) -> None:
        self.engine, self.data, self.batches = engine, data, iter(batches)
        self.ready: Step | None = None

    def prepare(self) -> None:
        """Collate the next step, if there is one and it is not collated yet."""
        if self.ready is None and (found := next(self.batches, None)):
            indices, context = found
            share = self.engine.deal(self.engine.cut(indices, self.data.longest(indices)))
            self.ready = Step(indices, context, [(self.data.batch(rows, context), counts) for rows, counts in share])

    def __next__(self) -> Step:
        self.prepare()
        step, self.ready = self.ready, None
        if step is None:
            raise StopIteration
        return step

    def ids(self, step: Step) -> list[str]:
        """Of the examples of a global batch."""
        return [example.id for example in self.data.corpus.examples(step.indices)]


@dataclass
class Sums:
    """Loss sums, denominators and statistics of some micro-batches, as numbers. What is added stays on the device until
    :meth:`fetch`: reading each number there would keep the device waiting for the next micro-batch."""

    losses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    denominators: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    statistics: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    norms: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # alike on all ranks
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
        """Take over what was added, in one transfer."""
        if self.waiting:
            for (kind, name), value in zip(self.waiting, torch.stack([*self.waiting.values()]).tolist(), strict=True):
                getattr(self, kind)[name] += value
            self.waiting.clear()

    def terms(self) -> dict[str, float]:
        return {name: value / max(self.denominators[name], 1.0) for name, value in self.losses.items()}


def optimizer_step(steps: Steps, number: int) -> Sums:
    """The next update, from one global batch; ``number`` counts within the stage.

    Sums are divided by the denominators of the *global* batch, so that neither ranks nor accumulation change them. The
    device is waited for once, when it has all work of this step and the host has the batch of the next. So a loss that
    is not a finite number is noticed after the update, which no checkpoint gets to see.
    """
    step, engine = next(steps), steps.engine
    sums = Sums(examples=len(step.indices))
    for batch, counts in step.batches:
        sums.expect(batch, counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    for place, (batch, counts) in enumerate(step.batches, 1):
        output = engine.forward(batch, step.context, counts)
        if unknown := sorted(output.losses.keys() - sums.denominators.keys()):
            raise InputError(
                f"{engine.method.name}: `forward` gives a loss {unknown[0]!r}, for which `collate` has no "
                f"denominator; it has {sorted(sums.denominators)}: use the same names"
            )
        losses = [value / max(sums.denominators[name], 1.0) for name, value in output.losses.items()]
        engine.backward(torch.stack(losses).sum() * counts, last=place == len(step.batches))
        sums.add(output, counts)
    sums.waiting["norms", "grad_norm"] = engine.step(number).double()
    steps.prepare()
    reduce_sums(sums, engine.ranks)
    if bad := _not_finite(sums.losses) or _not_finite(sums.norms):
        raise _stop(bad, "", sums, step.context, f"; examples {steps.ids(step)}")
    return sums


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
    """What stops a run before weights that are no numbers get into a checkpoint."""
    return NonFiniteLoss(
        f"step {context.step} ({context.stage.name}): {', '.join(names)} is not finite{place}; loss terms "
        f"{sums.terms()}{rows}. The last checkpoint is kept, and lies before this step; lower the learning rate, or "
        "look at these rows"
    )


@torch.no_grad()
def validation_sums(engine: Engine, data: StageData, context: Context, batch_size: int) -> Sums:
    """Losses and statistics over the validation rows, in batches that are cut as those of training are, or
    :class:`NonFiniteLoss`."""
    order = np.argsort(data.corpus.lengths, kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    parts = [engine.cut(batch, data.longest(batch)) for batch in batches]
    if cuts(engine.spec):  # dealt together, so that fewer ranks are idle; else each pass is over one batch alone
        parts = [[part for own in parts for part in own]]
    sums = Sums()
    for rows, counts in chain.from_iterable(map(engine.deal, parts)):
        batch = data.batch(rows, context)
        sums.expect(batch, counts)
        sums.add(engine.forward(batch, context, counts), counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    reduce_sums(sums, engine.ranks)
    if bad := _not_finite(sums.terms()):
        raise _stop(bad, " over the validation rows", sums, context, "")
    return sums


def batches_of(
    data: StageData, training: TrainingSpec, steps_per_epoch: int, steps: range
) -> Iterator[tuple[np.ndarray, Context]]:
    """The global batches of some steps of a run, and where each stands. Epochs are counted on through all stages."""
    batches: list[np.ndarray] = []
    for step in steps:
        epoch, position = divmod(step, steps_per_epoch)
        if position == 0 or not batches:
            batches = epoch_batches(data.corpus.lengths, training.batch_size, data.seed, epoch)
        yield batches[position], data.context(epoch, step)


def phase_of(stages: Sequence[Stage], index: int, steps_per_epoch: int) -> Phase:
    """Where the stage at ``index`` lies in its phase."""
    steps = [steps_of(stage, steps_per_epoch) * (stage.phase == stages[index].phase) for stage in stages]
    return Phase(before=sum(steps[:index]), steps=sum(steps))
