"""The architecture of MarCos (paper, section "Model Architecture" and the encoder f of section "Training").

Numbers in parentheses are the paper's equations; "Not in the paper" marks what no equation fixes. Sizes: B examples; n
tokens of a question; K thinking steps; T deep and S shallow neurons; d, the hidden size of the backbone; A non-empty
steps among the K B of a batch; M tokens of the longest target.

    ==========================  ==========================================================  =====================
    paper                       code                                                        shape
    ==========================  ==========================================================  =====================
    x                           ``question``, and the mask ``real`` of its tokens           (B, n)
    H_in                        ``h_in``                                                    (B, n, d)
    [Neu_deep; Neu_shallow]     ``neurons``; Neu_0 is the parameter ``self.neurons``        (B, T + S, d)
    Neu_shallow                 ``shallow``                                                 (B, S, d) or (A, S, d)
    R_k, as one vector          ``r``; None in the ablation without R                       (B, tau d)
    R_k, as tau vectors         ``injected``                                                (B, tau, d)
    f                           ``self.posterior``
    mu_hat_k, sigma_hat_k       ``mu_hat``, ``sigma_hat``                                   (K, B, tau d)
    g                           ``self.prior``
    mu_k, log sigma_k           ``mu``, ``log_sigma``                                       (B, tau d)
    y_k                         ``targets``, of which f reads ``lengths`` (K B,) tokens     (K B, M)
    lambda                      ``self.sparsity.weight``
    ==========================  ==========================================================  =====================

Layouts: targets are rows of one table, ordered by step and then by example: row k B + b is step k of example b, with k
counted from 0. A view of them as (K, B, ...) costs nothing, and thinking takes one step of all examples at a time, so
training and the model have the steps first. What leaves the model has one row per example, (B, K, ...): the features of
phase 2, the traces of answers, and :meth:`MarCos.encode_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.base import Method, Setup, copy_weights
from methods.last_layer import forward_last
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
        # Neu_0: learnable. Not in the paper: it starts from N(0, 1), as in the published code
        self.neurons = nn.Parameter(torch.randn(options.deep + options.shallow, d))
        if options.randomness:
            f_trunk = backbone.trunk(pretrained=False)
            self.posterior = RandomnessEncoder(f_trunk, size_of_r, gaussian=options.posterior == "gaussian")  # f
            # Not in the paper, where Thinking (3) takes R_k as it is. The published code maps R_k, as one vector, by
            # an MLP to tau vectors, which the thinking layer sees beside the neurons. The MLP has 2 (tau d)^2 weights:
            # 411M at 0.5B (d = 896, tau = 16), nearly a fifth of the whole model. So a sweep of tau also changes the
            # size of the model.
            self.inject = nn.Sequential(nn.Linear(size_of_r, size_of_r), nn.ReLU(), nn.Linear(size_of_r, size_of_r))
            self.prior = RandomnessPredictor(d, size_of_r, options.epsilon)  # g
            self.sparsity = SparsityController(options.sparsity)  # lambda
        if options.thinking_init == "xavier":  # variant; last, so that all other initial weights stay the same
            variants.initialise_xavier(self.thinking)

    @torch.no_grad()
    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Start understanding, thinking and speaking from the language model of CoT-SFT, as ``backbone.trunk()`` and
        ``backbone.causal_lm()`` start them from a checkpoint: f stays as it is, and thinking has no embeddings."""
        lm = {name.removeprefix("lm."): tensor for name, tensor in weights.items()}
        prefix = f"{self.speaking.base_model_prefix}."
        trunk = {name.removeprefix(prefix): tensor for name, tensor in lm.items() if name.startswith(prefix)}
        copy_weights(lm, self.speaking)
        copy_weights(trunk, self.understanding)
        copy_weights({name: trunk[name] for name in self.thinking.state_dict()}, self.thinking)

    def understand(self, question: Tensor) -> Tensor:
        """(1) H_in = Understanding(x): return H_in (B, n, d) for right-padded token ids (B, n).

        Not in the paper: attention is causal, as in the published code, so the padding changes nothing.
        """
        return self.understanding(input_ids=question, use_cache=False).last_hidden_state

    def initial_neurons(self, batch_size: int) -> Tensor:
        """Return Neu_0 (B, T + S, d): the same learnable neurons for every question."""
        return self.neurons.expand(batch_size, -1, -1)

    def think(self, neurons: Tensor, h_in: Tensor, real: Tensor, r: Tensor | None) -> Tensor:
        """(3) Neu_k = Thinking(Neu_{k-1}, H_in, R_k): return Neu_k (B, T + S, d), given R_k (B, tau d). Attention is
        bidirectional over [H_in | Neu_deep | Neu_shallow | R_k], and the padding of H_in is masked."""
        injected = None if r is None else self.inject(r).view(len(r), self.options.tau, -1)  # (B, tau, d)
        if self.options.attention == "causal":  # variant
            return variants.think_causally(self, neurons, h_in, real, injected)
        states = neurons if injected is None else torch.cat([neurons, injected], dim=1)
        return self.run_thinking_layer(states, h_in, real, bidirectional_mask)[:, : neurons.shape[1]]

    def run_thinking_layer(
        self, states: Tensor, h_in: Tensor, real: Tensor, mask: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the thinking layer's output at ``states`` (B, m, d), which follow H_in (B, n, d). ``mask`` makes the
        attention mask, (B, 1, n + m, n + m) or (B, 1, 1, n + m), from the real positions (B, n + m).

        Not in the paper, but as in the published code:

        * Neurons and R have position ids, which continue from each question's own last token. Padding may stay in
          between, because it is masked.
        * Neu_k is the output after the transformer's final norm.
        * The layer updates H_in too; these updates are discarded, and every step reads the H_in of (1).
        """
        count = states.shape[1]
        state_positions = torch.arange(count, device=real.device) + real.sum(1, keepdim=True)
        output = forward_last(
            self.thinking,
            count,
            inputs_embeds=torch.cat([h_in, states], dim=1),
            attention_mask=mask(torch.cat([real, real.new_ones(len(real), count)], dim=1)),
            position_ids=torch.cat([positions_of(real), state_positions], dim=1),
            use_cache=False,
        )
        return output.last_hidden_state

    def chain(self, h_in: Tensor, real: Tensor, r: Tensor | None) -> Iterator[Tensor]:
        """Yield Neu_0, Neu_1, ..., Neu_K, each (B, T + S, d), given R_1, ..., R_K (K, B, tau d) or None. Each step is
        computed on demand, so a caller that stops at Neu_{K-1} saves the last one."""
        neurons = self.initial_neurons(len(h_in))
        yield neurons
        for k in range(self.options.steps):
            neurons = self.think(neurons, h_in, real, None if r is None else r[k])
            yield neurons

    def think_all_steps(self, h_in: Tensor, real: Tensor, r: Tensor | None) -> Tensor:
        """Run the chain, given R_1, ..., R_K (K, B, tau d) or None. Return Neu_shallow of steps 1 to K,
        (K, B, S, d)."""
        after_each_step = islice(self.chain(h_in, real, r), 1, None)
        return torch.stack([neurons[:, self.options.deep :] for neurons in after_each_step])

    def speak(self, shallow: Tensor, targets: Tensor) -> Tensor:
        """(4) s_k = Speaking(Neu_shallow_k), teacher-forced: return the final hidden states (A, M, d) at target ids
        (A, M), which follow the shallow neurons (A, S, d). The speaking layer's head makes them the logits of the next
        tokens. The steps of all examples are rows, because each is spoken independently of the others.

        Not in the paper: attention is causal, among the shallow neurons too, as in the published code.
        """
        embedded = self.speaking.get_input_embeddings()(targets)
        inputs = torch.cat([shallow, embedded], dim=1)
        return forward_last(
            self.speaking.base_model, targets.shape[1], inputs_embeds=inputs, use_cache=False
        ).last_hidden_state

    def encode_r(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """(6) mu_hat_k, sigma_hat_k = f(y_k): return both for all K steps from one call of f, each (K, B, tau d).
        sigma_hat is None unless f is Gaussian. Tensors: ``targets`` (K B, M), step by step, of which f reads the first
        ``lengths`` (K B,) tokens."""
        if self.options.encoder_reads == "path":  # variant
            return variants.encode_paths(self.posterior, tensors["paths"], tensors["lengths"])
        mu_hat, sigma_hat = self.posterior(tensors["targets"], tensors["lengths"])
        by_step = self.options.steps, -1, mu_hat.shape[1]
        return mu_hat.view(by_step), None if sigma_hat is None else sigma_hat.view(by_step)

    def sample_posterior(
        self, mu_hat: Tensor, sigma_hat: Tensor | float, keys: Tensor | None, step: int | None
    ) -> Tensor:
        """Draw R_k ~ N(mu_hat_k, sigma_hat_k), the expectation's variable in (7), for all K steps: (K, B, tau d). The
        examples' ``keys`` (B,) and the optimizer ``step`` determine the noise.

        Deviation from the paper: with ``posterior: deterministic``, the default, R_k is mu_hat_k itself, as in the
        published code: without a KL term in phase 1, a sigma_hat_k that is trained there can shrink to zero anyway.
        What this means for inference is in :func:`sample_prior`.
        """
        if self.options.posterior == "deterministic":
            return mu_hat
        assert keys is not None
        steps, batch, size = mu_hat.shape
        noise = normal(keys ^ key(step), steps * size).to(mu_hat)  # each example draws for all its steps at once
        noise = noise.view(batch, steps, size).transpose(0, 1)
        return mu_hat + sigma_hat * noise


class RandomnessEncoder(nn.Module):
    """f: a transformer, whose final state at the last token that it reads is mapped from d to tau d by a linear layer
    and ReLU. So mu_hat >= 0, and most of its dimensions are exactly zero.

    The paper has "a d-dimensional transformer followed by an MLP that expands the dimension from d to tau d", and does
    not say at which token; one layer, ReLU and the last token are the published code's. With ``posterior: gaussian``, a
    second head gives sigma_hat by softplus, which is in neither of them.
    """

    def __init__(self, trunk: PreTrainedModel, size_of_r: int, gaussian: bool) -> None:
        super().__init__()
        self.trunk = trunk
        self.expand = nn.Linear(trunk.config.hidden_size, size_of_r)
        self.deviation = nn.Linear(trunk.config.hidden_size, size_of_r) if gaussian else None  # to sigma_hat

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return mu_hat and, if Gaussian, sigma_hat, both (N, tau d), for right-padded ids (N, M), of which f reads the
        first ``lengths`` (N,). Several lengths per row, (N, k), give (N, k, tau d)."""
        hidden = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        rows = torch.arange(len(ids), device=ids.device).view(-1, *[1] * (lengths.dim() - 1))
        last = hidden[rows, lengths - 1]
        return F.relu(self.expand(last)), None if self.deviation is None else F.softplus(self.deviation(last))


class RandomnessPredictor(nn.Module):
    """(2) g: a two-layer MLP from the pooled neurons and question (:func:`pool`) to mu and log sigma of R."""

    def __init__(self, hidden_size: int, size_of_r: int, epsilon: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 2 * size_of_r)
        )
        self.floor = math.log(epsilon)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and log sigma, both (..., tau d), for pooled vectors (..., d). Both are float32 under autocast too:
        the KL term squares small differences, and sums them over all dimensions.

        Not in the paper: sigma stays above epsilon. Where epsilon is also the posterior's standard deviation in L_KL,
        the sigma that minimises L_KL is never below it. The bound is smooth, so that the gradient never vanishes there.
        """
        mu, raw = self.layers(pooled).float().chunk(2, -1)
        return mu, self.floor + F.softplus(raw - self.floor)


def pool(neurons: Tensor, h_in: Tensor, real: Tensor) -> Tensor:
    """Return the input of g, (B, d): the mean over deep and shallow neurons plus the mean over the question's tokens.

    The paper does not specify how g reads Neu_{k-1} and H_in. The published code takes these means, but with the tau
    rows of the R that was injected last among the neurons.
    """
    weight = real[..., None].to(h_in)
    return neurons.mean(1) + (h_in * weight).sum(1) / weight.sum(1)


def sample_prior(mu: Tensor, log_sigma: Tensor, keys: Tensor, k: int, temperature: float) -> Tensor:
    """Draw R_k ~ N(mu_k, (temperature sigma_k)^2), (B, tau d), for thinking step ``k`` (counted from 0), by the rows'
    keys (B,). With a temperature of 0, that is mu_k.

    Known limitation: draws look different from what the thinking layer was trained on. With ``posterior:
    deterministic``, it was trained with R_k = mu_hat_k, which is never negative, mostly zero, and has no noise. A draw
    is not rectified, and sigma_k is above epsilon in all tau d dimensions. At temperature 1, the L1 norm of its noise
    alone is then at least 0.8 epsilon tau d on average, which ``inject`` never saw: 114 at 0.5B, where the target of
    training is an L1 norm of 0.21. ``latents: mean`` decodes without this noise.
    """
    if not temperature:
        return mu
    noise = normal(keys, mu.shape[1], offset=k * mu.shape[1])
    return mu + temperature * log_sigma.exp() * noise.to(mu)
