"""The engine of one process on one device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from benchmarks.engine.base import MOMENTS, Engine
from benchmarks.engine.device import autocast
from benchmarks.engine.weights import whole_weights
from methods.base import Batch, Context, Output


class ProcessEngine(Engine):
    """An engine that keeps weights, gradients and optimizer states whole."""

    def output(self, batch: Batch, context: Context) -> Output:
        with autocast(self.method.device, self.spec.precision):
            return self.method(batch, context)

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()

    def step(self, step: int) -> Tensor:
        parameters = self.trainable.values()
        for parameter in parameters:  # also decay those that this batch does not reach, like engines with flat states
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = nn.utils.clip_grad_norm_(parameters, self.training.max_grad_norm or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return norm

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return whole_weights(self.method)

    def optimizer_states(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.trainable.items():
            for moment in MOMENTS:
                yield f"{name}.{moment}", self.optimizer.state[parameter][moment]

    def load_optimizer_states(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        self.updates = updates
        for name, parameter in self.trainable.items():
            # Copy: a memory-mapped tensor would keep the file of a checkpoint that is soon removed
            moments = {key: tensors[f"{name}.{key}"].to(parameter.device, copy=True) for key in MOMENTS}
            count = torch.tensor(float(updates), device=parameter.device)
            self.optimizer.state[parameter] = {"step": count, **moments}

    def close(self) -> None:
        super().close()
        self.optimizer.zero_grad()
