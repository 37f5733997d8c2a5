"""Fixed buffers in the place of a cache that grows, so that one captured CUDA graph serves every token decoded.

Launching a transformer's kernels one by one takes far longer than one token's arithmetic; a graph launches them at
once, but needs tensors that stay where they are. A trunk has one set of buffers; rows and positions are rounded up, so
that few graphs serve all batches. Without a GPU the same buffers are used without graphs, which is how tests see them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from methods.backbone import causal_mask, positions_of
from methods.memory import Memory

ReadLayer = Callable[..., Tensor]  # as `read_layer`
POSITIONS = 128  # lengths are rounded up to multiples of it: fewer graphs, more masked positions to pass over


class Slots(Cache):
    """What one layer is given as its cache: its own keys and values (R, heads, L, d) alone, whatever its place among
    the layers; what is read next goes to ``slots`` (n,)."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:  # without the layers of the class
        self.keys, self.values, self.slots = keys, values, slots

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.slots, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.slots, value_states.to(self.values.dtype))
        return self.keys, self.values


def read_layer(
    layer: Any, hidden: Tensor, mask: Tensor, positions: Tensor, rotation: Any, keys: Tensor, values: Tensor, slots: Any
) -> Tensor:
    """A layer's output at (B, n, d) hidden states, whose keys and values go to ``slots`` of its buffers."""
    return layer(
        hidden,
        attention_mask=mask,
        position_ids=positions,
        position_embeddings=rotation,
        past_key_values=Slots(keys, values, slots),
        use_cache=True,
    )


@cache
def _program() -> ReadLayer:
    return torch.compile(read_layer, dynamic=True)


def compiled_read_layer(*arguments: Any) -> Tensor:
    """:func:`read_layer` from a program that is compiled for any number of rows and positions."""
    # A layer knows its number, which nothing reads here: unless told so, there would be a program for each
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        return _program()(*arguments)


class Static(Memory):
    """Everything, the prompt too, is read into the trunk's buffers."""

    def __init__(self, trunk: Any, compiled: bool = False) -> None:
        if torch.is_grad_enabled():
            raise ValueError("buffers keep no gradients: decode under torch.no_grad(), or with the cache `dynamic`")
        super().__init__(trunk)
        self.buffers = _BUFFERS.setdefault(trunk, Buffers())
        self.read_layer = compiled_read_layer if compiled else read_layer
        self.ticket = 0

    def read(self, vectors: Tensor, real: Tensor, **settings: Any) -> Any:
        if settings:
            raise ValueError(f"buffers give final hidden states alone, not {', '.join(settings)}: use `dynamic`")
        if not self.ticket:
            self.ticket = self.buffers.take(self.trunk, vectors)
        if self.ticket != self.buffers.ticket:
            raise RuntimeError("these rows' buffers serve others now: finish one batch before the next is begun")
        self.buffers.fit(*real.shape)
        read = self.buffers.step if vectors.shape[1] == 1 else self.buffers.several
        return BaseModelOutputWithPast(last_hidden_state=read(self.trunk, self.read_layer, vectors, real))

    def select(self, rows: Tensor) -> None:
        self.buffers.select(rows)


class Buffers:
    """Keys and values of every layer, the inputs of one step, and the graphs that were captured on them."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []  # keys and values (R, heads, L, d) of every layer
        self.vectors = self.positions = self.mask = self.slots = torch.empty(0)
        self.graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.weights: tuple[int, ...] = ()
        self.ticket = 0

    def take(self, trunk: Any, vectors: Tensor) -> int:
        """Begin with rows of which nothing is read yet, as ``vectors`` will be. The ticket says who has the buffers
        from now on."""
        weights = tuple(tensor.data_ptr() for tensor in (*trunk.parameters(), *trunk.buffers()))
        dtype = _arithmetic(vectors)
        if weights != self.weights or self.layers[0][0].dtype != dtype:  # graphs would read weights that are gone
            self.weights, self.graphs = weights, {}
            config = trunk.config
            size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            nothing = vectors.new_empty(0, config.num_key_value_heads, 0, size, dtype=dtype)
            self.layers = [(nothing, nothing)] * len(trunk.layers)
        self.mask.zero_()
        self.ticket += 1
        return self.ticket

    def fit(self, rows: int, length: int) -> None:
        """Make room for so many rows and positions. Where that moves the buffers, graphs have to be captured again."""
        old_rows, _, old_length, _ = self.layers[0][0].shape
        more_rows = max(_whole_rows(rows) - old_rows, 0)
        more = max(_whole(length), 2 * old_length) - old_length if length > old_length else 0
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

    def step(self, trunk: Any, read: ReadLayer, vectors: Tensor, real: Tensor) -> Tensor:
        """The final hidden states (B, 1, d) of the one vector that every row reads next."""
        (rows, length), whole = real.shape, _whole_rows(len(real))
        if not len(self.vectors):
            self.vectors = vectors.new_zeros(len(self.mask), *vectors.shape[1:])
        self.vectors[:rows] = vectors
        self.positions[:rows] = positions_of(real)[:, -1:]
        self.mask[:rows, 0, 0, :length] = real
        self.mask[:whole, 0, 0, length - 1] = True  # rows that nobody asked for see themselves too, and stay finite
        self.slots.fill_(length - 1)
        inputs = (self.vectors[:whole], self.mask[:whole, :, :, : _whole(length)], self.positions[:whole], self.slots)
        if not vectors.is_cuda:
            return self._run(trunk, read, *inputs)[:rows].clone()
        key = (whole, _whole(length), _arithmetic(vectors), read)
        if key not in self.graphs:
            self.graphs[key] = self._capture(trunk, read, *inputs)
        graph, output = self.graphs[key]
        graph.replay()
        return output[:rows].clone()

    def several(self, trunk: Any, read: ReadLayer, vectors: Tensor, real: Tensor) -> Tensor:
        """The final hidden states (B, n, d) of vectors that every row reads next."""
        (_, count, _), length = vectors.shape, real.shape[1]
        mask = F.pad(causal_mask(real, count), (0, _whole(length) - length))
        slots = torch.arange(length - count, length, device=real.device)
        return self._run(trunk, read, vectors, mask, positions_of(real)[:, -count:], slots)

    def _run(
        self, trunk: Any, read: ReadLayer, vectors: Tensor, mask: Tensor, positions: Tensor, slots: Tensor
    ) -> Tensor:
        """What the trunk's own forward pass does, except that each layer is given its own buffers alone: layers then
        differ in weights only, and all of them share one compiled program."""
        rows, length = len(vectors), mask.shape[-1]
        kind = vectors.device.type
        # autocast would keep the weights that it casts, and a graph read them where they no longer are
        with torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            hidden, rotation = vectors, trunk.rotary_emb(vectors, positions)
            for layer, (keys, values) in zip(trunk.layers, self.layers, strict=True):
                own = keys[:rows, :, :length], values[:rows, :, :length]
                hidden = read(layer, hidden, mask, positions, rotation, *own, slots)
            return trunk.norm(hidden)

    def _capture(self, trunk: Any, read: ReadLayer, *inputs: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """A graph of one step and where it leaves its hidden states. The warm-up writes what the first replay will."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._run(trunk, read, *inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with nothing_collected(), torch.cuda.graph(graph):
            output = self._run(trunk, read, *inputs)
        return graph, output


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Python's collector runs at the start and then rests: a graph of an earlier method that it freed during a capture
    would invalidate the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _whole_rows(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def _whole(length: int) -> int:
    return -(-length // POSITIONS) * POSITIONS


def _arithmetic(like: Tensor) -> torch.dtype:
    """The precision that attention computes in."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


_BUFFERS: WeakKeyDictionary[nn.Module, Buffers] = WeakKeyDictionary()
