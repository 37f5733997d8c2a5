"""MarCos: a Markov chain of continuous thoughts (Liu et al., "Deep Thinking by Markov Chain of Continuous Thoughts").

Where to find the paper's equations and definitions, in its order and with its numbers. Names with a dot before them are
methods of MarCosModel (model.py) or MarCos (method.py).

    ====  ========================================================  ===============================================
    no.   paper                                                     code
    ====  ========================================================  ===============================================
    (1)   H_in = Understanding(x)                                   model.py    .understand
          Neu_deep (T, d), Neu_shallow (S, d); Neu_0 is learnable   model.py    .initial_neurons
          R_k (tau, d), here as one vector of tau d                 model.py    .inject (in no equation)
    (2)   mu_k, sigma_k = g(Neu_{k-1}, H_in); g: two-layer MLP      model.py    .predict_r, RandomnessPredictor, pool
          R_k ~ N(mu_k, sigma_k), at inference                      model.py    sample_prior
    (3)   Neu_k = Thinking(Neu_{k-1}, H_in, R_k)                    model.py    .think; K times: .think_all_steps
    (4)   s_k = Speaking(Neu_shallow_k)                             model.py    .speak
          y_1, ..., y_K: the solution in K steps (appendix C)       targets.py  step_targets
    (5)   ELBO_k = E log p(y_k | R_k) - KL(q(R_k | y_k) || p(R_k))  losses.py   its two terms are (7) and (8)
    (6)   mu_hat_k, sigma_hat_k = f(y_k)                            model.py    .encode_r, RandomnessEncoder
          R_k ~ N(mu_hat_k, sigma_hat_k), in training               model.py    .sample_posterior
    (7)   L_re_k = E log p(s_k = y_k | Neu_{k-1}, H_in, R_k)        losses.py   reconstruction_loss, which is -L_re
    (8)   L_KL_k = KL(N(f(y_k)) || N(g(Neu_{k-1}, H_in)))           losses.py   kl_loss
          L_sparse_k = ||R_k||_1                                    losses.py   sparsity_loss
    (9)   L = sum_k [-L_re_k + L_KL_k + lambda L_sparse_k]          losses.py   module docstring
                                                                    method.py   .forward: .phase_1_loss, .phase_2_loss
          phase 1 trains all but g on L_re and L_sparse;            method.py   .stages
          phase 2 trains g alone on L_KL
    (10)  lambda_{t+1} = 1.01 or 0.99 lambda_t (appendix B)         losses.py   SparsityController
          all steps at inference                                    method.py   .generate
          ablations (appendix D), non-autoregressive speaking       variants.py
    ====  ========================================================  ===============================================

Where the paper and the published code disagree, the docstring at that place tells which of the two is followed.
`options.py` has all options, with the paper's settings at 0.5B as defaults.
"""

from methods.marcos.method import MarCos

__all__ = ["MarCos"]
