"""What methods collate batches with: rows of ids to tensors on the CPU, and what is to be known of them ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

IGNORE = -100  # label of a position that carries no loss, as in Hugging Face


def pad(rows: Sequence[Sequence[int]], value: int, side: Literal["left", "right"] = "right") -> tuple[Tensor, Tensor]:
    """Rows of ids to a (B, L) LongTensor and its (B, L) bool mask of real positions."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    columns = torch.arange(width)
    mask = columns < lengths[:, None] if side == "right" else columns >= width - lengths[:, None]
    ids = torch.full((len(rows), width), value, dtype=torch.long)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids, mask


def continued(
    prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], eos: int
) -> tuple[Tensor, Tensor, int]:
    """Prompts, and the targets that are to be written after them, in one row each, padded on the right: the ids (B, L)
    that are read, without a row's last one; the labels (B, L) of what follows each of them, in targets alone; and how
    many of the ids are no padding."""
    ids, real = pad([[*prompt, *target] for prompt, target in zip(prompts, targets, strict=True)], eos)
    asked = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    labels = ids.masked_fill(~real | (torch.arange(ids.shape[1]) < asked), IGNORE)
    return ids[:, :-1], labels[:, 1:], int(real.sum()) - len(ids)


def labelled(labels: Tensor) -> Tensor:
    """(2, N) rows and columns of the labels (B, L) that carry a loss, which :func:`methods.backbone.label_loss` takes.
    For :meth:`Method.collate`."""
    return (labels != IGNORE).nonzero().T.contiguous()


def padding(**masks: Tensor) -> dict[str, Tensor]:
    """Those masks of real positions that leave any out. For :meth:`Method.collate`: where a batch has no mask, nothing
    of it is padding, and attention has a faster way for that."""
    return {name: real for name, real in masks.items() if not real.all()}
