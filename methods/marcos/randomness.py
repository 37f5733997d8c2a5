"""R: what a thinking step cannot know from the question. f encodes it from the step's text, and g predicts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.marcos.options import SparsityOptions
from methods.random_keys import normal

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class RandomnessEncoder(nn.Module):
    """f: a transformer, then d -> tau d with ReLU, so that most dimensions of R are exactly zero (paper, eq. for f).

    The Gaussian variant has a second head for the standard deviation.
    """

    def __init__(self, trunk: PreTrainedModel, size: int, gaussian: bool) -> None:
        super().__init__()
        self.trunk = trunk
        self.expand = nn.Linear(trunk.config.hidden_size, size)
        self.deviation = nn.Linear(trunk.config.hidden_size, size) if gaussian else None

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the mean and, if Gaussian, the deviation, both (N, tau d), of R for right-padded ids (N, M), of which
        f reads the first ``lengths`` (N,). Several lengths per row, (N, k), give (N, k, tau d)."""
        hidden = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        rows = torch.arange(len(ids), device=ids.device).view(-1, *[1] * (lengths.dim() - 1))
        last = hidden[rows, lengths - 1]
        return F.relu(self.expand(last)), None if self.deviation is None else F.softplus(self.deviation(last))


class RandomnessPredictor(nn.Module):
    """g: a two-layer MLP from the pooled thought and question to mean and log deviation of R (paper, eq. for g)."""

    def __init__(self, hidden_size: int, size: int, epsilon: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 2 * size))
        self.epsilon, self.floor = epsilon, math.log(epsilon)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and log deviation of R, both (…, tau d), for pooled vectors (…, d). The deviation stays above
        epsilon by a smooth bound, so that its gradient never vanishes there. Both are float32 under autocast too: the
        loss squares small differences, and sums them over all dimensions."""
        mean, raw = self.layers(pooled).float().chunk(2, -1)
        return mean, self.floor + F.softplus(raw - self.floor)

    def loss(self, features: Mapping[str, Tensor], upstream: bool) -> Tensor:
        """Sum the loss over features (B, K, …): ``pooled``, the posterior's ``mean`` and any ``deviation``."""
        mean, log_deviation = self(features["pooled"])
        if upstream:
            return upstream_nll(features["mean"], mean, log_deviation).sum()
        return gaussian_kl(features["mean"], features.get("deviation", self.epsilon), mean, log_deviation).sum()

    def draw(self, pooled: Tensor, keys: Tensor, step: int, temperature: float) -> Tensor:
        """Return R of one thinking step (B, tau d) for pooled (B, d): a draw by the rows' keys (B,), with the deviation
        times ``temperature``, or the mean if that is 0."""
        mean, log_deviation = self(pooled)
        if not temperature:
            return mean
        noise = normal(keys, mean.shape[1], offset=step * mean.shape[1])
        return mean + temperature * log_deviation.exp() * noise.to(mean)


def gaussian_kl(mean: Tensor, deviation: Tensor | float, prior_mean: Tensor, prior_log_deviation: Tensor) -> Tensor:
    """Return the elementwise KL(N(mean, deviation^2) || N(prior_mean, prior_deviation^2)), in nats."""
    if not isinstance(deviation, Tensor):
        deviation = mean.new_full((), deviation)  # filled on the device: the host does not wait
    error = deviation.square() + (mean - prior_mean).square()
    return prior_log_deviation - deviation.log() + error * torch.exp(-2 * prior_log_deviation) / 2 - 0.5


def upstream_nll(value: Tensor, prior_mean: Tensor, prior_log_deviation: Tensor) -> Tensor:
    """Return the published code's loss, wrong exponent included: ((x - mean) / (2 sigma^2))^2. For forensics only."""
    scaled = (value - prior_mean) * torch.exp(-2 * prior_log_deviation) / 2
    return scaled.square() + prior_log_deviation + 0.5 * math.log(2 * math.pi)


class SparsityController(nn.Module):
    """lambda: up by 1 % if the mean L1 norm of R is above its target, else down by 1 %. Part of the checkpoint."""

    weight: Tensor
    seen: Tensor

    def __init__(self, options: SparsityOptions) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("weight", torch.tensor(options.weight, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))  # L1 sum, active steps, optimizer steps

    def update(self, l1: float, active: float) -> None:
        """Take in the sums over one global batch; after every ``window`` batches, lambda changes."""
        options = self.options
        if not options.adaptive or active == 0:
            return
        self.seen += torch.tensor([l1, active, 1.0], dtype=torch.float64, device=self.seen.device)
        l1, active, steps = self.seen.tolist()
        if steps >= options.window:
            factor = 1.01 if l1 / active > options.target else 0.99
            self.weight.mul_(factor).clamp_(options.minimum, options.maximum)
            self.seen.zero_()
