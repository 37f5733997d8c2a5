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
    kept = [(layer, dict(layer.named_parameters(recurse=False))) for layer in _linears(method, precision)]
    cast_for_good(method, precision)
    try:
        yield
    finally:
        for layer, parameters in kept:
            for name, parameter in parameters.items():
                setattr(layer, name, parameter)


def cast_for_good(method: nn.Module, precision: str) -> None:
    """The same for a method that only answers from now on."""
    for layer in _linears(method, precision):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False))


def _linears(method: nn.Module, precision: str) -> list[nn.Linear]:
    return [module for module in method.modules() if type(module) is nn.Linear] if precision == "bfloat16" else []
