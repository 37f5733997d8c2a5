"""Memory that training takes on one GPU, at each ZeRO stage of DeepSpeed.

It is the sum of float32 weights, gradients and AdamW's two moments; a bfloat16 copy of the weights in mixed precision
(beside adapters, of weights that are not trained, one for each pass of a micro-batch); the activations that the largest
micro-batch keeps for its backward pass; the logits that exist at once, with their gradient; and what ZeRO adds: a
second copy of the weights that a rank updates, and at stage 3 the weights that are gathered. With the same number of
rows, training takes more memory than validation, and computing the features of a cached stage, which needs no logits,
takes less.

Activations are counted at the backbone's width, with tensors that have shapes but no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

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
from benchmarks.plan.flops import Dimensions, small_method
from benchmarks.plan.lengths import TokenCounter
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import Offload
from methods.base import Batch, Context, Example, Method, Stage
from methods.errors import InputError

FLOAT32, BFLOAT16 = 4, 2  # bytes
GATHERED = 10**9  # weights that DeepSpeed holds whole at once at stage 3, at most (stage3_max_live_parameters)
ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU that splits nothing with others. ``activations`` are those of the largest pass."""

    weights: float
    copy: float
    gradients: float
    moments: float
    activations: float

    def on(self, ranks: int, zero_stage: int, offload: Offload = "none") -> float:
        """Return the bytes on each of ``ranks`` GPUs at a ZeRO stage, which splits moments, then gradients too, then
        weights too. The bfloat16 copy is never split, because autocast makes it from whole weights."""
        weights = self.weights / (ranks if zero_stage >= 3 else 1)
        gradients = self.gradients / (ranks if zero_stage >= 2 else 1)
        moments = self.moments / (ranks if zero_stage >= 1 else 1)
        updated = self.gradients / ranks if zero_stage else 0.0  # as many weights as there are gradients
        gathered = min(self.weights, FLOAT32 * GATHERED) if zero_stage == 3 else 0.0
        lasting = {"none": weights + updated + moments, "optimizer": weights, "weights": 0.0}[offload]
        return lasting + gathered + self.copy + gradients + self.activations


class SavedBytes(NamedTuple):
    """Bytes that a forward pass keeps for the backward pass, each tensor once: ``copies`` of weights in bfloat16, and
    everything else but the weights themselves."""

    activations: int
    copies: int

    def deepened(self, layer: SavedBytes, count: int) -> SavedBytes:
        """Return what is kept with ``count`` more layers, each of which keeps what ``layer`` says."""
        return SavedBytes(self.activations + count * layer.activations, self.copies + count * layer.copies)


def activation_bytes(
    run: RunSpec,
    stage: Stage,
    examples: Sequence[Example],
    dimensions: Dimensions,
    count_tokens: TokenCounter,
) -> SavedBytes:
    """Return what :func:`saved_by_forward` counts at these dimensions. With activation checkpointing these are the
    inputs that layers keep, and all that one layer of every stack keeps: the backward pass recomputes one at a time."""

    def counted(again: bool) -> tuple[SavedBytes, SavedBytes]:
        """Return what is kept with one layer per stack, and by each further layer. Layers are alike, and counting many
        takes seconds."""
        sizes = []
        for layers in (1, 2):
            with FakeTensorMode() as mode:
                method = small_method(run, count_tokens, replace(dimensions, num_hidden_layers=layers))
                _fake_adapters(method, mode)
            if again:
                checkpoint_activations(method.train())
            sizes.append(saved_by_forward(method, stage, examples, run.engine.precision))
        return sizes[0], sizes[1].deepened(sizes[0], -1)

    first, layer = counted(again=False)
    if not run.engine.activation_checkpointing:
        return first.deepened(layer, dimensions.num_hidden_layers - 1)
    first, inputs = counted(again=True)
    return first.deepened(inputs, dimensions.num_hidden_layers - 1).deepened(layer, 1)


def saved_by_forward(method: Method, stage: Stage, examples: Sequence[Example], precision: str) -> SavedBytes:
    """Return what a method's forward pass keeps. A method with fake tensors raises :class:`InputError` where it
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
    return SavedBytes(*(sum(storage.nbytes() for storage in kept.values()) for kept in (activations, copies)))


def _fake_adapters(method: Method, mode: FakeTensorMode) -> None:
    """Replace the weights that adapters added, which are real, by fake ones with storages of their own."""
    for module in method.modules():
        for name, weight in module.named_parameters(recurse=False):
            if not isinstance(weight, FakeTensor):
                module.register_parameter(name, cast(Any, mode.from_tensor(weight)))


def _pass_forward(method: Method, stage: Stage, examples: Sequence[Example]) -> None:
    """Make one training pass, with real or fake tensors."""
    context = Context(stage, 0, 0, seed=0)
    batch, weight = method.collate(examples, context), next(method.parameters())
    if not isinstance(weight, FakeTensor):
        method(batch, context)
        return
    try:
        with weight.fake_mode as mode:
            method(shapes_only(batch, mode), context)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise InputError(
            f"{method.name} cannot be planned: its forward pass asks for a number ({error.func}); "
            "find it out in `collate`, which knows all numbers"
        ) from error


def shapes_only(batch: Batch, mode: FakeTensorMode) -> Batch:
    tensors: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in batch.tensors.items()}
    return replace(batch, tensors=tensors, keys=None if batch.keys is None else mode.from_tensor(batch.keys))
