"""Weights in the precision that answers are computed in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def cast_linears(method: nn.Module, precision: str) -> Iterator[None]:
    """Inside, linear layers are in bfloat16 if answers are. Autocast would cast their float32 weights for every batch,
    and in a CUDA graph for every token. The numbers are the same."""
    layers = [module for module in method.modules() if type(module) is nn.Linear] if precision == "bfloat16" else []
    kept = [(layer, dict(layer.named_parameters(recurse=False))) for layer in layers]
    for layer, parameters in kept:
        for name, parameter in parameters.items():
            setattr(layer, name, nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False))
    try:
        yield
    finally:
        for layer, parameters in kept:
            for name, parameter in parameters.items():
                setattr(layer, name, parameter)
