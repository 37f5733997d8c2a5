"""FLOPs, by PyTorch's counter, with formulas for attention in all fused kernels.

PyTorch's own (2.13) has none for the kernel for CPUs, and those of 2.11 fail where keys have fewer heads than queries.
The convention is PyTorch's for GPUs: causal attention counts in full, and backward passes compute scores once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.module_tracker import ModuleTracker

KERNELS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


def flop_counter() -> FlopCounterMode:
    """A context manager that counts the FLOPs of matrix products and attention inside."""
    formulas: dict[Any, Any] = {}
    for name in KERNELS:
        formulas[getattr(torch.ops.aten, name)] = _forward
        formulas[getattr(torch.ops.aten, f"{name}_backward")] = _backward
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    counter.mod_tracker = cast("ModuleTracker", Everywhere())
    return counter


class Everywhere:
    """In the place of PyTorch's tracker, by which modules are told apart: its hooks keep activations that are computed
    again alive, step after step. What is counted here is the whole alone."""

    parents = frozenset({"Global"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None: ...


def _forward(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """FLOPs of a forward pass by shapes: queries (B, H, L, D), keys (B, G, M, D) and values (B, G, M, E), where each
    of G heads serves H / G heads of queries."""
    return sdpa_flop_count(query, _repeated(key, query), _repeated(value, query))


def _backward(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """FLOPs of the backward pass, by the shape of the output's gradient (B, H, L, E) and those of the forward pass."""
    return sdpa_backward_flop_count(gradient, query, _repeated(key, query), _repeated(value, query))


def _repeated(shape: Sequence[int], query: Sequence[int]) -> tuple[int, ...]:
    """The shape of keys or values when there is a head for each head of queries."""
    batch, _, *rest = shape
    return (batch, query[1], *rest)
