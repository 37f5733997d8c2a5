"""How the layers of a method's transformers are called: as they are, compiled, or again in the backward pass."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from methods.base import Method
from methods.errors import InputError

PROGRAMS = 64  # of all modules that are compiled in this process, at most


def checkpoint_activations(method: Method) -> None:
    """Let every transformer of a method keep only the inputs of its layers, and compute the rest again."""
    if method.caches_in_training:
        raise InputError(
            f"{method.name} reads a cache while it trains, and layers that run again would add to it "
            "twice: leave activation_checkpointing out of its row's engine"
        )
    for trunk in trunks(method):
        # The second is its name in the oldest transformers of the range, and a deprecated one in the newest
        enable = getattr(trunk, "activation_checkpointing_enable", None) or trunk.gradient_checkpointing_enable
        # Nothing in a layer draws random numbers, whose state would be kept and set again for each
        enable({"use_reentrant": False, "preserve_rng_state": False})


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
