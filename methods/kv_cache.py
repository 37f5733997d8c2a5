"""What a transformer keeps of what it has read: a cache that grows, fixed buffers (:mod:`methods._static_cache`), or
nothing, so that it reads all again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from methods.backbone import causal_mask, positions_of


class KVCache(ABC):
    """What one trunk has read of some rows; what it reads next is added in place."""

    def __init__(self, trunk: Any) -> None:
        self.trunk = trunk

    @abstractmethod
    def read(self, vectors: Tensor, real: Tensor, whole: bool, **settings: Any) -> Any:
        """The trunk's output at (B, n, d) vectors, the last n of all positions (B, L), of which ``real`` are seen;
        ``whole``: all of them are."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep only some rows."""


class DynamicKVCache(KVCache):
    """A cache that grows by concatenation. Gradients pass through it."""

    def __init__(self, trunk: Any) -> None:
        from transformers import DynamicCache  # seconds, which a command that builds no model need not wait

        super().__init__(trunk)
        self.cache = DynamicCache(config=trunk.config)

    def read(self, vectors: Tensor, real: Tensor, whole: bool, **settings: Any) -> Any:
        count = vectors.shape[1]
        return self.trunk(
            inputs_embeds=vectors,
            attention_mask=_mask(real, whole) if count == real.shape[1] else causal_mask(real, count),
            position_ids=positions_of(real)[:, -count:],
            past_key_values=self.cache,
            use_cache=True,
            **settings,
        )

    def select(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)


class NoCache(KVCache):
    """No cache: with every vector all of them are read again, as in most published codes. For comparison."""

    def __init__(self, trunk: Any) -> None:
        super().__init__(trunk)
        self.vectors: Tensor | None = None

    def read(self, vectors: Tensor, real: Tensor, whole: bool, **settings: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        self.vectors = vectors if self.vectors is None else torch.cat([self.vectors, vectors], dim=1)
        output = self.trunk(
            inputs_embeds=self.vectors,
            attention_mask=_mask(real, whole),
            position_ids=positions_of(real),
            use_cache=False,
            **settings,
        )
        return BaseModelOutputWithPast(last_hidden_state=output.last_hidden_state[:, -vectors.shape[1] :])

    def select(self, rows: Tensor) -> None:
        assert self.vectors is not None
        self.vectors = self.vectors[rows]


def _mask(real: Tensor, whole: bool) -> Tensor | None:
    """That of all positions; None where all are seen, which attention has a faster way for."""
    return None if whole else causal_mask(real)
