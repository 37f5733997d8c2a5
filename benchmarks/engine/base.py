"""What an engine does for a stage: forward, backward, update; weights and optimizer states, in and out by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.engine.ranks import Ranks
from benchmarks.specs import EngineSpec, TrainingSpec, parts_of
from methods.base import Batch, Context, Method, Output, Stage

PROGRAMS = 64  # of all modules that are compiled in this process, at most
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
            raise ValueError(f"{method.name}: stage {stage.name!r} trains nothing; no parameter starts with "
                             f"{stage.trainable}")  # fmt: skip
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
        if self.ranks.world > 1 and not self.spec.cuts:
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


def checkpoint_activations(method: Method) -> None:
    """Let every transformer of a method keep only the inputs of its layers, and compute the rest again."""
    if method.caches_in_training:
        raise ValueError(f"{method.name} reads a cache while it trains, and layers that run again would add to it "
                         "twice: leave activation_checkpointing out of its row's engine")  # fmt: skip
    for trunk in trunks(method):
        trunk.gradient_checkpointing_enable({"use_reentrant": False})


def compile_layers(method: Method, caches: bool) -> None:
    """Have the layers of every transformer of a method compiled when they are first called, for any number of rows and
    positions.

    Layers share one program, as they differ in weights alone. Where ``caches`` are read, each layer of a transformer
    with a head would need a program of its own, for its place in the cache: attention then stays as it is, and what
    surrounds it is compiled. A transformer without a head says nothing token by token, so it reads none.
    """
    heads = [module for module in method.modules() if isinstance(module, PreTrainedModel) and not _is_trunk(module)]
    modules: list[nn.Module] = []
    for trunk in trunks(method):
        layers = cast("nn.ModuleList", trunk.layers)
        if caches and any(head.base_model is trunk for head in heads):
            modules += [part for layer in layers for name, part in layer.named_children() if name != "self_attn"]
        else:
            modules += layers
    # Beyond this number, modules are called as they are; programs are made for ranges and alignments of shapes
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, PROGRAMS)
    for module in modules:
        module.compile(dynamic=True)


def plain_layers(method: Method) -> None:
    """Have all modules of a method called as they are, whether they were compiled or not."""
    for module in method.modules():
        vars(module).pop("_compiled_call_impl", None)


def trunks(method: Method) -> list[PreTrainedModel]:
    """The transformers of a method, without their heads."""
    return [module for module in method.modules() if isinstance(module, PreTrainedModel) and _is_trunk(module)]


def _is_trunk(model: PreTrainedModel) -> bool:
    return model.base_model is model
