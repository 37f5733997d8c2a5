"""Training steps on tensors that have shapes but no values: reading a value fails."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from benchmarks.plan.memory import shapes_only
from methods.base import Batch, Context, Method


def step_without_numbers(method: Method, batch: Batch, context: Context) -> None:
    """Run the forward and backward pass of a micro-batch, including the features of a cached stage.

    On a GPU, reading a value waits until all earlier work is done, and then the device waits for new work. Here it is
    an error of PyTorch that names the operation.
    """
    mode = FakeTensorMode()
    own = {**dict(method.named_buffers()), **method.state_dict(keep_vars=True)}
    weights: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in own.items()}
    with mode:
        unknown = shapes_only(batch, mode)
        if context.stage.cached:
            inside = {f"method.{name}": tensor for name, tensor in weights.items()}
            with torch.no_grad():
                unknown = method.collate_features(functional_call(_Features(method), inside, (unknown, context)))
        output = functional_call(method, weights, (unknown, context))
        torch.stack([*output.losses.values()]).sum().backward()


class _Features(nn.Module):
    """Call :meth:`Method.features` as a module's forward pass."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        return self.method.features(batch, context)
