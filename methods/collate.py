"""Helpers for :meth:`Method.collate`, which runs on the CPU: padding, labels, and the indices of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

IGNORE = -100  # label of a position that carries no loss, as in Hugging Face


def pad(rows: Sequence[Sequence[int]], value: int, side: Literal["left", "right"] = "right") -> tuple[Tensor, Tensor]:
    """Pad rows of ids. Return a (B, L) LongTensor and the (B, L) bool mask of its real positions."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    columns = torch.arange(width)
    mask = columns < lengths[:, None] if side == "right" else columns >= width - lengths[:, None]
    ids = torch.full((len(rows), width), value, dtype=torch.long)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids, mask


def build_inputs_and_labels(
    prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], eos: int
) -> tuple[Tensor, Tensor, int]:
    """Join each prompt and the target to be written after it into one row, padded on the right. Return the ids (B, L)
    to be read, which leave out the last token of a row; the labels (B, L), each the token that comes next if that is in
    the target; and the number of ids that are not padding."""
    ids, real = pad([[*prompt, *target] for prompt, target in zip(prompts, targets, strict=True)], eos)
    asked = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    labels = ids.masked_fill(~real | (torch.arange(ids.shape[1]) < asked), IGNORE)
    return ids[:, :-1], labels[:, 1:], int(real.sum()) - len(ids)


def label_indices(labels: Tensor) -> Tensor:
    """Return the rows and columns (2, N) of the labels (B, L) that carry a loss, for
    :func:`methods.backbone.label_loss`. Call it in :meth:`Method.collate`, while the labels are on the CPU."""
    return (labels != IGNORE).nonzero().T.contiguous()


def labelled_tail(labels: Tensor) -> Tensor:
    """Return the labels (B, n) from the first column on in which some row has one: states before it are not needed."""
    return labels[:, int((labels != IGNORE).any(0).long().argmax()) :]


def masks_of_padding(**masks: Tensor) -> dict[str, Tensor]:
    """Return those masks of real positions that mask anything out. Call it in :meth:`Method.collate`: if a batch has no
    mask, it has no padding, and attention takes a faster path."""
    return {name: real for name, real in masks.items() if not real.all()}
