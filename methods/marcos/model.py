"""The architecture of MarCos (paper, section "Model Architecture" and the encoder f of section "Training").

Numbers in parentheses are the paper's equations. Shapes: B examples; n tokens of a question; K thinking steps; T deep
and S shallow neurons; d, the hidden size of the backbone; R_k of tau d dimensions. In the code, ``h_in`` is H_in,
``neurons`` are [Neu_deep; Neu_shallow] (B, T + S, d) in one tensor, ``shallow`` is Neu_shallow (B, S, d), and ``r`` is
R_k as one vector (B, tau d), or None in the ablation without R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.base import Method, Setup
from methods.marcos import variants
from methods.marcos.losses import SparsityController
from methods.marcos.options import MarCosOptions
from methods.masks import bidirectional_mask, positions_of
from methods.random_keys import key, normal

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class MarCosModel(Method):
    """Four transformers of the backbone's architecture (understanding, thinking, speaking, and the trunk of f), the
    initial neurons, and the small networks around R. :class:`methods.marcos.method.MarCos` trains them and answers."""

    options: MarCosOptions

    def __init__(self, options: MarCosOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        backbone, d = setup.backbone, setup.backbone.hidden_size
        size_of_r = options.tau * d
        self.understanding = backbone.trunk()
        self.thinking = backbone.trunk(embeddings=False)
        self.speaking = backbone.causal_lm()
        self.neurons = nn.Parameter(torch.randn(options.deep + options.shallow, d))  # Neu_0: learnable
        if options.randomness:
            f_trunk = backbone.trunk(pretrained=False)
            self.posterior = RandomnessEncoder(f_trunk, size_of_r, gaussian=options.posterior == "gaussian")  # f
            # No equation of the paper has this network: there, Thinking (3) takes R_k as it is. The published code
            # maps R_k, as one vector, by an MLP to tau vectors, which the thinking layer sees beside the neurons. The
            # MLP has 2 (tau d)^2 weights: 411M at 0.5B (d = 896, tau = 16), nearly a fifth of the whole model. So a
            # sweep of tau also changes the size of the model.
            self.inject = nn.Sequential(nn.Linear(size_of_r, size_of_r), nn.ReLU(), nn.Linear(size_of_r, size_of_r))
            self.prior = RandomnessPredictor(d, size_of_r, options.epsilon)  # g
            self.sparsity = SparsityController(options.sparsity)  # lambda
        if options.thinking_init == "xavier":  # last, so that all other initial weights stay the same
            variants.initialise_xavier(self.thinking)

    def understand(self, question: Tensor) -> Tensor:
        """(1) H_in = Understanding(x): return H_in (B, n, d) for right-padded token ids (B, n). Attention is causal, so
        the padding changes nothing."""
        return self.understanding(input_ids=question, use_cache=False).last_hidden_state

    def initial_neurons(self, batch_size: int) -> Tensor:
        """Return Neu_0 (B, T + S, d): the same learnable neurons for every question."""
        return self.neurons.expand(batch_size, -1, -1)

    def predict_r(self, neurons: Tensor, h_in: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """(2) mu_k, sigma_k = g(Neu_{k-1}, H_in): return mu_k and log sigma_k, both (B, tau d). ``real`` (B, n) masks
        the padding of H_in."""
        return self.prior(pool(neurons, h_in, real))

    def think(self, neurons: Tensor, h_in: Tensor, real: Tensor, r: Tensor | None) -> Tensor:
        """(3) Neu_k = Thinking(Neu_{k-1}, H_in, R_k): return Neu_k. Attention is bidirectional over
        [H_in | Neu_deep | Neu_shallow | R_k], and the padding of H_in is masked."""
        injected = None if r is None else self.inject(r).view(len(r), self.options.tau, -1)
        if self.options.attention == "causal":
            return variants.think_causally(self, neurons, h_in, real, injected)
        states = neurons if injected is None else torch.cat([neurons, injected], dim=1)
        return self.run_thinking_layer(states, h_in, real, bidirectional_mask)[:, : neurons.shape[1]]

    def run_thinking_layer(
        self, states: Tensor, h_in: Tensor, real: Tensor, mask: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the thinking layer's output at ``states`` (B, m, d), which follow H_in. ``mask`` makes the attention
        mask from the real positions.

        Position ids of the states continue from each question's own last token. Padding may stay in between, because it
        is masked.
        """
        count = states.shape[1]
        behind = torch.arange(count, device=real.device) + real.sum(1, keepdim=True)
        output = self.thinking(
            inputs_embeds=torch.cat([h_in, states], dim=1),
            attention_mask=mask(torch.cat([real, real.new_ones(len(real), count)], dim=1)),
            position_ids=torch.cat([positions_of(real), behind], dim=1),
            use_cache=False,
        ).last_hidden_state
        return output[:, h_in.shape[1] :]

    def think_all_steps(self, h_in: Tensor, real: Tensor, r: Tensor | None) -> Tensor:
        """Run the chain from Neu_0, given R_1, ..., R_K (K, B, tau d) or None. Return Neu_shallow of each step,
        (K, B, S, d)."""
        neurons = self.initial_neurons(len(h_in))
        shallow = []
        for k in range(self.options.steps):
            neurons = self.think(neurons, h_in, real, None if r is None else r[k])
            shallow.append(neurons[:, self.options.deep :])
        return torch.stack(shallow)

    def speak(self, shallow: Tensor, targets: Tensor) -> Tensor:
        """(4) s_k = Speaking(Neu_shallow_k), teacher-forced: return the final hidden states (A, M, d) at target ids
        (A, M), which follow the shallow neurons (A, S, d). The speaking layer's head makes them the logits of the next
        tokens. The steps of all examples are rows, because each is spoken independently of the others."""
        embedded = self.speaking.get_input_embeddings()(targets)
        output = self.speaking.base_model(inputs_embeds=torch.cat([shallow, embedded], dim=1), use_cache=False)
        return output.last_hidden_state[:, shallow.shape[1] :]

    def encode_r(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """(6) mu_hat_k, sigma_hat_k = f(y_k): return both for all K steps from one call of f, each (K, B, tau d).
        sigma_hat is None unless f is Gaussian. Tensors: ``targets`` (K B, M), step by step, of which f reads the first
        ``lengths`` (K B,) tokens."""
        if self.options.encoder_reads == "path":
            return variants.encode_paths(self.posterior, tensors["paths"], tensors["lengths"])
        mean, sigma = self.posterior(tensors["targets"], tensors["lengths"])
        by_step = self.options.steps, -1, mean.shape[1]
        return mean.view(by_step), None if sigma is None else sigma.view(by_step)

    def sample_posterior(self, mean: Tensor, sigma: Tensor | None, keys: Tensor | None, step: int | None) -> Tensor:
        """Draw R_k ~ N(mu_hat_k, sigma_hat_k), the expectation's variable in (7), for all K steps: (K, B, tau d). The
        examples' ``keys`` (B,) and the optimizer ``step`` determine the noise.

        In the published code, R_k is mu_hat_k itself (``posterior: deterministic``, the default): without a KL term in
        phase 1, a sigma_hat_k that is trained there can shrink to zero anyway.
        """
        if self.options.posterior == "deterministic":
            return mean
        assert keys is not None
        noise = normal(keys ^ key(step), self.options.steps * mean.shape[2]).to(mean)
        noise = noise.view(-1, *mean.shape[::2]).transpose(0, 1)
        return mean + (self.options.epsilon if sigma is None else sigma) * noise


class RandomnessEncoder(nn.Module):
    """f: a transformer, then d -> tau d with ReLU, by which most dimensions of R are exactly zero ("a d-dimensional
    transformer followed by an MLP that expands the dimension from d to tau d"). The Gaussian variant has a second head
    for sigma_hat."""

    def __init__(self, trunk: PreTrainedModel, size_of_r: int, gaussian: bool) -> None:
        super().__init__()
        self.trunk = trunk
        self.expand = nn.Linear(trunk.config.hidden_size, size_of_r)
        self.deviation = nn.Linear(trunk.config.hidden_size, size_of_r) if gaussian else None

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return mu_hat and, if Gaussian, sigma_hat, both (N, tau d), for right-padded ids (N, M), of which f reads the
        first ``lengths`` (N,). Several lengths per row, (N, k), give (N, k, tau d)."""
        hidden = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        rows = torch.arange(len(ids), device=ids.device).view(-1, *[1] * (lengths.dim() - 1))
        last = hidden[rows, lengths - 1]
        return F.relu(self.expand(last)), None if self.deviation is None else F.softplus(self.deviation(last))


class RandomnessPredictor(nn.Module):
    """g: a two-layer MLP from the pooled thought and question (:func:`pool`) to mu and log sigma of R."""

    def __init__(self, hidden_size: int, size_of_r: int, epsilon: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 2 * size_of_r)
        )
        self.floor = math.log(epsilon)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and log sigma, both (..., tau d), for pooled vectors (..., d). sigma stays above epsilon by a
        smooth bound, so that its gradient never vanishes there. Both are float32 under autocast too: the KL term
        squares small differences, and sums them over all dimensions."""
        mean, raw = self.layers(pooled).float().chunk(2, -1)
        return mean, self.floor + F.softplus(raw - self.floor)


def pool(neurons: Tensor, h_in: Tensor, real: Tensor) -> Tensor:
    """Return the input of g, (B, d): the mean over deep and shallow neurons plus the mean over the question's tokens.

    The paper does not tell how g reads Neu_{k-1} and H_in. The published code takes these means, but with the tau rows
    of the R that was injected last among the neurons.
    """
    weight = real[..., None].to(h_in)
    return neurons.mean(1) + (h_in * weight).sum(1) / weight.sum(1)


def sample_prior(mean: Tensor, log_sigma: Tensor, keys: Tensor, k: int, temperature: float) -> Tensor:
    """Draw R_k ~ N(mu_k, (temperature sigma_k)^2), (B, tau d), for thinking step ``k`` (counted from 0), by the rows'
    keys (B,). With a temperature of 0, that is mu_k."""
    if not temperature:
        return mean
    noise = normal(keys, mean.shape[1], offset=k * mean.shape[1])
    return mean + temperature * log_sigma.exp() * noise.to(mean)
