"""Count what the forward pass of a training step keeps for its backward pass.

It is counted at the backbone's own width, with tensors that have shapes but no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.multiprocessing.reductions import StorageWeakRef

from benchmarks.engine import autocast
from benchmarks.engine.adapters import enable_gradients
from benchmarks.engine.layers import checkpoint_activations
from benchmarks.plan.counting import Dimensions, TokenCounter, sized_method, usual_length
from benchmarks.studies.runs import RunSpec
from methods.base import Batch, Context, Example, Method, Stage
from methods.errors import InputError


class AsksForNumbers(InputError):
    """A forward pass needs the value of a tensor to go on."""


class Kept(NamedTuple):
    """Bytes that a forward pass keeps for the backward pass, each tensor once: ``copies`` of weights in bfloat16, and
    everything else but the weights themselves."""

    activations: int
    copies: int

    def deepened(self, layer: Kept, count: int) -> Kept:
        """Return what is kept with ``count`` more layers, each of which keeps what ``layer`` says."""
        return Kept(self.activations + count * layer.activations, self.copies + count * layer.copies)


def kept_bytes(
    run: RunSpec,
    stage: Stage,
    examples: Sequence[Example],
    dimensions: Dimensions,
    precision: str,
    count_tokens: TokenCounter = usual_length,
) -> Kept:
    """Return what :func:`kept_by` counts at these dimensions.

    With activation checkpointing these are the inputs that layers keep, and everything that one layer of every stack
    keeps, since the backward pass recomputes one layer at a time.
    """

    def counted(again: bool) -> tuple[Kept, Kept]:
        """Return what is kept with one layer per stack, and by each further layer. Layers are alike, and counting many
        takes seconds."""
        sizes = []
        for layers in (1, 2):
            with FakeTensorMode():
                method = sized_method(run, replace(dimensions, layers=layers), count_tokens)
            if again:
                checkpoint_activations(method.train())
            sizes.append(kept_by(method, stage, examples, precision))
        return sizes[0], sizes[1].deepened(sizes[0], -1)

    first, layer = counted(again=False)
    if not run.engine.activation_checkpointing:
        return first.deepened(layer, dimensions.layers - 1)
    first, inputs = counted(again=True)
    return first.deepened(inputs, dimensions.layers - 1).deepened(layer, 1)


def kept_by(method: Method, stage: Stage, examples: Sequence[Example], precision: str) -> Kept:
    """Return what a method's forward pass keeps. A method with fake tensors raises :class:`AsksForNumbers` where it
    needs the value of a tensor."""
    enable_gradients(method, stage)  # what others read is not kept for them
    weights = {StorageWeakRef(parameter.untyped_storage()) for parameter in method.parameters()}
    shapes = {tuple(parameter.shape) for parameter in method.parameters() if parameter.ndim == 2}
    activations, copies = (dict[StorageWeakRef, torch.UntypedStorage]() for _ in range(2))

    def keep(tensor: Tensor) -> None:  # returns None for the graph to keep: no backward pass follows
        storage, shape = tensor.untyped_storage(), tuple(tensor.shape[-2:])  # for single rows, weights are expanded
        copied = tensor.dtype == torch.bfloat16 and {shape, shape[::-1]} & shapes
        copied = copied and storage.nbytes() == tensor.itemsize * math.prod(shape)
        place = StorageWeakRef(storage)
        if place not in weights:
            (copies if copied else activations)[place] = storage

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing)
    with hooks, autocast(method.device, precision):
        _pass_forward(method, stage, examples)
    return Kept(*(sum(storage.nbytes() for storage in kept.values()) for kept in (activations, copies)))


def _pass_forward(method: Method, stage: Stage, examples: Sequence[Example]) -> None:
    """Make one training pass, with real or fake tensors."""
    context = Context(stage, 0, 0, seed=0)
    batch, weight = method.collate(examples, context), next(method.parameters())
    if not isinstance(weight, FakeTensor):
        method(batch, context)
        return
    try:
        with weight.fake_mode as mode:
            method(without_numbers(batch, mode), context)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise AsksForNumbers(
            f"{method.name} cannot be planned: its forward pass asks for a number ({error.func}); "
            "find it out in `collate`, which knows all numbers"
        ) from error


def without_numbers(batch: Batch, mode: FakeTensorMode) -> Batch:
    """Return a batch of fake tensors with the same shapes."""
    tensors: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in batch.tensors.items()}
    return replace(batch, tensors=tensors, keys=None if batch.keys is None else mode.from_tensor(batch.keys))
