"""Count FLOPs with PyTorch's counter, extended by formulas for attention in all fused kernels.

PyTorch's own counter has no formula for the CPU kernel (in 2.13), and those in 2.11 fail if keys have fewer heads than
queries. The convention is PyTorch's for GPUs: causal attention counts in full, and backward passes compute the scores
once more.
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
    """Return a context manager that counts the FLOPs of matrix products and attention inside it."""
    formulas: dict[Any, Any] = {}
    for name in KERNELS:
        formulas[getattr(torch.ops.aten, name)] = _forward
        formulas[getattr(torch.ops.aten, f"{name}_backward")] = _backward
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    counter.mod_tracker = cast("ModuleTracker", Everywhere())
    return counter


class Everywhere:
    """Replaces PyTorch's tracker, which tells modules apart: its hooks keep recomputed activations alive, step after
    step. Only the total is counted here."""

    parents = frozenset({"Global"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None: ...


def _forward(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of a forward pass with these shapes: queries (B, H, L, D), keys (B, G, M, D) and values (B, G,
    M, E), where each of the G heads serves H / G heads of queries."""
    return sdpa_flop_count(query, _repeated(key, query), _repeated(value, query))


def _backward(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Return the FLOPs of the backward pass, given the shape of the output's gradient (B, H, L, E) and the shapes of
    the forward pass."""
    return sdpa_backward_flop_count(gradient, query, _repeated(key, query), _repeated(value, query))


def _repeated(shape: Sequence[int], query: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of keys or values once they are repeated for each head of queries."""
    batch, _, *rest = shape
    return (batch, query[1], *rest)
