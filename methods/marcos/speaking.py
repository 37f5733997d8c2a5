"""Speaking: token by token, or all tokens of a step in one pass, with optional passes that revise uncertain tokens.

The second way is the paper's "Potential for non-autoregressive decoding in speaking stage", which trains for 128 tokens
at once. Refinement is mask-predict (Ghazvininejad et al., "Mask-Predict: Parallel decoding of conditional masked
language models", 2019): it needs a model that was trained with some of its targets visible (:func:`revealed`).
Shapes: A active rows (those that say something) out of K B; S shallow neurons; M places in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from methods.backbone import label_loss
from methods.collate import IGNORE, label_indices
from methods.decoding import decode, end_where, prefill
from methods.generation import Cost, Decoding
from methods.random_keys import key, uniform

ROWS_AT_ONCE = 16  # rows whose logits are computed at once, for all their places: 1.2 GB for 150,000 tokens


def speak(lm: Any, shallow: Tensor, ids: Tensor) -> Tensor:
    """Return final hidden states (A, M, d) at target ids (A, M), teacher-forced after the thoughts (A, S, d)."""
    embedded = lm.get_input_embeddings()(ids)
    output = lm.base_model(inputs_embeds=torch.cat([shallow, embedded], dim=1), use_cache=False)
    return output.last_hidden_state[:, shallow.shape[1] :]


def decode_in_turn(
    lm: Any, shallow: Tensor, start: Sequence[int], decoding: Decoding, keys: Tensor, eos: int
) -> tuple[Tensor, Cost]:
    """Decode the tokens (A, L) that follow the thoughts (A, S, d) and the ids ``start``; return their cost too. If
    tokens are sampled, the keys (A,) determine the draws of each row."""
    ids = torch.tensor(start, device=shallow.device).expand(len(shallow), -1)
    sequence = torch.cat([shallow, lm.get_input_embeddings()(ids)], dim=1)
    return decode(lm, prefill(lm.base_model, sequence, None, decoding.cache), decoding, keys, eos)


def speak_at_once(lm: Any, shallow: Tensor, ids: Tensor, known: Tensor) -> Tensor:
    """Return final hidden states (A, M, d), each of which predicts the token in its own place.

    Every place attends to all thoughts (A, S, d) and to those tokens of ``ids`` (A, M) that are ``known`` (A, M). A
    place that is not known holds end-of-text. The prediction at a place does not depend on the number of unknown
    places, so training may leave out those after the targets of a batch.
    """
    thoughts, length = shallow.shape[1], ids.shape[1]
    visible = known.new_zeros(len(known), thoughts + length, thoughts + length)
    visible[:, :, :thoughts] = known.new_ones(thoughts + length, thoughts).tril()
    visible[:, thoughts:, thoughts:] = known[:, None]
    sequence = torch.cat([shallow, lm.get_input_embeddings()(ids)], dim=1)
    output = lm.base_model(inputs_embeds=sequence, attention_mask=visible[:, None], use_cache=False)
    return output.last_hidden_state[:, thoughts:]


def revealed(labels: Tensor, keys: Tensor, steps: int, step: int) -> tuple[Tensor, Tensor]:
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


def target_tensors(labels: Tensor, active: Tensor, shown: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
    """Return a batch's tensors for the ``active`` rows (A,) of targets (K B, M): ``labels`` (A, M), and ``labelled``,
    the places that carry a loss. If ``shown`` has the result of :func:`revealed`, only hidden targets carry a loss, and
    that result is included as ``known`` and ``weights`` (A, M)."""
    said = labels[active]
    if shown is None:
        return {"labels": said, "labelled": label_indices(said)}
    known, weights = (part[active] for part in shown)
    return {
        "labels": said,
        "labelled": label_indices(said.masked_fill(known, IGNORE)),
        "known": known,
        "weights": weights,
    }


def at_once_loss(
    lm: Any,
    shallow: Tensor,
    labels: Tensor,
    at: Tensor,
    eos: int,
    known: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the summed cross entropy of the targets (A, M) ``at`` some places (2, N), each predicted in its own place:
    from the thoughts alone, or with the ``known`` (A, M) targets visible, and then with ``weights`` (A, M)."""
    if known is None:
        known = torch.zeros_like(labels, dtype=torch.bool)
    hidden = speak_at_once(lm, shallow, labels.masked_fill(~known, eos), known)
    return label_loss(lm.get_output_embeddings(), hidden, labels, at, weights)


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
    own = end.cumsum(1) - end == 0  # up to and including the first end-of-text
    for turn in range(refinements):
        unsure = own.sum(1, keepdim=True) * (refinements - turn) // (refinements + 1)
        order = probability.masked_fill(~own, torch.inf).argsort(dim=1, stable=True).argsort(1)
        known = own & (order >= unsure)
        again = _likeliest(lm, speak_at_once(lm, shallow, tokens.masked_fill(~known, eos), known), eos, ends)
        probability, tokens = (
            torch.where(known, old, new) for old, new in zip((probability, tokens), again, strict=True)
        )
    ended = ((tokens == eos).cumsum(1) > 0) | ~own
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
            logits = end_where(logits, over, eos)
        largest, token = logits.max(-1)
        found.append(((largest - logits.logsumexp(-1)).exp(), token))
    probability, tokens = zip(*found, strict=True)
    return torch.cat(probability), torch.cat(tokens)
