"""The one cached, batched decoder that every method calls.

A method prefills a :class:`Prefix` with its prompt, may extend it by continuous vectors (:func:`extend`), and decodes
tokens from it. Prompts are padded on the left; masks and position ids make padding invisible. Finished rows leave the
batch once they are half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from methods.backbone import causal_mask, positions_of
from methods.base import Cost, Decoding
from methods.draws import uniform

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel


@dataclass
class Prefix:
    """What a model has read: its cache, and what the next position needs."""

    cache: Cache
    hidden: Tensor  # (B, d) final hidden state of the last position
    real: Tensor  # (B, L) which cached positions are no padding
    position: Tensor  # (B,) position id of the next one
    cost: Cost

    def select(self, rows: Tensor) -> Prefix:
        """The prefix of some rows. The cache is changed in place: this prefix is spent."""
        self.cache.batch_select_indices(rows)
        return Prefix(self.cache, self.hidden[rows], self.real[rows], self.position[rows], self.cost)


def prefill(trunk: PreTrainedModel, embeddings: Tensor, real: Tensor) -> Prefix:
    """Read (B, L, d) left-padded vectors in one pass."""
    from transformers import DynamicCache

    positions = positions_of(real)
    mask = None if bool(real.all()) else causal_mask(real)
    output = trunk(
        inputs_embeds=embeddings,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=DynamicCache(config=trunk.config),
        use_cache=True,
    )
    return Prefix(output.past_key_values, output.last_hidden_state[:, -1], real, positions[:, -1] + 1, Cost(1))


def extend(trunk: PreTrainedModel, prefix: Prefix, embeddings: Tensor) -> Prefix:
    """Read one more (B, d) vector per row. The cache is changed in place: ``prefix`` is spent."""
    output = read(trunk, prefix, embeddings[:, None])
    real = torch.cat([prefix.real, prefix.real.new_ones(len(prefix.real), 1)], dim=1)
    cost = prefix.cost + Cost(1)
    return Prefix(output.past_key_values, output.last_hidden_state[:, -1], real, prefix.position + 1, cost)


def read(trunk: PreTrainedModel, prefix: Prefix, embeddings: Tensor, **settings: Any) -> Any:
    """The trunk's output at (B, n, d) vectors that go on from ``prefix``; rows may be padded at their end. The cache is
    changed in place: ``prefix`` is spent."""
    rows, count = embeddings.shape[:2]
    read_before = prefix.real[:, None, None].expand(rows, 1, count, -1)
    own = prefix.real.new_ones(count, count).tril().expand(rows, 1, count, count)
    return trunk(
        inputs_embeds=embeddings,
        attention_mask=torch.cat([read_before, own], dim=-1),
        position_ids=prefix.position[:, None] + torch.arange(count, device=embeddings.device),
        past_key_values=prefix.cache,
        use_cache=True,
        **settings,
    )


def decode(
    lm: Any, prefix: Prefix, decoding: Decoding, keys: Tensor, eos: int, max_new_tokens: int | None = None
) -> tuple[Tensor, Cost]:
    """Tokens after a prefix, (B, L) with ``eos`` from each row's end on, and what the prefix and they cost.

    ``keys`` (B,) are the rows' draws when tokens are sampled.
    """
    limit = max_new_tokens or decoding.max_new_tokens
    trunk, head, embed = lm.base_model, lm.get_output_embeddings(), lm.get_input_embeddings()
    tokens = torch.full((len(keys), limit), eos, dtype=torch.long, device=keys.device)
    rows = torch.arange(len(keys), device=keys.device)  # where the rows still decoded stand in `tokens`
    running = torch.ones_like(rows, dtype=torch.bool)
    emitted = 0
    for step in range(limit):
        chosen = choose(head(prefix.hidden), decoding, keys[rows], step)
        tokens[rows[running], step] = chosen[running]
        alive = running & (chosen != eos)
        emitted, left = emitted + int(running.sum()), int(alive.sum())
        running = alive
        if left == 0 or step + 1 == limit:
            break
        if 2 * left <= len(rows):
            keep = running.nonzero().squeeze(1)
            prefix, rows, chosen, running = prefix.select(keep), rows[keep], chosen[keep], running[keep]
        prefix = extend(trunk, prefix, embed(chosen))
    return tokens[:, : step + 1], prefix.cost + Cost(tokens=emitted)


def choose(logits: Tensor, decoding: Decoding, keys: Tensor, step: int) -> Tensor:
    """(B, V) logits to (B,) tokens: the likeliest, or one draw per row from the nucleus."""
    if decoding.tokens == "greedy":
        return logits.argmax(-1)
    probability, order = torch.softmax(logits.double() / decoding.temperature, -1).sort(-1, descending=True)
    mass = probability.cumsum(-1)
    nucleus = mass - probability < decoding.top_p  # the likeliest token always belongs to it
    total = (probability * nucleus).sum(-1, keepdim=True)
    drawn = torch.searchsorted(mass, uniform(keys, 1, step).to(mass) * total, right=True)
    return order.gather(1, drawn.clamp(max=logits.shape[1] - 1)).squeeze(1)


def controlled(latents: Tensor, decoding: Decoding) -> Tensor:
    """(B, …) latents as a question's continuation is to see them: its own, or those of a control that asks whether
    they carry anything (:attr:`Decoding.thoughts`)."""
    if decoding.thoughts == "exchanged":
        return latents.roll(1, 0)
    if decoding.thoughts == "mean":
        return latents.mean(0, keepdim=True).expand_as(latents)
    return latents
