"""The weights of a module by name, as checkpoints store them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def distinct_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and persistent buffers (not copies), each shared tensor once, under its first name."""
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def whole_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return an iterator over the weights of a module that is whole, detached."""
    return ((name, tensor.detach()) for name, tensor in distinct_tensors(module))
