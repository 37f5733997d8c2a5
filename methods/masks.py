"""Attention masks and position ids of padded batches."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(real: Tensor, last: int | None = None) -> Tensor:
    """Return a (B, 1, n, L) bool mask of what the ``last`` n positions (default: all) see, given the real ones (B, L).
    Each position sees at least itself, so that padding stays finite."""
    columns = torch.arange(real.shape[1], device=real.device)
    own = columns[real.shape[1] - (last or real.shape[1]) :, None]
    return (((columns < own) & real[:, None, :]) | (columns == own))[:, None]


def bidirectional_mask(real: Tensor) -> Tensor:
    """Return a (B, 1, 1, L) bool mask by which every position sees all real ones (B, L).

    The mask is explicit because current transformers silently ignore overrides of a model's own masking.
    """
    return real[:, None, None, :]


def positions_of(real: Tensor) -> Tensor:
    """Return position ids (B, L) that count the real positions from zero; padding has the id of its neighbour."""
    return (real.long().cumsum(1) - 1).clamp(min=0)
