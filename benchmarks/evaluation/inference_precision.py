"""Prepare a method for inference: its linear layers in the precision of answers, its layers compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from benchmarks.engine.layers import compile_layers, linear_layers, plain_layers
from benchmarks.studies.specs import EngineSpec
from methods._static_cache import free_buffers
from methods.base import Method


@contextmanager
def temporarily_prepared(method: Method, engine: EngineSpec) -> Iterator[None]:
    """Keep linear layers in bfloat16 inside the block, if the engine computes in bfloat16, and restore them afterwards.

    Autocast would cast their float32 weights for every batch, and in a CUDA graph for every token. The results are the
    same. Layers that the engine compiles are compiled here too.
    """
    kept = [(layer, dict(layer.named_parameters(recurse=False))) for layer in _linears(method, engine)]
    try:
        prepare_for_answers(method, engine)
        yield
    finally:
        free_buffers(method)  # training may follow, and be timed
        plain_layers(method)
        for layer, parameters in kept:
            for name, parameter in parameters.items():
                setattr(layer, name, parameter)


def prepare_for_answers(method: Method, engine: EngineSpec) -> None:
    """Do the same as :func:`temporarily_prepared`, but for good: the float32 weights are lost."""
    for layer in _linears(method, engine):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False))
    if engine.compile:
        compile_layers(method, caches=True)


def _linears(method: Method, engine: EngineSpec) -> list[nn.Module]:
    """Return the linear layers that are cast: all if the engine computes in bfloat16, else none."""
    return [layer for _, layer in linear_layers(method)] if engine.precision == "bfloat16" else []
