"""The engine of a stage: forward, backward and update; weights and optimizer states by name. Also the engine of a
single process."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.engine.adapters import enable_gradients, whole_weights
from benchmarks.engine.device import autocast
from benchmarks.engine.layers import checkpoint_activations, compile_layers, uncompile_layers
from benchmarks.engine.ranks import Ranks
from benchmarks.studies.micro_batches import micro_batch_count, splits_batches
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from methods.base import Batch, Context, Method, Output, Stage
from methods.errors import InputError
from methods.random_keys import key

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's states of a parameter, besides its number of updates


@dataclass(frozen=True)
class PlaceInPhase:
    """Where a stage lies within its phase, in optimizer steps. One learning rate schedule spans all stages of a
    phase."""

    before: int
    steps: int


class Engine(ABC):
    """The optimizer of one stage over the stage's trainable parameters: AdamW, gradient clipping, learning rate."""

    def __init__(
        self, method: Method, stage: Stage, training: TrainingSpec, spec: EngineSpec, phase: PlaceInPhase, ranks: Ranks
    ) -> None:
        self.method, self.training, self.spec, self.phase, self.ranks = method, training, spec, phase, ranks
        self.rate = stage.learning_rate or training.learning_rate  # the peak of the schedule
        self.updates = 0  # of the optimizer since its states were zero
        self.trainable = enable_gradients(method, stage)
        if not self.trainable:
            raise InputError(
                f"{method.name}: stage {stage.name!r} trains nothing; no parameter starts with {stage.trainable}"
            )
        if spec.activation_checkpointing:
            checkpoint_activations(method, training.draws)
        if spec.compile:
            compile_layers(method, method.caches_in_training)
        # The rate is 0 until the first step, because DeepSpeed may start with an empty update
        self.optimizer = torch.optim.AdamW(self._groups(), lr=0.0, betas=training.betas, fused=True)

    def _groups(self) -> list[dict[str, Any]]:
        """Return the trainable parameters, those that decay and those that do not apart."""

        def decays(weight: Tensor) -> bool:
            return self.training.decays == "all" or weight.ndim > 1

        weights = self.trainable.values()
        groups = [
            {"params": [weight for weight in weights if decays(weight)], "weight_decay": self.training.weight_decay},
            {"params": [weight for weight in weights if not decays(weight)], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def split_microbatches(self, indices: np.ndarray, longest: int) -> list[np.ndarray]:
        """Split a global batch, whose longest example has ``longest`` tokens, into micro-batches. If the settings have
        a ``micro_batch``, they are the same at any number of ranks. Otherwise there is one per rank, or as many as
        ``micro_tokens`` requires."""
        count = micro_batch_count(len(indices), self.ranks.world, self.spec, longest)
        return [indices[start::count] for start in range(count)]

    def shard(self, parts: Sequence[np.ndarray]) -> list[tuple[np.ndarray, bool]]:
        """Return this rank's share of some micro-batches, each with a flag for whether it counts. Every rank gets the
        same number, since all ranks make each pass together: dummies that are left out of every sum fill up."""
        share = [(rows, True) for rows in parts[self.ranks.rank :: self.ranks.world]]
        idle = math.ceil(len(parts) / self.ranks.world) - len(share)
        return share + [(parts[0][:1], False)] * idle

    def learning_rate(self, step: int) -> float:
        """Return the learning rate at a ``step`` of the stage: linear warm-up, then constant or cosine, over the whole
        phase."""
        training, step = self.training, self.phase.before + step
        if step < training.warmup_steps:
            return self.rate * (step + 1) / training.warmup_steps
        if training.schedule == "constant":
            return self.rate
        done = (step - training.warmup_steps) / max(self.phase.steps - training.warmup_steps, 1)
        floor = training.final_learning_rate_share
        return self.rate * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)

    def forward(self, batch: Batch, context: Context, counts: bool = True, place: int = 0) -> Output:
        """Return the method's loss sums of one micro-batch, which is the rank's ``place``-th in this step. If batches
        are only split into one share per rank, the method can compute statistics of the whole batch:
        ``context.over_ranks`` sums over all shares that count."""
        if self.training.draws and self.method.training:  # the same for these rows on whichever rank, and when resumed
            part = self.ranks.rank + place * self.ranks.world
            torch.manual_seed(key(context.seed, "dropout", context.step, part))
        if self.ranks.world > 1 and not splits_batches(self.spec):
            context = replace(context, over_ranks=partial(self.ranks.all_reduce, counts=counts))
        return self._forward(batch, context)

    @abstractmethod
    def _forward(self, batch: Batch, context: Context) -> Output:
        """Return the output of the method's forward pass on this engine."""

    @abstractmethod
    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradient of a micro-batch's share of the loss. ``last``: this is the rank's last micro-batch in the
        step."""

    @abstractmethod
    def step(self, step: int) -> Tensor:
        """Update the weights at a ``step`` of the stage. Return the gradient norm before clipping, as a tensor on the
        device."""

    @abstractmethod
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter and persistent buffer whole, each shared tensor once, in the same order on all ranks. A
        tensor may be freed when the next one is requested."""

    @abstractmethod
    def optimizer_states(self) -> Iterator[tuple[str, Tensor]]:
        """Yield ``parameter.exp_avg`` and ``parameter.exp_avg_sq`` of every trained parameter, whole, under the same
        rules as :meth:`weights`."""

    @abstractmethod
    def load_optimizer_states(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Continue from states that :meth:`optimizer_states` of any engine yielded after ``updates`` updates."""

    def close(self) -> None:
        """Leave the method whole on every rank and uncompiled, as the next engine expects it."""
        uncompile_layers(self.method)


class ProcessEngine(Engine):
    """An engine that keeps weights, gradients and optimizer states whole."""

    def _forward(self, batch: Batch, context: Context) -> Output:
        with autocast(self.method.device, self.spec.precision):
            return self.method(batch, context)

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()

    def step(self, step: int) -> Tensor:
        parameters = self.trainable.values()
        for parameter in parameters:  # also decay those that this batch does not reach, like engines with flat states
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = nn.utils.clip_grad_norm_(parameters, self.training.max_grad_norm or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return norm

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return whole_weights(self.method)

    def optimizer_states(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.trainable.items():
            for moment in MOMENTS:
                yield f"{name}.{moment}", self.optimizer.state[parameter][moment]

    def load_optimizer_states(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        self.updates = updates
        for name, parameter in self.trainable.items():
            # Copy: a memory-mapped tensor would keep the file of a checkpoint that is soon removed
            moments = {key: tensors[f"{name}.{key}"].to(parameter.device, copy=True) for key in MOMENTS}
            count = torch.tensor(float(updates), device=parameter.device)
            self.optimizer.state[parameter] = {"step": count, **moments}

    def close(self) -> None:
        super().close()
        self.optimizer.zero_grad()
