"""The weights of a method by name, and low-rank adapters (LoRA, arXiv:2106.09685) of transformers that start from a
checkpoint.

Beside chosen linear layers two narrow matrices are trained, and the rows of the markers that a method adds to the token
table: a marker that starts as a copy of a token could not be told apart from it otherwise. All other weights of the
transformer stay as they are; whatever a method has outside of it is trained whole. In the weights that a stage ends
with, what was trained is part of the layers' weights: what answers, is timed and is exported is the plain method.
Adapters are hooks, so that the transformer's weights keep their names, and plans can count them without data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmarks.engine.layers import linear_layers, widths
from benchmarks.studies.specs import LoraSpec
from methods.base import Method, Stage
from methods.errors import InputError

ADAPTER = ".adapter."  # in the names of the parameters of adapters


def distinct_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and persistent buffers (not copies), each shared tensor once, under its first name."""
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def whole_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return an iterator over the weights of a module that is whole, detached."""
    return ((name, tensor.detach()) for name, tensor in distinct_tensors(module))


class Adapter(nn.Module):
    """A forward hook that changes the output of a layer as another weight of the layer would: at first, not at all."""

    def merged(self, weight: Tensor) -> Tensor:
        """Return the weight with which the layer by itself gives the same output."""
        raise NotImplementedError


class LowRank(Adapter):
    """Adds ``alpha / rank * up(down(input))`` to the output of a linear layer."""

    def __init__(self, layer: Any, lora: LoraSpec) -> None:
        super().__init__()
        inputs, outputs = widths(layer)
        self.transposed = isinstance(layer, Conv1D)  # its weight is (inputs, outputs)
        self.down = nn.Linear(inputs, lora.rank, bias=False)
        self.up = nn.Linear(lora.rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale, self.dropout = lora.alpha / lora.rank, lora.dropout

    def forward(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + self.scale * self.up(self.down(F.dropout(inputs[0], self.dropout, self.training)))

    def merged(self, weight: Tensor) -> Tensor:
        added = self.scale * self.up.weight.detach() @ self.down.weight.detach()
        return weight + (added.T if self.transposed else added)


class MarkerRows(Adapter):
    """Adds to the last ``count`` rows (count, d) of a token table or of a head (V, d), or of both if they are one."""

    def __init__(self, table: Any, count: int) -> None:
        super().__init__()
        self.before = len(table.weight) - count
        self.rows = nn.Parameter(torch.zeros(count, table.weight.shape[1]))

    def forward(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if isinstance(layer, nn.Embedding):
            places, scale = inputs[0] - self.before, getattr(layer, "embed_scale", 1.0)  # Gemma 3 scales its rows
            return output + scale * F.embedding(places.clamp(min=0), self.rows) * (places >= 0)[..., None]
        output[..., self.before :] += F.linear(inputs[0], self.rows)  # in place: a copy of all logits is large
        return output

    def merged(self, weight: Tensor) -> Tensor:
        copy = weight.clone()
        copy[self.before :] += self.rows.detach()
        return copy


def add_adapters(method: Method, lora: LoraSpec | None, seed: int) -> Method:
    """Add freshly drawn adapters to a plain method, if ``lora`` asks for them, and return it. The global generator is
    left as it was. Raise InputError if a transformer has no linear layers of the names in ``lora``."""
    if lora is None:
        return method
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for model in _adaptable(method):
            for layer in _layers(model, lora):
                _hook(LowRank(layer, lora), layer)
            if count := getattr(model, "marker_rows", 0):
                tables: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
                tied = tables[0].weight is tables[1].weight
                for layers in [tables] if tied else [[table] for table in tables]:
                    _hook(MarkerRows(layers[0], count), *layers)
    if any(parameter.device != method.device for parameter in method.parameters()):
        method.to(method.device)  # adapters are drawn on the CPU, for the same numbers on every device
    return method


def _hook(adapter: Adapter, *layers: Any) -> None:
    for layer in layers:
        layer.adapter = adapter
        layer.register_forward_hook(adapter)


def _adaptable(method: Method) -> list[PreTrainedModel]:
    """Return the transformers that start from a checkpoint, each with its head if it has one."""
    models = (module for module in method.modules() if isinstance(module, PreTrainedModel))
    return [model for model in models if getattr(model, "takes_adapters", False)]


def _layers(model: PreTrainedModel, lora: LoraSpec) -> list[Any]:
    head, found = model.get_output_embeddings(), {}
    for name, layer in linear_layers(model):
        if layer is not head:
            found.setdefault(name.rpartition(".")[2], []).append(layer)
    if unknown := sorted(set(lora.modules) - found.keys()):
        raise InputError(
            f"`lora` names {unknown[0]!r}, which is no linear layer of the backbone: {', '.join(sorted(found))}"
        )
    return [layer for module in lora.modules for layer in found[module]]


def enable_gradients(method: Method, stage: Stage) -> dict[str, nn.Parameter]:
    """Let gradients reach exactly the parameters that a stage trains, and return these by name. Of a transformer with
    adapters, only those are trained."""
    adapted = [model for model in _adaptable(method) if any(isinstance(part, Adapter) for part in model.modules())]
    frozen = {id(p) for model in adapted for name, p in model.named_parameters() if ADAPTER not in name}
    for name, parameter in method.named_parameters():
        parameter.requires_grad_(stage.trains(name) and id(parameter) not in frozen)
    return {name: parameter for name, parameter in method.named_parameters() if parameter.requires_grad}


def plain_weights(method: Method) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a method that is whole, as :func:`whole_weights` yields those of the method without
    adapters: what adapters add is part of the layers' weights."""
    found = ((name, part) for name, part in method.named_modules() if isinstance(part, Adapter))
    adapters = {f"{name.removesuffix('.adapter')}.weight": adapter for name, adapter in found}
    for name, tensor in whole_weights(method):
        if ADAPTER not in name:
            yield name, adapters[name].merged(tensor) if name in adapters else tensor


def plain_size(method: Method) -> int:
    """Return the number of a method's parameters without adapters."""
    return sum(parameter.numel() for name, parameter in method.named_parameters() if ADAPTER not in name)
