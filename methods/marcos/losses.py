"""The training loss of MarCos. Numbers in parentheses are the paper's equations.

    L = sum_k [ -L_re_k + L_KL_k + lambda L_sparse_k ]                             (9)

    L_re_k     = E_{R_k ~ N(f(y_k))} log p(s_k = y_k | Neu_{k-1}, H_in, R_k)       (7)    :func:`reconstruction_loss`
    L_KL_k     = KL( N(f(y_k)) || N(g(Neu_{k-1}, H_in)) )                          (8)    :func:`kl_loss`
    L_sparse_k = || R_k ||_1                                                              :func:`sparsity_loss`
    lambda     : up by 1 % while the L1 norm is above its target, else down        (10)   :class:`SparsityController`

The first two terms are the negative ELBO (5) of y_k. No pass computes all three, because training has two phases:
phase 1 minimises ``-L_re + lambda L_sparse`` and leaves g out; phase 2 minimises ``L_KL`` and trains g alone. Each
function returns the sum over a micro-batch's steps and examples, which the trainer divides by the number of examples.

Deviation from the paper: L_sparse is the L1 norm of the posterior's *mean* mu_hat_k, not of R_k. The two are the same
without noise on R (``posterior: deterministic``, as in the published code). With it, the norm of the noise alone would
be about 0.8 sigma_hat tau d per step, whatever f encodes: far above any useful target, so that lambda would go to its
upper bound.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from methods.backbone import label_loss
from methods.marcos.options import SparsityOptions


def reconstruction_loss(
    lm: Any, hidden: Tensor, labels: Tensor, labelled: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return -L_re (7) with one draw of R_k: the cross entropy of the tokens of y_k, summed, in nats.

    ``hidden`` (A, M, d) are the final states of the speaking layer ``lm``, for the A steps that have a text, ``labels``
    (A, M) the tokens that they predict, ``labelled`` (2, N) the places of those that are no padding.
    """
    return label_loss(lm.get_output_embeddings(), hidden, labels, labelled, weights)


def kl_loss(mean: Tensor, sigma: Tensor | float, prior_mean: Tensor, prior_log_sigma: Tensor) -> Tensor:
    """Return L_KL (8) in nats, KL(N(mean, sigma^2) || N(prior_mean, prior_sigma^2)), summed over dimensions, steps and
    examples. The posterior's ``mean`` and ``sigma`` are mu_hat and sigma_hat of f, the prior's are those of g, all
    (B, K, tau d)."""
    return gaussian_kl(mean, sigma, prior_mean, prior_log_sigma).sum()


def gaussian_kl(mean: Tensor, sigma: Tensor | float, prior_mean: Tensor, prior_log_sigma: Tensor) -> Tensor:
    """Return the KL divergence of two diagonal Gaussians, KL(N(mean, sigma^2) || N(prior_mean, prior_sigma^2)), for
    each dimension, in nats."""
    if not isinstance(sigma, Tensor):
        sigma = mean.new_full((), sigma)  # filled on the device: the host does not wait
    error = sigma.square() + (mean - prior_mean).square()
    return prior_log_sigma - sigma.log() + error * torch.exp(-2 * prior_log_sigma) / 2 - 0.5


def sparsity_loss(mean: Tensor) -> Tensor:
    """Return L_sparse: the L1 norm of the posterior's means (N, tau d), summed over the N steps that count."""
    return mean.abs().sum(dtype=torch.float32)  # under autocast on a CPU, bfloat16 would round it


class SparsityController(nn.Module):
    """lambda (10): after each optimizer step, up by 1 % if the mean L1 norm of R per step of a global batch is above
    its target, else down by 1 %, within bounds. It is part of the checkpoint."""

    weight: Tensor

    def __init__(self, options: SparsityOptions) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("weight", torch.tensor(options.weight, dtype=torch.float64))

    def update(self, l1: float, counted_steps: float) -> None:
        """Change lambda, given the L1 norm summed over a global batch and the number of steps in this sum."""
        options = self.options
        if options.adaptive and counted_steps:
            factor = 1.01 if l1 / counted_steps > options.target else 0.99
            self.weight.mul_(factor).clamp_(options.minimum, options.maximum)
