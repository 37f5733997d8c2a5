"""The output layer of a language model, which computes the loss of many tokens without keeping their logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Logits that are computed at once, at most: 1 GiB in float32. Fewer would save little more, and for every part of the
# logits the gradient of the whole weight (half a GiB at 0.5B) is read and written
AT_ONCE = 2**28


class Head(nn.Linear):
    """A linear layer from hidden states to logits; given labels, it returns their loss instead.

    The loss belongs to the forward pass of this layer because ranks differ in the number of their labels, and under
    ZeRO 3 all ranks must call the same layers.
    """

    @classmethod
    def like(cls, layer: nn.Linear) -> Head:
        """Return a head that shares the weight and bias of another layer."""
        head = cls(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        head.weight, head.bias = layer.weight, layer.bias
        return head

    def splits(self, rows: int) -> bool:
        """Return whether the logits of so many rows are too many to be computed at once. Adapters need them whole,
        since they add to them."""
        return rows * self.out_features > AT_ONCE and not hasattr(self, "adapter")

    def forward(self, input: Tensor, labels: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Return the logits (..., V) of hidden states (..., d). Given ``labels`` (N,) of hidden states (N, d), return
        the sum of the cross entropies, each times its weight."""
        if labels is None:
            return super().forward(input)
        return _SplitLoss.apply(input, self.weight, self.bias, labels, weights, torch.is_grad_enabled())


def arithmetic(like: Tensor) -> torch.dtype:
    """Return the dtype that layers compute in, given their input."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


class _SplitLoss(torch.autograd.Function):
    """The summed cross entropy of a linear layer, for part after part of its rows. Gradients are computed in the same
    pass, while the logits of a part exist; the backward pass only scales them.

    ``torch.nn.functional.linear_cross_entropy``, new in torch 2.13, is not used: it sums the loss in the dtype of the
    hidden states, which leaves two or three digits in bfloat16, and with weights it computes all logits twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        factors: Tensor | None,
        grad: bool,
    ) -> Tensor:
        device = hidden.device.type
        dtype = arithmetic(hidden)
        total = hidden.new_zeros((), dtype=torch.float32)
        to_hidden, to_weight, to_bias = (
            torch.zeros_like(tensor) if grad and needed and tensor is not None else None
            for tensor, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        # Autocast would keep the copy that it makes of the weight here, where no gradients are recorded, and would use
        # it where they are
        with torch.autocast(device, enabled=False):
            hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
            rows = max(1, AT_ONCE // len(weight))
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                own = labels[part, None]
                logs = F.linear(hidden[part], weight, bias).float().log_softmax(-1)
                losses = -logs.gather(1, own)
                total += (losses if factors is None else losses * factors[part, None]).sum()
                if not any(ctx.needs_input_grad) or not grad:
                    continue
                error = logs.exp_()  # of the probabilities: the gradient to the logits
                error.scatter_add_(1, own, -torch.ones_like(losses))
                if factors is not None:
                    error *= factors[part, None]
                error = error.to(dtype)
                if to_hidden is not None:
                    to_hidden[part] = error @ weight
                if to_weight is not None:
                    to_weight += error.T @ hidden[part]
                if to_bias is not None:
                    to_bias += error.sum(0)
        ctx.save_for_backward(to_hidden, to_weight, to_bias)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # In place, since copies would be large; PyTorch then refuses to use the graph a second time
        return *(None if one is None else one.mul_(scale) for one in ctx.saved_tensors), None, None, None
