"""One step of thinking: the input and output of the thinking layer, and the pooled input of the predictor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from methods.masks import bidirectional_mask, causal_mask, positions_of


def next_neurons(
    layer: Any, question: Tensor, real: Tensor, neurons: Tensor, randomness: Tensor | None, causal: bool
) -> Tensor:
    """Return the neurons (B, T + S, d) that follow the given ones, H_in (B, n, d), whose padding ``real`` (B, n) masks
    out, and R as vectors (B, tau, d), if there is one.

    Attention is bidirectional over [H_in | neurons | R]. With the causal mask, R comes before the neurons, because they
    could not see it otherwise. The position ids after H_in continue from each question's own last token. Padding is
    masked, so it may stay in between.
    """
    parts, start = [question, neurons], question.shape[1]
    if randomness is not None:
        parts.insert(1 if causal else 2, randomness)
        start += randomness.shape[1] if causal else 0
    sequence = torch.cat(parts, dim=1)
    added = sequence.shape[1] - question.shape[1]
    own = torch.arange(added, device=real.device) + real.sum(1, keepdim=True)
    visible = torch.cat([real, real.new_ones(len(real), added)], dim=1)
    output = layer(
        inputs_embeds=sequence,
        attention_mask=causal_mask(visible) if causal else bidirectional_mask(visible),
        position_ids=torch.cat([positions_of(real), own], dim=1),
        use_cache=False,
    ).last_hidden_state
    return output[:, start : start + neurons.shape[1]]


def pool(question: Tensor, real: Tensor, neurons: Tensor) -> Tensor:
    """Return the mean over deep and shallow neurons plus the mean over the question's tokens, (B, d).

    The published code also averages over the rows of the R that was injected last.
    """
    weight = real[..., None].to(question)
    return neurons.mean(1) + (question * weight).sum(1) / weight.sum(1)
