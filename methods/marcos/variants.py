"""Variants of MarCos: ablations of the paper, its one-shot speaking, and extensions. Its main path needs none of them.
Where it branches to one, a comment has the word "variant".

* Causal attention in the thinking layer, and Xavier's initialisation of it (paper, "Additional Ablation Studies").
* f reads the question and all steps so far, instead of one step (not in the paper).
* Posterior and prior trained together, by the whole loss (9), which the paper found to collapse.
* One-shot speaking: all tokens of a step in one pass (paper, "Potential for non-autoregressive decoding in speaking
  stage", trained for 128 tokens at once), with optional passes that revise uncertain tokens. These are mask-predict
  (Ghazvininejad et al., "Mask-Predict: Parallel decoding of conditional masked language models", 2019) and need a model
  that was trained with some of its targets visible (:func:`mask_predict_split`).

Names and shapes as in :mod:`methods.marcos.model`; M are the places of a row. The ablations without R and without deep
neurons need no code here: they are the options ``randomness: false`` and ``deep: 0``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from methods.base import Stage
from methods.collate import IGNORE, label_indices
from methods.decoding import force_end
from methods.generation import Cost
from methods.marcos.losses import kl_loss
from methods.masks import causal_mask
from methods.random_keys import key, uniform

if TYPE_CHECKING:
    from methods.marcos.model import MarCosModel, RandomnessEncoder

ROWS_AT_ONCE = 16  # rows whose logits are computed at once, for all their places: 1.2 GB for 150,000 tokens


# -- thinking


def think_causally(model: MarCosModel, neurons: Tensor, h_in: Tensor, real: Tensor, injected: Tensor | None) -> Tensor:
    """Return Neu_k (B, T + S, d) with unidirectional attention. R_k, as ``injected`` (B, tau, d), comes before the
    neurons, which could not see it otherwise: [H_in | R_k | Neu_deep | Neu_shallow]."""
    states = neurons if injected is None else torch.cat([injected, neurons], dim=1)
    return model.run_thinking_layer(states, h_in, real, causal_mask)[:, -neurons.shape[1] :]


def initialise_xavier(layer: nn.Module) -> None:
    """Re-initialise a transformer's matrices, uniformly by Xavier's rule."""
    for parameter in layer.parameters():
        if parameter.dim() == 2:
            nn.init.xavier_uniform_(parameter)


# -- posterior and prior together


def joint_stages(phase: str, epochs: float, weight: float, start: float) -> list[Stage]:
    """Return the stages of a single phase that trains f, g and all else, in which the KL term trains f by ``weight``
    after a fraction ``start``, and not before. Weights are selected by minus the ELBO (5)."""
    whole = Stage(
        "joint",
        epochs * (1 - start),
        phase=phase,
        keep_optimizer=start > 0,
        select_on=("reconstruction", "kl"),
        settings={"kl_weight": weight},
    )
    return [Stage("joint, f without KL", epochs * start, phase=phase), whole] if start else [whole]


def joint_kl(stage: Stage, mu_hat: Tensor, sigma_hat: Tensor | float, mu: Tensor, log_sigma: Tensor) -> Tensor:
    """Return L_KL (8), whose gradient for g is whole, and whose gradient for f is multiplied by the weight that the
    ``stage`` sets."""
    weight = stage.settings.get("kl_weight", 0.0)
    fixed = sigma_hat.detach() if isinstance(sigma_hat, Tensor) else sigma_hat
    to_both, to_g = kl_loss(mu_hat, sigma_hat, mu, log_sigma), kl_loss(mu_hat.detach(), fixed, mu, log_sigma)
    return weight * to_both + (1 - weight) * to_g


# -- what f reads


def join_paths(
    questions: Sequence[Sequence[int]], targets: Sequence[Sequence[Sequence[int]]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Join each question and its K targets into one row, without the end-of-text of a target, which is only spoken.
    Return the rows, and for each row how many of its tokens f has read at the end of each step."""
    rows, lengths = [], []
    for question, steps in zip(questions, targets, strict=True):
        row, ends = [*question], []
        for step in steps:
            row += step[:-1] if len(step) > 1 else step  # an empty step has no end-of-text
            ends.append(len(row))
        rows.append(row)
        lengths.append(ends)
    return rows, lengths


def encode_paths(f: RandomnessEncoder, paths: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return mu_hat and any sigma_hat, each (K, B, tau d), as f gives them for paths (B, P) at ``lengths`` (B, K)."""
    mu_hat, sigma_hat = f(paths, lengths)
    return mu_hat.transpose(0, 1), None if sigma_hat is None else sigma_hat.transpose(0, 1)


# -- one-shot speaking


def speak_at_once(lm: Any, shallow: Tensor, ids: Tensor, known: Tensor) -> Tensor:
    """Return final hidden states (A, M, d), each of which predicts the token in its own place.

    Every place attends to all shallow neurons (A, S, d) and to those tokens of ``ids`` (A, M) that are ``known``
    (A, M). A place that is not known holds end-of-text. The prediction at a place does not depend on the number of
    unknown places, so training may leave out those after the targets of a batch.
    """
    neurons, places = shallow.shape[1], ids.shape[1]
    visible = known.new_zeros(len(known), neurons + places, neurons + places)  # (A, S + M, S + M): who sees whom
    visible[:, :, :neurons] = known.new_ones(neurons + places, neurons).tril()
    visible[:, neurons:, neurons:] = known[:, None]
    sequence = torch.cat([shallow, lm.get_input_embeddings()(ids)], dim=1)
    output = lm.base_model(inputs_embeds=sequence, attention_mask=visible[:, None], use_cache=False)
    return output.last_hidden_state[:, neurons:]


def mask_predict_split(labels: Tensor, keys: Tensor, steps: int, step: int) -> tuple[Tensor, Tensor]:
    """Return which targets a training pass shows, (K B, M), and the loss weights of those it hides. For collating.

    Of the L targets of a row, it hides a number drawn uniformly from 1 to L, at places drawn uniformly. The weight is L
    divided by that number, which keeps the scale of a row's loss. ``keys`` (B,) are one per example; ``step`` is the
    optimizer step.
    """
    draws = torch.cat([uniform(keys ^ key("in sight", step, k), 1 + labels.shape[1]) for k in range(steps)])
    target = labels != IGNORE
    count = target.sum(1, keepdim=True)
    hidden = (draws[:, :1] * count).long() + 1
    order = draws[:, 1:].masked_fill(~target, 2.0).argsort(1).argsort(1)
    return target & (order >= hidden), (count / hidden).expand_as(labels)


def mask_predict_tensors(labels: Tensor, spoken_rows: Tensor, keys: Tensor, steps: int, step: int) -> dict[str, Tensor]:
    """Return the tensors of a batch that is trained for refinement, for the ``spoken_rows`` (A,) of labels (K B, M):

    * ``known`` (A, M): whether a target is visible
    * ``labelled`` (2, N): indices of the hidden targets
    * ``weights`` (A, M): of the losses of the hidden targets
    """
    known, weights = mask_predict_split(labels, keys, steps, step)
    known, weights = known[spoken_rows], weights[spoken_rows]
    hidden = labels[spoken_rows].masked_fill(known, IGNORE)
    return {"labelled": label_indices(hidden), "known": known, "weights": weights}


def predict_targets_at_once(lm: Any, shallow: Tensor, labels: Tensor, eos: int, known: Tensor | None = None) -> Tensor:
    """Return the hidden states (A, M, d) that predict the targets (A, M), each in its own place: from the shallow
    neurons alone, or with the ``known`` (A, M) targets visible."""
    if known is None:
        known = torch.zeros_like(labels, dtype=torch.bool)
    return speak_at_once(lm, shallow, labels.masked_fill(~known, eos), known)


def decode_at_once(
    lm: Any, shallow: Tensor, eos: int, length: int, refinements: int, ends: Tensor | None = None
) -> tuple[Tensor, Cost]:
    """Decode tokens (A, length), with end-of-text from each row's end on: the likeliest of every place, in one pass.
    Each refinement then predicts the least certain ones again, with the others visible. Their number shrinks linearly,
    and rows stay within the length that the first pass gave them, or that ``ends`` (A,) forces on them."""
    blank = torch.full((len(shallow), length), eos, device=shallow.device)
    unseen = torch.zeros_like(blank, dtype=torch.bool)
    probability, tokens = _likeliest(lm, speak_at_once(lm, shallow, blank, unseen), eos, ends)
    end = (tokens == eos).long()
    inside = end.cumsum(1) - end == 0  # up to and including the first end-of-text
    for turn in range(refinements):
        unsure = inside.sum(1, keepdim=True) * (refinements - turn) // (refinements + 1)
        order = probability.masked_fill(~inside, torch.inf).argsort(dim=1, stable=True).argsort(1)
        known = inside & (order >= unsure)
        again = _likeliest(lm, speak_at_once(lm, shallow, tokens.masked_fill(~known, eos), known), eos, ends)
        probability, tokens = (
            torch.where(known, old, new) for old, new in zip((probability, tokens), again, strict=True)
        )
    ended = ((tokens == eos).cumsum(1) > 0) | ~inside
    emitted = int((~ended).sum() + ended.any(1).sum())
    return tokens.masked_fill(ended, eos), Cost(forward_passes=1 + refinements, tokens=emitted)


def _likeliest(lm: Any, hidden: Tensor, eos: int, ends: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return probability and id, (A, M), of the likeliest token for each hidden state (A, M, d). With ``ends`` (A,),
    that is end-of-text from the given length on, and never before."""
    head, places, found = lm.get_output_embeddings(), hidden.shape[1], []
    for first in range(0, len(hidden), ROWS_AT_ONCE):
        some = slice(first, first + ROWS_AT_ONCE)
        logits = head(hidden[some]).float()
        if ends is not None:
            over = torch.arange(1, places + 1, device=ends.device) >= ends[some, None].clamp(max=places)
            logits = force_end(logits, over, eos)
        largest, token = logits.max(-1)
        found.append(((largest - logits.logsumexp(-1)).exp(), token))
    probability, tokens = zip(*found, strict=True)
    return torch.cat(probability), torch.cat(tokens)
