"""The one batched answer decoder that every method calls.

A method prefills a :class:`Prefix` with its prompt, may extend it by continuous vectors (:func:`extend`), and decodes
tokens from it. Prompts are padded on the left; masks and position ids make padding invisible. Finished rows leave the
batch once they are half of it. How a prefix is kept is the business of :mod:`methods.kv_cache` and
:mod:`methods._static_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from methods.collating import pad
from methods.draws import question_keys, uniform
from methods.errors import InputError
from methods.generation import CachePolicy, Cost, Decoding
from methods.kv_cache import DynamicKVCache, KVCache, NoCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LIKELIEST = 64  # tokens that nearly every draw is among


@dataclass
class Prefix:
    """What a model has read, and the state that the next token is predicted from."""

    cache: KVCache
    hidden: Tensor  # (B, d) final hidden state of the last position
    real: Tensor  # (B, L) which positions are seen, and are no padding
    cost: Cost
    whole: bool = True  # whether all are; known without asking the device

    def select(self, rows: Tensor) -> Prefix:
        """The prefix of some rows. The cache is changed in place: this prefix is spent."""
        self.cache.select(rows)
        return Prefix(self.cache, self.hidden[rows], self.real[rows], self.cost, self.whole)


def make_cache(policy: CachePolicy, trunk: Any) -> KVCache:
    """The cache that a policy names; ``auto`` is ``static`` where a GPU answers and ``dynamic`` elsewhere."""
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
    """What an answer starts from, on ``device``: the ids of prompts (B, L), padded on the left; which of them are real
    (B, L), or None where all are; and the keys (B,) that tokens are drawn with, functions of question and seed
    alone."""
    ids, real = pad(prompts, eos, side="left")
    keys = question_keys(questions, decoding.seed, "tokens")
    return ids.to(device), None if real.all() else real.to(device), keys.to(device)


def blank(trunk: PreTrainedModel, embeddings: Tensor, cache: CachePolicy = "dynamic") -> Prefix:
    """The prefix of rows of (B, L, d) vectors, before anything of them is read."""
    real = torch.zeros(len(embeddings), 0, dtype=torch.bool, device=embeddings.device)
    return Prefix(make_cache(cache, trunk), torch.zeros_like(embeddings[:, 0]), real, Cost())


def prefill(trunk: PreTrainedModel, embeddings: Tensor, real: Tensor | None, cache: CachePolicy = "dynamic") -> Prefix:
    """Read (B, L, d) left-padded vectors, of which ``real`` (B, L; None: all) are no padding, in one pass."""
    return read(blank(trunk, embeddings, cache), embeddings, real)[0]


def extend(prefix: Prefix, embeddings: Tensor) -> Prefix:
    """Read one more (B, d) vector per row. The cache is changed in place: ``prefix`` is spent."""
    return read(prefix, embeddings[:, None])[0]


def read(prefix: Prefix, embeddings: Tensor, real: Tensor | None = None, **settings: Any) -> tuple[Prefix, Any]:
    """Read (B, n, d) more vectors in one pass, of which ``real`` (B, n; None: all) are no padding; returns the trunk's
    output too. The cache is changed in place: ``prefix`` is spent."""
    own = prefix.real.new_ones(embeddings.shape[:2]) if real is None else real
    seen = torch.cat([prefix.real, own], dim=1)
    whole = prefix.whole and real is None
    output = prefix.cache.read(embeddings, seen, whole, **settings)
    return Prefix(prefix.cache, output.last_hidden_state[:, -1], seen, prefix.cost + Cost(1), whole), output


def decode(lm: Any, prefix: Prefix, decoding: Decoding, keys: Tensor, eos: int) -> tuple[Tensor, Cost]:
    """Tokens after a prefix, (B, L) with ``eos`` from each row's end on, and what the prefix and they cost.

    ``keys`` (B,) are the rows' draws when tokens are sampled.
    """
    head, embed = lm.get_output_embeddings(), lm.get_input_embeddings()
    ends = forced(decoding, keys, "tokens")
    limit = decoding.max_new_tokens if ends is None else int(ends.max())
    tokens = torch.full((len(keys), limit), eos, dtype=torch.long, device=keys.device)
    rows = torch.arange(len(keys), device=keys.device)  # where the rows still decoded stand in `tokens`
    running = torch.ones_like(rows, dtype=torch.bool)
    emitted = 0
    for step in range(limit):
        logits = head(prefix.hidden)
        if ends is not None:
            logits = end_where(logits, step + 1 >= ends[rows], eos)
        chosen = torch.where(running, choose(logits, decoding, keys[rows], step), eos)
        tokens[rows, step] = chosen
        alive = chosen != eos
        still, left = torch.stack([running.sum(), alive.sum()]).tolist()  # the one wait for the device in a greedy step
        emitted, running = emitted + still, alive
        if left == 0 or step + 1 == limit:
            break
        if 2 * left <= len(rows):
            keep = running.nonzero().squeeze(1)
            prefix, rows, chosen, running = prefix.select(keep), rows[keep], chosen[keep], running[keep]
        prefix = extend(prefix, embed(chosen))
    return tokens[:, : step + 1], prefix.cost + Cost(tokens=emitted)


def forced(decoding: Decoding, keys: Tensor, what: Literal["tokens", "latents"]) -> Tensor | None:
    """(B,) how many tokens or latents each row is to have, where :attr:`Decoding.lengths` forces it."""
    if decoding.lengths is None:
        return None
    if len(decoding.lengths) != len(keys):
        raise InputError(
            f"{len(decoding.lengths)} lengths are given for {len(keys)} rows that are decoded: lengths "
            "are forced on answers alone, one for each question"
        )
    return torch.tensor([getattr(length, what) for length in decoding.lengths], device=keys.device)


def end_where(logits: Tensor, over: Tensor, eos: int) -> Tensor:
    """Logits (…, V) by which end-of-text alone is chosen where ``over`` (…), and anything but it elsewhere."""
    logits = logits.masked_fill(over[..., None], -torch.inf)
    logits[..., eos] = torch.where(over, 0.0, -torch.inf).to(logits)
    return logits


def choose(logits: Tensor, decoding: Decoding, keys: Tensor, step: int) -> Tensor:
    """(B, V) logits to (B,) tokens: the likeliest, or one draw per row from the nucleus."""
    if decoding.tokens == "greedy":
        return logits.argmax(-1)
    probability = torch.softmax(logits.double() / decoding.temperature, -1)
    return from_nucleus(probability, decoding.top_p, uniform(keys, 1, step).to(probability))


def from_nucleus(probability: Tensor, top_p: float, draws: Tensor) -> Tensor:
    """(B,) tokens by (B, V) probabilities, of which the likeliest that together have ``top_p`` count, from draws (B, 1)
    in [0, 1). Sorting a large vocabulary takes longer than a decoding step; nearly all draws lie among its likeliest
    tokens, so the others are looked at where some row's does not."""
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


def swap_latents(latents: Tensor, decoding: Decoding) -> Tensor:
    """(B, …) latents as a question's continuation is to see them: its own, or those of a control that asks whether
    they carry anything (:attr:`Decoding.thoughts`)."""
    if decoding.thoughts == "exchanged":
        return latents.roll(1, 0)
    if decoding.thoughts == "mean":
        return latents.mean(0, keepdim=True).expand_as(latents)
    return latents
