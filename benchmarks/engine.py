"""What runs an optimizer step: here one process. Training asks it, and does not know how many ranks there are."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.specs import TrainingSpec
from methods.base import Batch, Context, Method, Output, Stage


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read afterwards is true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 arithmetic over float32 weights, or nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@dataclass(frozen=True)
class Phase:
    """Where a stage lies in its phase, in optimizer steps: one learning rate schedule spans all stages of a phase."""

    before: int
    steps: int


class Engine:
    """One stage's optimizer over the stage's trainable parameters: fused AdamW, gradient clipping, learning rate."""

    rank, world = 0, 1

    def __init__(self, method: Method, stage: Stage, training: TrainingSpec, phase: Phase) -> None:
        self.method, self.training, self.phase = method, training, phase
        self.peak = training.learning_rate
        for name, parameter in method.named_parameters():
            parameter.requires_grad_(name.startswith(stage.trainable))
        self.parameters = [p for p in method.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"{method.name}: stage {stage.name!r} trains nothing; no parameter starts with "
                             f"{stage.trainable}")  # fmt: skip
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.peak, betas=training.betas, weight_decay=training.weight_decay, fused=True
        )

    def forward(self, batch: Batch, context: Context) -> Output:
        with autocast(self.method.device, self.training.precision):
            return self.method(batch, context)

    def features(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        with autocast(self.method.device, self.training.precision):
            return self.method.features(batch, context)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, step: int) -> float:
        """Update the weights at step ``step`` of the stage; returns the gradient norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.training.max_grad_norm or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def learning_rate(self, step: int) -> float:
        """At step ``step`` of the stage: linear warm-up, then constant or cosine, over the whole phase."""
        step, warmup = self.phase.before + step, self.training.warmup_steps
        if step < warmup:
            return self.peak * (step + 1) / warmup
        if self.training.schedule == "constant":
            return self.peak
        done = (step - warmup) / max(self.phase.steps - warmup, 1)
        floor = self.training.final_learning_rate_share
        return self.peak * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)

    def all_reduce(self, sums: dict[str, float]) -> dict[str, float]:
        """Sums over all ranks."""
        return sums

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's tensors by ``parameter index.name``."""
        state = self.optimizer.state_dict()["state"]
        return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            index, name = key.split(".", 1)
            state.setdefault(int(index), {})[name] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
