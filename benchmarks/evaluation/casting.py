"""A method made ready for answers alone: linear layers in the precision of the answers, layers compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from benchmarks.engine.layers import compile_layers, plain_layers
from benchmarks.studies.specs import EngineSpec
from methods.base import Method


@contextmanager
def answering(method: Method, engine: EngineSpec) -> Iterator[None]:
    """Inside, linear layers are in bfloat16 if answers are. Autocast would cast their float32 weights for every batch,
    and in a CUDA graph for every token. The numbers are the same. Layers that the engine compiles are so here too."""
    kept = [(layer, dict(layer.named_parameters(recurse=False))) for layer in _linears(method, engine)]
    try:
        answer_for_good(method, engine)
        yield
    finally:
        plain_layers(method)
        for layer, parameters in kept:
            for name, parameter in parameters.items():
                setattr(layer, name, parameter)


def answer_for_good(method: Method, engine: EngineSpec) -> None:
    """The same for a method that only answers from now on."""
    for layer in _linears(method, engine):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False))
    if engine.compile:
        compile_layers(method, caches=True)


def _linears(method: Method, engine: EngineSpec) -> list[nn.Linear]:
    """Those that are cast."""
    return [module for module in method.modules() if type(module) is nn.Linear and engine.precision == "bfloat16"]
