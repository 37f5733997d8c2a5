"""One optimizer step of any method, and how a curriculum is counted in steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import Corpus
from benchmarks.engine import Engine, Phase, Ranks
from benchmarks.features import FeatureStore
from benchmarks.specs import TrainingSpec
from methods.base import Batch, Budget, Context, Method, Output, Stage


class NonFiniteLoss(ValueError):
    """Training met a loss or a gradient that is not a finite number."""


class StageData:
    """Micro-batches of one stage: examples collated for the method, or rows of its cached features."""

    def __init__(self, method: Method, corpus: Corpus, stage: Stage, seed: int, features: FeatureStore | None) -> None:
        self.method, self.corpus, self.stage, self.seed, self.features = method, corpus, stage, seed, features

    def context(self, epoch: int, step: int, training: bool = True) -> Context:
        return Context(self.stage, epoch, step, self.seed, training)

    def batch(self, indices: np.ndarray, context: Context) -> Batch:
        if self.features is not None:
            return self.features.batch(self.method, indices).to(self.method.device)
        return self.method.collate(self.corpus.examples(indices), context).to(self.method.device)


@dataclass
class Sums:
    """Loss sums, denominators and statistics of some micro-batches, as numbers. What is added stays on the device until
    :meth:`fetch`: reading each number there would keep the device waiting for the next micro-batch."""

    losses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    denominators: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    statistics: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: int = 0
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


def optimizer_step(engine: Engine, data: StageData, indices: np.ndarray, context: Context, step: int) -> Sums:
    """One update from one global batch; ``step`` counts within the stage.

    Sums are divided by the denominators of the *global* batch, so that neither ranks nor accumulation change them.
    """
    share, sums = engine.share(indices), Sums()
    batches = [(data.batch(rows, context), counts) for rows, counts in share]
    for batch, counts in batches:
        sums.expect(batch, counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    for number, (batch, counts) in enumerate(batches, 1):
        output = engine.forward(batch, context)
        losses = [value / max(sums.denominators[name], 1.0) for name, value in output.losses.items()]
        engine.backward(torch.stack(losses).sum() * counts, last=number == len(batches))
        sums.add(output, counts)
    reduce_sums(sums, engine.ranks)
    _require_finite(sums.losses, sums, data, indices, context)
    sums.statistics["grad_norm"] = engine.step(step)
    _require_finite({"grad_norm": sums.statistics["grad_norm"]}, sums, data, indices, context)
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


def _require_finite(
    values: Mapping[str, float], sums: Sums, data: StageData, indices: np.ndarray, context: Context
) -> None:
    """Stop before weights that are no numbers get into a checkpoint."""
    if bad := [name for name, value in values.items() if not math.isfinite(value)]:
        raise NonFiniteLoss(
            f"step {context.step} ({context.stage.name}): {', '.join(bad)} is not finite; loss terms {sums.terms()}; "
            f"examples {[e.id for e in data.corpus.examples(indices)]}. The last checkpoint is kept, and lies before "
            "this step; lower the learning rate, or look at these examples"
        )


@torch.no_grad()
def validation_terms(engine: Engine, data: StageData, context: Context, batch_size: int) -> dict[str, float]:
    """Loss terms over the validation rows, ``batch_size`` per pass, or :class:`NonFiniteLoss`."""
    order = np.argsort(data.corpus.lengths, kind="stable")
    sums = Sums()
    for rows, counts in engine.deal([order[start : start + batch_size] for start in range(0, len(order), batch_size)]):
        batch = data.batch(rows, context)
        sums.expect(batch, counts)
        sums.add(engine.forward(batch, context), counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    reduce_sums(sums, engine.ranks)
    if bad := [name for name, value in sums.terms().items() if not math.isfinite(value)]:
        raise NonFiniteLoss(
            f"step {context.step} ({context.stage.name}): {', '.join(bad)} is not finite over the validation rows; "
            f"loss terms {sums.terms()}. The last checkpoint is kept, and lies before this step; lower the learning "
            "rate, or look at these rows"
        )
    return sums.terms()


def steps_of(stage: Stage, steps_per_epoch: int) -> int:
    return max(1, round(stage.epochs * steps_per_epoch))


def budget_of(training: TrainingSpec, corpus: Corpus, rows: int | None = None) -> Budget:
    """How long a run trains on a corpus, or on so many ``rows`` like those of the corpus."""
    count, chains = rows or len(corpus), corpus.chain_lengths.tolist()
    return budget_for(training, count, float(corpus.lengths.sum()) * (count / len(corpus)), chains)


def budget_for(training: TrainingSpec, rows: int, tokens: float, chains: Sequence[int]) -> Budget:
    """How long a run trains on so many ``rows``: ``tokens`` are those of question, steps and answer over all rows,
    which a token budget counts, and ``chains`` those of each row's steps, line ends included."""
    epochs = training.epochs or (training.tokens or 0) / tokens
    return Budget(epochs, math.ceil(rows / training.batch_size), tuple(chains))


def phase_of(stages: Sequence[Stage], index: int, steps_per_epoch: int) -> Phase:
    """Where the stage at ``index`` lies in its phase."""
    steps = [steps_of(stage, steps_per_epoch) * (stage.phase == stages[index].phase) for stage in stages]
    return Phase(before=sum(steps[:index]), steps=sum(steps))
