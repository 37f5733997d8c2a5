"""What an engine does for a stage: forward, backward, update; weights and optimizer states, in and out by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine.layers import checkpoint_activations, compile_layers, plain_layers
from benchmarks.engine.ranks import Ranks
from benchmarks.studies.micro_batches import cuts, parts_of
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from methods.base import Batch, Context, Method, Output, Stage
from methods.errors import InputError

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's states of a parameter, besides the number of its updates


@dataclass(frozen=True)
class Phase:
    """Where a stage lies in its phase, in optimizer steps: one learning rate schedule spans all stages of a phase."""

    before: int
    steps: int


@dataclass(frozen=True)
class Share:
    """The micro-batches of one rank. The last ``idle`` are dummies: computed so that all ranks make equally many
    passes, and left out of every sum."""

    rows: Sequence[np.ndarray]
    idle: int

    def __iter__(self) -> Iterator[tuple[np.ndarray, bool]]:
        """Each micro-batch, and whether it counts."""
        own = len(self.rows) - self.idle
        return ((rows, number < own) for number, rows in enumerate(self.rows))


class Engine(ABC):
    """One stage's optimizer over the stage's trainable parameters: AdamW, gradient clipping, learning rate."""

    def __init__(
        self, method: Method, stage: Stage, training: TrainingSpec, spec: EngineSpec, phase: Phase, ranks: Ranks
    ) -> None:
        self.method, self.training, self.spec, self.phase, self.ranks = method, training, spec, phase, ranks
        self.rate = stage.learning_rate or training.learning_rate  # at its highest
        self.updates = 0  # since the optimizer's states were zero
        for name, parameter in method.named_parameters():
            parameter.requires_grad_(stage.trains(name))
        self.trainable = {name: parameter for name, parameter in method.named_parameters() if parameter.requires_grad}
        if not self.trainable:
            raise InputError(
                f"{method.name}: stage {stage.name!r} trains nothing; no parameter starts with {stage.trainable}"
            )
        if spec.activation_checkpointing:
            checkpoint_activations(method)
        if spec.compile:
            compile_layers(method, method.caches_in_training)
        # A rate of 0 until the first step, because DeepSpeed may make an empty update to begin with
        self.optimizer = torch.optim.AdamW(
            self.trainable.values(), lr=0.0, betas=training.betas, weight_decay=training.weight_decay, fused=True
        )

    def cut(self, indices: np.ndarray, longest: int) -> list[np.ndarray]:
        """The micro-batches of a global batch, whose longest example has so many tokens. Without a ``micro_batch`` in
        the settings, there is one for each rank, or as many as ``micro_tokens`` makes of it; with one, they are the
        same at any number of ranks."""
        count = parts_of(len(indices), self.ranks.world, self.spec, longest)
        return [indices[start::count] for start in range(count)]

    def deal(self, parts: Sequence[np.ndarray]) -> Share:
        """This rank's part of some micro-batches. Every rank gets equally many, since all make each pass together."""
        own = list(parts[self.ranks.rank :: self.ranks.world])
        idle = math.ceil(len(parts) / self.ranks.world) - len(own)
        return Share([*own, *[parts[0][:1]] * idle], idle)

    def learning_rate(self, step: int) -> float:
        """At a ``step`` of the stage: linear warm-up, then constant or cosine, over the whole phase."""
        training, step = self.training, self.phase.before + step
        if step < training.warmup_steps:
            return self.rate * (step + 1) / training.warmup_steps
        if training.schedule == "constant":
            return self.rate
        done = (step - training.warmup_steps) / max(self.phase.steps - training.warmup_steps, 1)
        floor = training.final_learning_rate_share
        return self.rate * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)

    def forward(self, batch: Batch, context: Context, counts: bool = True) -> Output:
        """The method's loss sums of one micro-batch. Where that is this rank's part of a batch that is not cut further,
        statistics are of the whole batch, of all parts that count."""
        if self.ranks.world > 1 and not cuts(self.spec):
            context = replace(context, over_ranks=partial(self.ranks.total, counts=counts))
        return self.output(batch, context)

    @abstractmethod
    def output(self, batch: Batch, context: Context) -> Output:
        """What the method's forward pass gives on this engine."""

    @abstractmethod
    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradient of a share of the loss; ``last``: this rank has no further micro-batch in this step."""

    @abstractmethod
    def step(self, step: int) -> Tensor:
        """Update the weights at a ``step`` of the stage; returns the gradient norm before clipping, on the device."""

    @abstractmethod
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and persistent buffer whole, each shared tensor once, in the same order on all ranks. A
        tensor may be freed when the next one is asked for."""

    @abstractmethod
    def optimizer_states(self) -> Iterator[tuple[str, Tensor]]:
        """``parameter.exp_avg`` and ``parameter.exp_avg_sq``, whole, in the way of :meth:`weights`."""

    @abstractmethod
    def load_optimizer_states(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Go on from states that :meth:`optimizer_states` of any engine gave after so many ``updates``."""

    def close(self) -> None:
        """Leave the method whole on every rank, as the next engine expects it."""
        plain_layers(self.method)
