"""How the layers of a method's transformers are run: as they are, compiled, or recomputed in the backward pass."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from methods.base import Method
from methods.errors import InputError

Call = Callable[[Tensor], Tensor]
ATTENTION = {"self_attn", "attn", "self_attention", "attention"}  # its name in a layer, which depends on the model
PROGRAMS = 64  # at most, over all modules that are compiled in this process


def checkpoint_activations(method: Method, draws: bool = False) -> None:
    """Enable activation checkpointing: every transformer of a method keeps only the inputs of its layers and recomputes
    the rest in the backward pass, with the same ``draws`` if its layers draw random numbers. Raise InputError if the
    method reads a KV cache while it trains."""
    if method.caches_in_training:
        raise InputError(
            f"{method.name} reads a cache while it trains, and layers that run again would add to it "
            "twice: leave activation_checkpointing out of its row's engine"
        )
    for trunk in trunks(method):
        # The second name is the one in the oldest supported transformers, and is deprecated in the newest
        enable = getattr(trunk, "activation_checkpointing_enable", None) or trunk.gradient_checkpointing_enable
        enable({"use_reentrant": False, "preserve_rng_state": draws})


def compile_layers(method: Method, caches: bool) -> None:
    """Compile the layers of every transformer of a method on their first call, for any number of rows and positions.

    Layers differ only in their weights, so they share one program. If KV ``caches`` are read, each layer of a
    transformer with a head would need a program of its own, for its own index in the cache. Its attention is then left
    uncompiled, and the modules around it are compiled. A transformer without a head generates no tokens, so it reads no
    cache. Raise InputError if this machine has no compiler, or if a transformer's layers are not found.
    """
    _require_compiler(method.device)
    from torch._inductor import config as inductor  # takes a second

    heads = [module for module in method.modules() if isinstance(module, PreTrainedModel) and not _is_trunk(module)]
    whole: list[nn.Module] = []
    parts: list[nn.Module] = []
    for trunk in trunks(method):
        layers = [layer for layer in trunk.modules() if isinstance(layer, GradientCheckpointingLayer)]
        if not layers:
            raise InputError(
                f"`compile` does not find the layers of a {trunk.config.model_type}: set `compile: false` in the "
                "study's engine"
            )
        if caches and any(head.base_model is trunk for head in heads):
            parts += [part for layer in layers for name, part in layer.named_children() if name not in ATTENTION]
        else:
            whole += layers
    # Otherwise each process starts up to 32 workers, and several runs share a machine
    inductor.compile_threads = torch.get_num_threads()
    # Beyond this limit modules run uncompiled; different ranges and alignments of shapes need different programs
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, PROGRAMS)
    for module in (*whole, *parts):
        module.compile(dynamic=True)
    for part in parts:
        _leave_out_thoughts(part)


def _require_compiler(device: torch.device) -> None:
    """Raise InputError if the compiler that torch.compile calls for a device is missing: it would say so at the first
    step, in a long traceback."""
    host = "clang++" if sys.platform == "darwin" else "g++"
    variable, usual = ("CC", ("gcc", "clang")) if device.type == "cuda" else ("CXX", (host,))
    named = os.environ.get(variable)
    if not any(map(shutil.which, [named] if named else usual)):
        raise InputError(
            f"`compile` needs {named or ' or '.join(usual)}, which this machine does not have: install it, name "
            f"another compiler in {variable}, or set `compile: false` in the study's engine"
        )


def _leave_out_thoughts(part: nn.Module) -> None:
    """Run a compiled part of a layer as it is on single vectors (B, 1, d), if gradients are kept.

    For the gradient, a compiled module keeps a copy of its weights in the arithmetic's precision for each call, and
    each thought is one. Uncompiled, all calls of a step share the copy that autocast makes of a weight that is trained.
    """
    compiled, plain = cast(Call, part._compiled_call_impl), cast(Call, part._call_impl)

    def call(vectors: Tensor) -> Tensor:
        return (plain if vectors.shape[-2] == 1 and torch.is_grad_enabled() else compiled)(vectors)

    part._compiled_call_impl = call


def uncompile_layers(method: Method) -> None:
    """Make all modules of a method run uncompiled, whether they were compiled or not."""
    for module in method.modules():
        vars(module).pop("_compiled_call_impl", None)


def linear_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the linear layers in a module with their names. GPT-2's are of a class of their own."""
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear | Conv1D))


def trunks(method: Method) -> list[PreTrainedModel]:
    """Return the transformers of a method, without their heads."""
    return [module for module in method.modules() if isinstance(module, PreTrainedModel) and _is_trunk(module)]


def _is_trunk(model: PreTrainedModel) -> bool:
    return model.base_model is model
