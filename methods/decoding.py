"""The batched answer decoder that all methods share.

A method prefills a :class:`Prefix` with its prompt, may extend it by continuous vectors (:func:`extend`), and decodes
tokens from it. Prompts are padded on the left; attention masks and position ids hide the padding. Finished rows leave
the batch once they make up half of it. The KV caches behind a prefix are in :mod:`methods.kv_cache` and
:mod:`methods._static_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from methods.backbone import label_nats
from methods.collate import IGNORE, pad
from methods.errors import InputError
from methods.generation import CachePolicy, Cost, Decoding
from methods.kv_cache import DynamicKVCache, KVCache, NoCache
from methods.random_keys import question_keys, uniform

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LIKELIEST = 64  # nearly every sampled token is among this many


@dataclass
class Prefix:
    """Everything that a model has read, and the hidden state that predicts the next token."""

    cache: KVCache
    hidden: Tensor  # (B, d) final hidden state at the last position
    real: Tensor  # (B, L) mask of the positions to attend to: not padding
    cost: Cost
    unpadded: bool = True  # whether `real` is all True; known without waiting for the device

    def select(self, rows: Tensor) -> Prefix:
        """Return the prefix of some rows. The cache is changed in place: do not use this prefix again."""
        self.cache.select(rows)
        return Prefix(self.cache, self.hidden[rows], self.real[rows], self.cost, self.unpadded)


def make_cache(policy: CachePolicy, trunk: Any) -> KVCache:
    """Return the KV cache for a policy. ``auto`` is ``static`` on a GPU without gradients, else ``dynamic``."""
    if policy == "auto":
        on_gpu = next(trunk.parameters()).is_cuda and not torch.is_grad_enabled()
        policy = "static" if on_gpu else "dynamic"
    if policy != "static":
        return DynamicKVCache(trunk) if policy == "dynamic" else NoCache(trunk)
    from methods._static_cache import StaticKVCache  # it extends classes of transformers, which take seconds to import

    return StaticKVCache(trunk)


def batch_prompts(
    prompts: Sequence[Sequence[int]],
    questions: Sequence[Sequence[int]],
    decoding: Decoding,
    eos: int,
    device: torch.device,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return on ``device``: the ids of the prompts (B, L), padded on the left; the mask of real positions (B, L), or
    None if there is no padding; and the keys (B,) for sampling tokens, which depend only on the question and the
    seed."""
    ids, real = pad(prompts, eos, side="left")
    keys = question_keys(questions, decoding.seed, "tokens")
    return ids.to(device), None if real.all() else real.to(device), keys.to(device)


def empty_prefix(trunk: PreTrainedModel, embeddings: Tensor, cache: CachePolicy = "dynamic") -> Prefix:
    """Return the empty prefix of rows of vectors (B, L, d), before any of them is read."""
    real = torch.zeros(len(embeddings), 0, dtype=torch.bool, device=embeddings.device)
    return Prefix(make_cache(cache, trunk), torch.zeros_like(embeddings[:, 0]), real, Cost())


def prefill(trunk: PreTrainedModel, embeddings: Tensor, real: Tensor | None, cache: CachePolicy = "dynamic") -> Prefix:
    """Read left-padded vectors (B, L, d) in one pass. ``real`` (B, L) masks out padding; None: there is none."""
    return forward_cached(empty_prefix(trunk, embeddings, cache), embeddings, real, last=1)[0]


def read_prompts(
    lm: Any,
    prompts: Sequence[Sequence[int]],
    questions: Sequence[Sequence[int]],
    decoding: Decoding,
    eos: int,
) -> tuple[Prefix, Tensor]:
    """Read the prompts of questions, which are tokens alone, in one pass. Return their prefix, and the keys (B,) for
    sampling tokens."""
    ids, real, keys = batch_prompts(prompts, questions, decoding, eos, lm.device)
    return prefill(lm.base_model, lm.get_input_embeddings()(ids), real, decoding.cache), keys


def extend(prefix: Prefix, embeddings: Tensor) -> Prefix:
    """Read one more vector per row, (B, d). The cache is changed in place: do not use ``prefix`` again."""
    return forward_cached(prefix, embeddings[:, None])[0]


def forward_cached(
    prefix: Prefix,
    embeddings: Tensor,
    real: Tensor | None = None,
    hidden_states: bool = False,
    last: int | None = None,
) -> tuple[Prefix, Any]:
    """Read n more vectors per row, (B, n, d), in one pass, and return the trunk's output too, with the
    ``hidden_states`` of all layers if asked for. ``real`` (B, n) masks out padding; None: there is none. If only the
    ``last`` final states are needed, the others may be missing. The cache is changed in place: do not use ``prefix``
    again."""
    own = prefix.real.new_ones(embeddings.shape[:2]) if real is None else real
    seen = torch.cat([prefix.real, own], dim=1)
    unpadded = prefix.unpadded and real is None
    output = prefix.cache.forward(embeddings, seen, unpadded, hidden_states, last)
    return Prefix(prefix.cache, output.last_hidden_state[:, -1], seen, prefix.cost + Cost(1), unpadded), output


def decode(lm: Any, prefix: Prefix, decoding: Decoding, keys: Tensor, eos: int) -> tuple[Tensor, Cost]:
    """Decode the tokens that follow a prefix. Return them, (B, L) with ``eos`` from each row's end on, and the cost,
    that of the prefix included.

    If tokens are sampled, the keys (B,) determine the draws of each row.
    """
    head, embed = lm.get_output_embeddings(), lm.get_input_embeddings()
    ends = forced_lengths(decoding, keys, "tokens")
    limit = decoding.max_new_tokens if ends is None else int(ends.max())
    tokens = torch.full((len(keys), limit), eos, dtype=torch.long, device=keys.device)
    rows = torch.arange(len(keys), device=keys.device)  # row of `tokens` for each row still being decoded
    running = torch.ones_like(rows, dtype=torch.bool)
    emitted = 0
    for step in range(limit):
        logits = head(prefix.hidden)
        if ends is not None:
            logits = force_end(logits, step + 1 >= ends[rows], eos)
        chosen = torch.where(running, choose_tokens(logits, decoding, keys[rows], step), eos)
        tokens[rows, step] = chosen
        wrote, running = running, chosen != eos
        new, left = torch.stack([wrote.sum(), running.sum()]).tolist()  # a greedy step waits for the device only here
        emitted += new
        if left == 0 or step + 1 == limit:
            break
        if 2 * left <= len(rows):
            keep = running.nonzero().squeeze(1)
            prefix, rows, chosen, running = prefix.select(keep), rows[keep], chosen[keep], running[keep]
        prefix = extend(prefix, embed(chosen))
    return tokens[:, : step + 1], prefix.cost + Cost(tokens=emitted)


def text_nats(lm: Any, prefix: Prefix, texts: Sequence[Sequence[int]], eos: int) -> Tensor:
    """Return the nats (B, L) of each token of the texts that rows write after a prefix, and 0 after a text's end. The
    cache is changed in place: do not use ``prefix`` again."""
    ids, written = (tensor.to(prefix.hidden.device) for tensor in pad(texts, eos))
    # What follows a text's end is seen by none of it
    _, output = forward_cached(prefix, lm.get_input_embeddings()(ids[:, :-1]))
    hidden = torch.cat([prefix.hidden[:, None], output.last_hidden_state], dim=1)
    return label_nats(lm.get_output_embeddings(), hidden, ids.masked_fill(~written, IGNORE))


def forced_lengths(decoding: Decoding, keys: Tensor, what: Literal["tokens", "latents"]) -> Tensor | None:
    """Return the number (B,) of tokens or latents that :attr:`Decoding.lengths` forces on each row, or None."""
    if decoding.lengths is None:
        return None
    if len(decoding.lengths) != len(keys):
        raise InputError(
            f"{len(decoding.lengths)} lengths are given for {len(keys)} rows that are decoded: lengths "
            "are forced on answers alone, one for each question"
        )
    return torch.tensor([getattr(length, what) for length in decoding.lengths], device=keys.device)


def force_end(logits: Tensor, over: Tensor, eos: int) -> Tensor:
    """Return logits (…, V) that allow only end-of-text where ``over`` (…) is True, and never end-of-text elsewhere."""
    logits = logits.masked_fill(over[..., None], -torch.inf)
    logits[..., eos] = torch.where(over, 0.0, -torch.inf).to(logits)
    return logits


def choose_tokens(logits: Tensor, decoding: Decoding, keys: Tensor, step: int) -> Tensor:
    """Choose tokens (B,) by logits (B, V): the likeliest, or one draw per row from the nucleus."""
    if decoding.tokens == "greedy":
        return logits.argmax(-1)
    probability = torch.softmax(logits.double() / decoding.temperature, -1)
    return sample_nucleus(probability, decoding.top_p, uniform(keys, 1, step).to(probability))


def sample_nucleus(probability: Tensor, top_p: float, draws: Tensor) -> Tensor:
    """Sample tokens (B,) from the likeliest ones whose probabilities (B, V) add up to ``top_p``, by draws (B, 1) in
    [0, 1). Sorting a large vocabulary takes longer than a decoding step. Nearly all draws fall among its likeliest
    tokens, so the whole vocabulary is sorted only if some row's draw does not."""
    for count in (min(LIKELIEST, probability.shape[1]), probability.shape[1]):
        likely, order = probability.topk(count)  # the likeliest first
        mass = likely.cumsum(-1)
        nucleus = mass - likely < top_p  # the likeliest token always belongs to it
        total = (likely * nucleus).sum(-1, keepdim=True) if top_p < 1 else torch.ones_like(draws)
        reached = mass[:, -1:] >= top_p if top_p < 1 else mass[:, -1:] > draws
        if count == probability.shape[1] or reached.all():
            break
    drawn = torch.searchsorted(mass, draws * total, right=True)
    return order.gather(1, drawn.clamp(max=count - 1)).squeeze(1)


def swap_latents(latents: Tensor, decoding: Decoding, thinking: Tensor | None = None) -> Tensor:
    """Return the latents (B, …) that each row goes on with: its own or, in a control that tests whether latents carry
    anything, those of other questions. A control has each question of its batch twice. The rows of the first half keep
    their own latents, and the rows of the second half get them, too: all of them those of the row before
    (``exchanged``) or the mean of all rows (``mean``), of those that are still ``thinking`` (B,) where chains end. So
    they are latents of whole chains, as the model computes them by itself."""
    if decoding.thoughts == "own":
        return latents
    own = latents[: len(latents) // 2]
    if decoding.thoughts == "exchanged":
        return torch.cat([own, own.roll(1, 0)])
    averaged = own if thinking is None else own[thinking[: len(own)]]
    return torch.cat([own, averaged.mean(0).expand_as(own)])
