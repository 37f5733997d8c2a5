"""Batches without padding: rows are joined into one, and each token attends to its own row alone.

All layers but attention see the joined row, without padding. Attention sees the rows apart, padded on the right, since
PyTorch's fastest kernels are those for causal attention without a mask: padding costs them little, and no real token
sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """Where tokens are. ``joined`` (B, L): the place of each in the joined row; padding has that of its neighbour.
    ``apart`` (T,): the place of each joined token in the rows, counted row by row, padding included."""

    joined: Tensor
    apart: Tensor

    def separate(self, states: Tensor) -> Tensor:
        """Return the states (B, heads, L, d) of the rows, given those of the joined row (1, heads, T, d)."""
        return states[0].index_select(1, self.joined.flatten()).unflatten(1, self.joined.shape).transpose(0, 1)

    def join(self, states: Tensor) -> Tensor:
        """Return the states (1, T, heads, d) of the joined row, given those of the rows (B, L, heads, d)."""
        return states.flatten(0, 1).index_select(0, self.apart)[None]


def join_rows(ids: Tensor, labels: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """Join rows of ids and labels (B, L) of these lengths, padded on the right, into one of each, (1, T). Return them
    with what :func:`places_of` needs. Call it in :meth:`Method.collate`."""
    columns = torch.arange(ids.shape[1])
    real = columns < lengths[:, None]
    return {
        "ids": ids[real][None],
        "labels": labels[real][None],
        "positions": columns.expand_as(ids)[real][None],
        "joined": (real.flatten().cumsum(0) - 1).view_as(ids),
        "apart": real.flatten().nonzero()[:, 0],
    }


def places_of(batch: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what the backbone is told of a batch that :func:`join_rows` joined; nothing of any other."""
    if "joined" not in batch:
        return {}
    return {"position_ids": batch["positions"], "places": Places(batch["joined"], batch["apart"])}
