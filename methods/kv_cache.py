"""KV caches of a transformer: one that grows, one in fixed buffers (:mod:`methods._static_cache`), and the choice of
none, where every pass reads everything again."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from functools import cache
from typing import Any

import torch
from torch import Tensor

from methods.last_layer import forward_last
from methods.masks import causal_mask, positions_of


class KVCache(ABC):
    """Everything that one trunk has read so far, for a batch of rows. Each read adds to it in place."""

    def __init__(self, trunk: Any) -> None:
        self.trunk = trunk

    @abstractmethod
    def forward(
        self, vectors: Tensor, real: Tensor, unpadded: bool, hidden_states: bool = False, last: int | None = None
    ) -> Any:
        """Read vectors (B, n, d) at the last n of L positions, and return the trunk's output there, with the
        ``hidden_states`` of all layers if asked for. ``real`` (B, L) marks the positions that are attended to;
        ``unpadded`` tells that these are all of them. At least the ``last`` final states are returned (None: n)."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""


@cache
def cache_argument(trunk: type) -> str:
    """Return the name that a class of trunks has for its cache: ``cache`` from transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(trunk.forward).parameters else "past_key_values"


class DynamicKVCache(KVCache):
    """A KV cache that grows by concatenation. Gradients flow through it."""

    def __init__(self, trunk: Any) -> None:
        from transformers import DynamicCache  # takes seconds, and not all commands build a model

        super().__init__(trunk)
        self.cache = DynamicCache(config=trunk.config)

    def forward(
        self, vectors: Tensor, real: Tensor, unpadded: bool, hidden_states: bool = False, last: int | None = None
    ) -> Any:
        count = vectors.shape[1]
        return forward_last(
            self.trunk,
            last or count,
            inputs_embeds=vectors,
            attention_mask=_mask(real, unpadded) if count == real.shape[1] else causal_mask(real, count),
            position_ids=positions_of(real)[:, -count:],
            use_cache=True,
            output_hidden_states=hidden_states,
            **{cache_argument(type(self.trunk)): self.cache},
        )

    def select(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)


class NoCache(KVCache):
    """No cache: each pass reads all vectors again, as in most published implementations. For comparison."""

    def __init__(self, trunk: Any) -> None:
        super().__init__(trunk)
        self.vectors: Tensor | None = None

    def forward(
        self, vectors: Tensor, real: Tensor, unpadded: bool, hidden_states: bool = False, last: int | None = None
    ) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        self.vectors = vectors if self.vectors is None else torch.cat([self.vectors, vectors], dim=1)
        output = self.trunk(
            inputs_embeds=self.vectors,
            attention_mask=_mask(real, unpadded),
            position_ids=positions_of(real),
            use_cache=False,
            output_hidden_states=hidden_states,
        )
        own = slice(-vectors.shape[1], None)
        return BaseModelOutputWithPast(
            last_hidden_state=output.last_hidden_state[:, own],
            hidden_states=tuple(states[:, own] for states in output.hidden_states) if hidden_states else None,
        )

    def select(self, rows: Tensor) -> None:
        assert self.vectors is not None
        self.vectors = self.vectors[rows]


def _mask(real: Tensor, unpadded: bool) -> Tensor | None:
    """Return the causal mask over all positions, or None if all are real: attention is faster without a mask."""
    return None if unpadded else causal_mask(real)
