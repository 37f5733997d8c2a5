"""A KV cache in fixed buffers instead of one that grows, so that one captured CUDA graph serves every decoded token.

Launching a transformer's kernels one by one takes far longer than the arithmetic of one token. A graph launches them
all at once, but needs tensors whose addresses never change. Each trunk has one set of buffers. Rows and positions are
rounded up, so that few graphs serve all batches. Without a GPU, as in tests, the same buffers are used without graphs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers.cache_utils import StaticLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from methods.head import arithmetic
from methods.kv_cache import DynamicKVCache, KVCache, cache_argument
from methods.masks import causal_mask, positions_of

POSITIONS = 128  # lengths are rounded up to its multiples: a larger one means fewer graphs, more masked positions


class Slots(StaticLayer):
    """One layer's keys and values in given tensors (R, heads, L, d). New ones go to positions ``slots`` (n,)."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().__init__(max_cache_len=keys.shape[2])
        self.keys, self.values = self.own = keys, values
        self.slots, self.is_initialized = slots, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        for own, states in zip(self.own, (key_states, value_states), strict=True):
            own.index_copy_(2, self.slots, states.to(own.dtype))
        return self.own


class StaticKVCache(KVCache):
    """A cache that grows while the prompt is read; the next read copies it into the trunk's buffers."""

    def __init__(self, trunk: Any) -> None:
        if torch.is_grad_enabled():
            raise ValueError("buffers keep no gradients: decode under torch.no_grad(), or with the cache `dynamic`")
        super().__init__(trunk)
        self.prompt: DynamicKVCache | None = DynamicKVCache(trunk)
        self.buffers = _BUFFERS.setdefault(trunk, Buffers())
        self.ticket = 0

    def forward(
        self, vectors: Tensor, real: Tensor, unpadded: bool, hidden_states: bool = False, last: int | None = None
    ) -> Any:
        count, length = vectors.shape[1], real.shape[1]
        if self.prompt is not None:
            if count == length:
                return self.prompt.forward(vectors, real, unpadded, hidden_states, last)
            self.ticket = self.buffers.take(self.trunk, self.prompt, length - count)
            self.prompt = None
        if self.ticket != self.buffers.ticket:
            raise RuntimeError("these rows' buffers serve others now: finish one batch before the next is begun")
        self.buffers.fit(len(vectors), length)
        if count == 1 and not hidden_states:
            return BaseModelOutputWithPast(last_hidden_state=self.buffers.step(self.trunk, vectors, real))
        return self.buffers.several(self.trunk, vectors, real, hidden_states)

    def select(self, rows: Tensor) -> None:
        if self.prompt is not None:
            self.prompt.select(rows)
        else:
            self.buffers.select(rows)


class Buffers:
    """The keys and values of every layer, the inputs of one step, and the CUDA graphs captured on them."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []  # keys and values (R, heads, L, d) of every layer
        self.vectors = self.positions = self.mask = self.slots = torch.empty(0)
        self.graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.weights: tuple[int, ...] = ()
        self.ticket = 0

    def take(self, trunk: Any, prompt: DynamicKVCache, length: int) -> int:
        """Copy in the cache of a prompt of ``length`` positions. Return a ticket, valid until the next call."""
        layers: list[Any] = prompt.cache.layers
        held: list[tuple[Tensor, Tensor]] = [(layer.keys, layer.values) for layer in layers]
        weights = tuple(tensor.data_ptr() for tensor in (*trunk.parameters(), *trunk.buffers()))
        dtype = arithmetic(held[0][0])
        if weights != self.weights or self.layers[0][0].dtype != dtype:  # else graphs would read freed weights
            if held[0][0].is_cuda:
                gc.collect()  # an earlier method, with its graphs, may wait in reference cycles
            self.weights, self.graphs = weights, {}
            self.layers = [(keys[:0, :, :0].to(dtype), values[:0, :, :0].to(dtype)) for keys, values in held]
        self.fit(len(held[0][0]), length + 1)
        for own, states in zip(self.layers, held, strict=True):
            for buffer, state in zip(own, states, strict=True):
                buffer[: len(state), :, :length] = state
        self.mask.zero_()
        self.ticket += 1
        return self.ticket

    def fit(self, rows: int, length: int) -> None:
        """Make room for this many rows and positions. If that moves the buffers, graphs must be captured again."""
        old_rows, _, old_length, _ = self.layers[0][0].shape
        more_rows = max(_rounded_rows(rows) - old_rows, 0)
        more = max(_rounded_length(length), 2 * old_length) - old_length if length > old_length else 0
        if not (more_rows or more):
            return
        self.graphs = {}
        room = (0, 0, 0, more, 0, 0, 0, more_rows)
        self.layers = [(F.pad(keys, room), F.pad(values, room)) for keys, values in self.layers]
        device, (total, _, longest, _) = self.layers[0][0].device, self.layers[0][0].shape
        self.vectors = torch.empty(0, device=device)
        self.positions = torch.zeros(total, 1, dtype=torch.long, device=device)
        self.mask = torch.zeros(total, 1, 1, longest, dtype=torch.bool, device=device)
        self.slots = torch.zeros(1, dtype=torch.long, device=device)

    def select(self, rows: Tensor) -> None:
        for own in self.layers:
            for buffer in own:
                buffer[: len(rows)] = buffer[rows]

    def step(self, trunk: Any, vectors: Tensor, real: Tensor) -> Tensor:
        """Read one more vector per row, (B, 1, d), and return the final hidden states (B, 1, d)."""
        rows, length = real.shape
        height, width = _rounded_rows(rows), _rounded_length(length)
        if not len(self.vectors):
            self.vectors = vectors.new_zeros(len(self.mask), *vectors.shape[1:])
        self.vectors[:rows] = vectors
        self.positions[:rows] = positions_of(real)[:, -1:]
        self.mask[:rows, 0, 0, :length] = real
        self.mask[:height, 0, 0, length - 1] = True  # surplus rows see themselves too, and stay finite
        self.slots.fill_(length - 1)
        inputs = (self.vectors[:height], self.mask[:height, :, :, :width], self.positions[:height], self.slots)
        if not vectors.is_cuda:
            return self._run(trunk, *inputs).last_hidden_state[:rows].clone()
        key = (height, width, arithmetic(vectors))
        if key not in self.graphs:
            self.graphs[key] = self._capture(trunk, *inputs)
        graph, output = self.graphs[key]
        graph.replay()
        return output[:rows].clone()

    def several(self, trunk: Any, vectors: Tensor, real: Tensor, hidden_states: bool) -> Any:
        """Read n more vectors per row, (B, n, d), and return the trunk's output."""
        (_, count, _), length = vectors.shape, real.shape[1]
        mask = F.pad(causal_mask(real, count), (0, _rounded_length(length) - length))
        slots = torch.arange(length - count, length, device=real.device)
        return self._run(trunk, vectors, mask, positions_of(real)[:, -count:], slots, hidden_states=hidden_states)

    def _run(
        self,
        trunk: Any,
        vectors: Tensor,
        mask: Tensor,
        positions: Tensor,
        slots: Tensor,
        *,
        hidden_states: bool = False,
    ) -> Any:
        rows, length = len(vectors), mask.shape[-1]
        layers: list[Any] = [Slots(k[:rows, :, :length], v[:rows, :, :length], slots) for k, v in self.layers]
        kind = vectors.device.type
        # autocast would cache the weights that it casts, and a graph would read them after they are freed
        with torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            return trunk(
                inputs_embeds=vectors,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                output_hidden_states=hidden_states,
                **{cache_argument(type(trunk)): Cache(layers=layers)},
            )

    def _capture(self, trunk: Any, *inputs: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Capture one step. Return its graph and output tensor. The warm-up writes what the first replay will write."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._run(trunk, *inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with nothing_collected(), torch.cuda.graph(graph):
            output = self._run(trunk, *inputs).last_hidden_state
        return graph, output


def free_buffers(module: nn.Module) -> None:
    """Free the buffers and graphs of all trunks in a module. The next batch that is decoded makes new ones."""
    for trunk in module.modules():
        _BUFFERS.pop(trunk, None)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Collect no garbage inside the block. If Python freed a graph of an earlier method during a capture, that would
    invalidate the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rounded_rows(rows: int) -> int:
    """Round up to a power of two."""
    return 1 << (rows - 1).bit_length()


def _rounded_length(length: int) -> int:
    return -(-length // POSITIONS) * POSITIONS


_BUFFERS: WeakKeyDictionary[nn.Module, Buffers] = WeakKeyDictionary()
