"""The training loss of MarCos. Numbers in parentheses are the paper's equations.

    L = sum_k [ -L_re_k + L_KL_k + lambda L_sparse_k ]                             (9)

    L_re_k     = E_{R_k ~ N(f(y_k))} log p(s_k = y_k | Neu_{k-1}, H_in, R_k)       (7)    :func:`reconstruction_loss`
    L_KL_k     = KL( N(f(y_k)) || N(g(Neu_{k-1}, H_in)) )                          (8)    :func:`kl_loss`
    L_sparse_k = || R_k ||_1                                                              :func:`sparsity_loss`
    lambda     : up by 1 % while the L1 norm is above its target, else down        (10)   :class:`SparsityController`

The first two terms are the negative ELBO (5) of y_k. No pass computes all three, because training has two phases:
phase 1 minimises ``-L_re + lambda L_sparse`` and leaves g out; phase 2 minimises ``L_KL`` and trains g alone. (The
variant ``joint_kl`` has one phase, with all three.) Each function returns the sum over a micro-batch's steps and
examples. The trainer (`optimizer_step` in benchmarks/training/loop.py) divides each term by the number of examples in
the global batch and adds them up.

The sum over k has a different domain in each term, because steps without text (a chain with fewer steps than groups)
are thought but not spoken:

* L_re: only non-empty steps.
* L_sparse: only non-empty steps, as in the published code; with ``sparsity.steps: all``, all steps, as in (9).
* L_KL: all steps, since g has to predict R at each of them in inference.

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

    * ``hidden`` (A, M, d): final states of the speaking layer ``lm``, for the A non-empty steps
    * ``labels`` (A, M): the tokens that they predict
    * ``labelled`` (2, N): indices of the non-padding labels
    * ``weights`` (A, M): of the tokens' losses; default: 1
    """
    return label_loss(lm.get_output_embeddings(), hidden, labels, labelled, weights)


def kl_loss(mu_hat: Tensor, sigma_hat: Tensor | float, mu: Tensor, log_sigma: Tensor) -> Tensor:
    """Return L_KL (8) in nats, summed over dimensions, steps and examples: the sum of :func:`kl_divergence`."""
    return kl_divergence(mu_hat, sigma_hat, mu, log_sigma).sum()


def kl_divergence(mu_hat: Tensor, sigma_hat: Tensor | float, mu: Tensor, log_sigma: Tensor) -> Tensor:
    """Return KL(N(mu_hat, sigma_hat^2) || N(mu, sigma^2)) in nats, of each dimension. All are (..., tau d): ``mu_hat``
    and ``sigma_hat`` of f, ``mu`` and ``log_sigma`` of g.

    Deviation from the paper: f gives no sigma_hat unless ``posterior: gaussian``. ``sigma_hat`` is then the constant
    epsilon, so the posterior in this term is N(mu_hat, epsilon^2), although the forward pass of ``posterior:
    deterministic`` has R_k = mu_hat_k.
    """
    if not isinstance(sigma_hat, Tensor):
        sigma_hat = mu_hat.new_full((), sigma_hat)  # filled on the device: the host does not wait
    error = sigma_hat.square() + (mu_hat - mu).square()
    return log_sigma - sigma_hat.log() + error * torch.exp(-2 * log_sigma) / 2 - 0.5


def sparsity_loss(mu_hat: Tensor) -> Tensor:
    """Return L_sparse: the L1 norm of the posterior's means (N, tau d), summed over the N steps that count."""
    return mu_hat.abs().sum(dtype=torch.float32)  # under autocast on a CPU, bfloat16 would round it


class SparsityController(nn.Module):
    """lambda (10): after each optimizer step, up by 1 % if S_batch, the mean L1 norm of R per example and step in a
    global batch, is above beta, the option ``target``, else down by 1 %. It is part of the checkpoint.

    Not in (10), but in the published code: bounds, to which lambda is clamped.
    """

    weight: Tensor

    def __init__(self, options: SparsityOptions) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("weight", torch.tensor(options.weight, dtype=torch.float64))

    def update(self, l1: float, counted_steps: float) -> None:
        """Change lambda, given the L1 norm summed over a global batch and the number of steps in this sum."""
        options = self.options
        if options.adaptive and counted_steps:
            s_batch = l1 / counted_steps
            factor = 1.01 if s_batch > options.target else 0.99
            self.weight.mul_(factor).clamp_(options.minimum, options.maximum)
