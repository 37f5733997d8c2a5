"""The weights of a method by name, and low-rank adapters (LoRA, arXiv:2106.09685) of transformers that start from a
checkpoint.

Beside chosen linear layers two narrow matrices are trained, which `peft` adds, and the rows of the markers that a
method adds to the token table: a marker that starts as a copy of a token could not be told apart from it otherwise. All
other weights of the transformer stay as they are; whatever a method has outside of it is trained whole. In the weights
that a stage ends with, what was trained is part of the layers' weights: what answers, is timed and is exported is the
plain method.

The rows of markers are our own. `peft` trains rows of a table too (`trainable_token_indices`), but copies the whole
table, and the head's, at every pass, and takes its gradient whole; a head of its own would not compute a loss by parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmarks.engine.layers import linear_layers
from benchmarks.studies.specs import LoraSpec
from methods.base import Method, Stage
from methods.errors import InputError

NAME = "default"  # of the one set of adapters that a layer has


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


def in_adapter(name: str) -> bool:
    """Return whether a weight of this name belongs to adapters, and not to the plain method."""
    return ".lora_" in name or ".adapter." in name


class MarkerRows(nn.Module):
    """A forward hook that adds to the last ``count`` rows (count, d) of a token table or of a head (V, d), or of both
    if they are one: at first, nothing."""

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
        """Return the weight with which the layer by itself gives the same output."""
        copy = weight.clone()
        copy[self.before :] += self.rows.detach()
        return copy


def add_adapters(method: Method, lora: LoraSpec | None, seed: int) -> Method:
    """Add freshly drawn adapters to a plain method, if ``lora`` asks for them, and return it. The global generator is
    left as it was. Raise InputError if a transformer has no linear layers of the names in ``lora``."""
    if lora is None:
        return method
    from peft import LoraConfig, inject_adapter_in_model  # takes a quarter of a second

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for model in _adaptable(method).values():
            _require_layers(model, lora)
            inject_adapter_in_model(
                LoraConfig(
                    r=lora.rank,
                    lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]
                    lora_dropout=lora.dropout,
                    target_modules=list(lora.modules),
                    fan_in_fan_out=any(isinstance(layer, Conv1D) for _, layer in linear_layers(model)),
                ),
                model,
                NAME,
            )
            for layer in _low_rank(model).values():
                layer.cast_input_dtype_enabled = False  # autocast does it, without a copy of the input in float32
            if count := getattr(model, "marker_rows", 0):
                tables: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
                tied = tables[0].weight is tables[1].weight
                for layers in [tables] if tied else [[table] for table in tables]:
                    rows = MarkerRows(layers[0], count)
                    for layer in layers:
                        layer.adapter = rows
                        layer.register_forward_hook(rows)
    if any(parameter.device != method.device for parameter in method.parameters()):
        method.to(method.device)  # adapters are drawn on the CPU, for the same numbers on every device
    return method


def _adaptable(method: Method) -> dict[str, PreTrainedModel]:
    """Return the transformers that start from a checkpoint, each with its head if it has one, by name."""
    models = {name: module for name, module in method.named_modules() if isinstance(module, PreTrainedModel)}
    return {name: model for name, model in models.items() if getattr(model, "takes_adapters", False)}


def _require_layers(model: PreTrainedModel, lora: LoraSpec) -> None:
    head = model.get_output_embeddings()
    found = {name.rpartition(".")[2] for name, layer in linear_layers(model) if layer is not head}
    if unknown := sorted(set(lora.modules) - found):
        raise InputError(
            f"`lora` names {unknown[0]!r}, which is no linear layer of the backbone: {', '.join(sorted(found))}"
        )


def _low_rank(module: nn.Module) -> dict[str, Any]:
    """Return the layers to which `peft` added matrices, by name."""
    return {name: layer for name, layer in module.named_modules() if hasattr(layer, "lora_A")}


def enable_gradients(method: Method, stage: Stage) -> dict[str, nn.Parameter]:
    """Let gradients reach exactly the parameters that a stage trains, and return these by name. Of a transformer with
    adapters, only those are trained."""
    adapted = [model for model in _adaptable(method).values() if _low_rank(model)]
    frozen = {id(p) for model in adapted for name, p in model.named_parameters() if not in_adapter(name)}
    for name, parameter in method.named_parameters():
        parameter.requires_grad_(stage.trains(name) and id(parameter) not in frozen)
    return {name: parameter for name, parameter in method.named_parameters() if parameter.requires_grad}


def merged_weights(method: Method) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a method that is whole, as :func:`whole_weights` yields those of the method without
    adapters: what adapters add is part of the layers' weights."""
    adapted = {f"{name}.base_layer.weight": layer for name, layer in _low_rank(method).items()}
    tables = ((name, part) for name, part in method.named_modules() if isinstance(part, MarkerRows))
    markers = {f"{name.removesuffix('.adapter')}.weight": rows for name, rows in tables}
    for name, tensor in whole_weights(method):
        if in_adapter(name):
            continue
        if name in adapted:
            tensor = tensor + adapted[name].get_delta_weight(NAME).detach()
        elif name in markers:
            tensor = markers[name].merged(tensor)
        yield name.replace(".base_layer.", "."), tensor


def save_adapters(method: Method, folder: Path, start: str) -> None:
    """Write the adapters of each transformer as `peft` does, in a folder of the transformer's name. With these files,
    ``PeftModel.from_pretrained`` makes the trained transformer of the one that training started from, whose name
    ``start`` is: rows for the method's markers have to be added to it first."""
    from peft import get_peft_model_state_dict

    for name, model in _adaptable(method).items():
        if not _low_rank(model):
            continue
        place, tables = folder / name, {}
        place.mkdir(parents=True, exist_ok=True)
        found = get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
        for table, rows in ((table, part) for table, part in model.named_modules() if isinstance(part, MarkerRows)):
            layer = table.removesuffix(".adapter")
            weight = rows.merged(model.get_parameter(f"{layer}.weight"))[rows.before :]
            found[f"{layer}.token_adapter.trainable_tokens_delta"] = weight
            tables[layer] = list(range(rows.before, rows.before + len(weight)))
        kept = {f"base_model.model.{key}": tensor.detach().cpu().contiguous() for key, tensor in found.items()}
        save_file(kept, place / "adapter_model.safetensors", {"format": "pt"})
        config: Any = model.peft_config
        settings = {"base_model_name_or_path": start, "trainable_token_indices": tables or None}
        replace(config[NAME], inference_mode=True, **settings).save_pretrained(place)


def size_without_adapters(method: Method) -> int:
    """Return the number of a method's parameters without adapters."""
    return sum(parameter.numel() for name, parameter in method.named_parameters() if not in_adapter(name))
