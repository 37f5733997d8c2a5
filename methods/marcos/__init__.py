"""MarCos: a Markov chain of continuous thoughts (Liu et al., "Deep Thinking by Markov Chain of Continuous Thoughts").

Where to find the paper's equations and definitions, in its order and with its numbers. Names with a dot before them are
methods of MarCosModel (model.py) or MarCos (method.py). The top of model.py maps the paper's symbols to names.

    ====  ========================================================  ===============================================
    no.   paper                                                     code
    ====  ========================================================  ===============================================
    (1)   H_in = Understanding(x)                                   model.py    .understand
          Neu_deep (T, d), Neu_shallow (S, d); Neu_0 is learnable   model.py    .initial_neurons
          R_k (tau, d), here as one vector of tau d                 model.py    .inject (in no equation)
    (2)   mu_k, sigma_k = g(Neu_{k-1}, H_in); g: two-layer MLP      model.py    RandomnessPredictor, pool
          in training                                               method.py   .features, .phase_2_loss
          at inference: R_k ~ N(mu_k, sigma_k)                      method.py   ._draw_r
                                                                    model.py    sample_prior
    (3)   Neu_k = Thinking(Neu_{k-1}, H_in, R_k)                    model.py    .think; K times: .chain
    (4)   s_k = Speaking(Neu_shallow_k)                             model.py    .speak
          y_1, ..., y_K: the solution in K steps (appendix C)       targets.py  step_targets
    (5)   ELBO_k = E log p(y_k | R_k) - KL(q(R_k | y_k) || p(R_k))  losses.py   its two terms are (7) and (8)
    (6)   mu_hat_k, sigma_hat_k = f(y_k)                            model.py    .encode_r, RandomnessEncoder
          R_k ~ N(mu_hat_k, sigma_hat_k), in training               model.py    .sample_posterior
    (7)   L_re_k = E log p(s_k = y_k | Neu_{k-1}, H_in, R_k)        losses.py   reconstruction_loss, which is -L_re
    (8)   L_KL_k = KL(N(f(y_k)) || N(g(Neu_{k-1}, H_in)))           losses.py   kl_loss
          its inputs, fixed in phase 2                              method.py   .features, .collate_features
          L_sparse_k = ||R_k||_1                                    losses.py   sparsity_loss
    (9)   L = sum_k [-L_re_k + L_KL_k + lambda L_sparse_k]          losses.py   module docstring
                                                                    method.py   .forward: .phase_1_loss, .phase_2_loss
          terms divided by the number of examples, and added up     benchmarks/training/loop.py   optimizer_step
          phase 1 trains all but g on L_re and L_sparse;            method.py   .stages
          phase 2 trains g alone on L_KL
    (10)  lambda_{t+1} = 1.01 or 0.99 lambda_t (appendix B)         losses.py   SparsityController
          all steps at inference                                    method.py   .generate
          ablation w/o R_k                                          options.py  randomness: false
          ablation w/o Neu_deep                                     options.py  deep: 0
          ablations of appendix D: attention, initialisation        variants.py
          the same: fixed lambda                                    options.py  sparsity.adaptive: false
          non-autoregressive speaking                               variants.py
    ====  ========================================================  ===============================================

Defaults are the paper's values where it gives them, else the published code's; `options.py` states which. The paper and
this implementation differ as follows. The docstring at each place has the details.

R in training and inference

* By default, R_k = mu_hat_k >= 0 in training, without noise, as in the published code (.sample_posterior). Draws from g
  are neither rectified nor free of noise, which `inject` never saw; `latents: mean` avoids the noise (sample_prior).
* By default, f has no sigma_hat: the posterior in L_KL is N(mu_hat, epsilon^2) (kl_loss). The published code has no KL
  divergence: its phase 2 maximises a density of mu_hat under g, with a wrong exponent.
* epsilon, in neither the paper nor the published code, has three roles: the standard deviation of the noise with
  `posterior: noisy` (.sample_posterior), that of the posterior in L_KL unless `posterior: gaussian` (kl_loss), and
  always the lower bound of g's sigma (RandomnessPredictor).
* f is a transformer, then a linear layer with ReLU at its last token, where the paper has "an MLP"; sigma_hat, if any,
  is a softplus (RandomnessEncoder).
* g reads the mean over the neurons plus the mean over H_in (pool).
* An MLP of 2 (tau d)^2 weights maps R_k to the tau vectors that the thinking layer sees (`inject`, MarCosModel).

Losses and training

* L_sparse is the L1 norm of mu_hat_k, not of R_k (losses.py).
* The sum over k in (9) has a different domain in each term: empty steps have no L_re, and no L_sparse unless
  `sparsity.steps: all`, but L_KL counts them (losses.py).
* lambda is clamped; beta, which the paper does not give, is the published code's target, converted to one example and
  step (SparsityController, SparsityOptions).
* With `warm_start: cot_sft`, understanding, thinking and speaking start from a language model trained on the same
  data, as the baselines do; in the paper, they start from nothing or from a pretrained one (.warm_start).
* Phase 1 selects its weights by L_re alone, which favours a denser R (.stages).
* With a noisy or Gaussian posterior, phase 2 reuses one draw of R_1, ..., R_{K-1} per example (.features).

Targets

* K counts the answer. Groups that a short chain has to spare come just before the answer and are empty, or repeat it
  (`padding: answer`), or come before the chain and are not trained (`padding: left`) (targets.py).
* A step is cut at `max_step_tokens`, which excludes end-of-text (step_targets).

Choices that no equation fixes ("Not in the paper" in the docstrings), all as in the published code

* Neu_0 is drawn from N(0, 1) (MarCosModel).
* Neurons and R have position ids; Neu_k is the output after the final norm; H_in is read again in every step, and its
  updates are discarded (.run_thinking_layer).
* Understanding and speaking have causal attention (.understand, .speak).
* Speaking starts from a newline (speaking_start).
"""

from methods.marcos.method import MarCos

__all__ = ["MarCos"]
