"""CoLaR: the written chain compressed by a random factor, thought in vectors of a latent head (Tan et al., 2025).

Every block of ``r`` embeddings of the chain becomes one vector; the model learns to predict the next vector, and from
it one token of the block, for every r up to a maximum. The speed r is part of the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from methods.backbone import label_loss
from methods.base import Batch, Budget, Context, Example, Method, MethodOptions, Output, Setup, Stage
from methods.collating import IGNORE, labelled, pad
from methods.cot_sft import lines, prompt, target
from methods.decoding import Prefix, batch_prompts, choose, decode, extend, forced, prefill, swap_latents
from methods.draws import generator, key, normal, question_keys, uniform
from methods.generation import Decoding, Generation, Length

SEPARATOR_LIKE = "###"  # the published separator, one token of large vocabularies; ours is a token of its own
DIVISOR_OFFSET = 1e-5  # added, as published, to what a block's sum is divided by
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class CoLaROptions(MethodOptions):
    max_compression: int = Field(
        default=5, ge=1, description="training draws the factor of each optimizer step from 1 to this"
    )
    speed: int | None = Field(default=None, ge=1, description="factor asked for when answering; null: max_compression")
    sqrt_mean: bool = Field(
        default=True,
        description="divide a block's sum by the root of its length, which keeps the deviation; false: mean",
    )
    latent_loss: Literal["mse", "nll"] = Field(
        default="mse", description="published: mse (of a draw) for GSM8K; nll: the negative log likelihood"
    )
    deterministic: bool = Field(default=False, description="a latent head without deviation, for mse alone")
    latent_weight: float = Field(default=1.0, description="of the latent loss")
    head_width: int | None = Field(default=None, description="inner width of the latent head; null: the hidden size")
    max_latents: int = Field(default=64, ge=1, description="an answer is forced after so many")
    warm_start: Literal["none", "cot_sft"] = Field(default="cot_sft", description="method whose weights it starts from")

    @model_validator(mode="after")
    def _likelihood_needs_deviation(self) -> Self:
        if self.deterministic and self.latent_loss == "nll":
            raise ValueError("a deterministic latent head has no likelihood: set latent_loss to mse")
        return self


class LatentHead(nn.Module):
    """Hidden state to mean and log deviation of the next vector, in units of the embeddings' deviation."""

    def __init__(self, width: int, inner: int, deterministic: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, inner), nn.LayerNorm(inner))
        self.mean = nn.Linear(inner, width)
        self.log_deviation = None if deterministic else nn.Linear(inner, width)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        inner = self.body(hidden)
        return self.mean(inner), None if self.log_deviation is None else self.log_deviation(inner)


class CoLaR(Method):
    """The model thinks in vectors, each of which stands for a block of the written chain's tokens.

    Layout: ``question (Thinking speed: r) newline <separator> vector … vector <separator> #### answer <eos>``.
    """

    name = "colar"
    title = "CoLaR"
    citation = """@misc{tan2025colar,
  title={Think Silently, Think Fast: Dynamic Latent Compression of LLM Reasoning Chains},
  author={Tan, Wenhui and Li, Jiaze and Ju, Jianzhong and Luo, Zhenbo and Song, Ruihua and Luan, Jian},
  year={2025}, eprint={2505.16552}, archivePrefix={arXiv}}"""
    Options: ClassVar = CoLaROptions
    has_latents = True
    options: CoLaROptions
    embedding_deviation: Tensor

    def __init__(self, options: CoLaROptions, setup: Setup) -> None:
        super().__init__(options, setup)
        self.lm = setup.backbone.causal_lm(extra_tokens=1)
        self.separator = self.lm.config.vocab_size - 1
        width = setup.backbone.hidden_size
        self.latent_head = LatentHead(width, options.head_width or width, options.deterministic)
        self.speed = options.speed or options.max_compression
        factors = {*range(1, options.max_compression + 1), self.speed}
        self.speed_prompts = {r: self.vocabulary.encode(f" (Thinking speed: {r})") for r in factors}
        self.register_buffer("embedding_deviation", self._table.std())

    @property
    def _table(self) -> Tensor:
        return self.lm.get_input_embeddings().weight.detach()

    @torch.no_grad()
    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """In addition, initialise the separator from a token that looks like it and measure the embeddings' deviation
        again; it is fixed from here on."""
        super().warm_start(weights)
        for layer in (self.lm.get_input_embeddings(), self.lm.get_output_embeddings()):
            layer.weight[self.separator] = layer.weight[self.vocabulary.encode(SEPARATOR_LIKE)].mean(0)
        self.embedding_deviation.copy_(self._table.std())

    def stages(self, budget: Budget) -> list[Stage]:
        """Supervised training alone. Reinforcement learning of shorter chains would be a second stage after it."""
        return [Stage("compression", budget.epochs, select_on=("cross_entropy", "latent"))]

    # -- training

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """``ids`` (B, L); the ``place`` (B, L) of each in the compressed sequence (B, W) and its ``share`` (B, L) in
        the vector there; ``labels`` (B, W - 1); and ``thinks`` (2, N), the rows and columns where the chain's next
        vector is predicted."""
        factor = self._draw_factor(context)
        before = [self._prompt(example.question, factor) for example in examples]
        chains = [lines(example.steps, self.vocabulary) for example in examples]
        after = [[self.separator, *target(example, self.vocabulary, steps=False)] for example in examples]
        ids, real = pad([[*b, *c, *a] for b, c, a in zip(before, chains, after, strict=True)], self.vocabulary.eos)
        start, length = (torch.tensor([len(piece) for piece in pieces])[:, None] for pieces in (before, chains))
        place, counts = merge(start, length, real, factor)
        merged = between(start - 1, start + length, ids.shape[1])
        thinks = between(start - 1, start + blocks(length, factor), counts.shape[1])
        _, step = context.moment
        keys = torch.tensor([key(context.seed, step, example.id) for example in examples])
        said = (counts > 0) & between(start - 1, start.new_tensor(counts.shape[1]), counts.shape[1])
        labels = draw_labels(ids, place, counts, keys).masked_fill(~said, IGNORE)[:, 1:]
        return Batch(
            {
                "ids": ids,
                "place": place,
                "share": self._share(counts.gather(1, place), merged, factor) * real,
                "labels": labels,
                "labelled": labelled(labels),
                "thinks": thinks.nonzero().T.contiguous(),
            },
            {"cross_entropy": float(said.sum()), "latent": float(thinks.sum())},
            tokens=int((counts > 0).sum()) - len(examples),
            keys=keys,
        )

    def _draw_factor(self, context: Context) -> int:
        """One factor for all micro-batches of a step; validation asks for the speed that answering does."""
        if not context.training:
            return self.speed
        draws = generator(context.seed, context.step, "compression")
        return int(torch.randint(1, self.options.max_compression + 1, (), generator=draws))

    def _prompt(self, question: Sequence[int], factor: int) -> list[int]:
        """Up to the separator that opens the chain, which is a block of its own."""
        return [*prompt([*question, *self.speed_prompts[factor]], self.vocabulary), self.separator]

    def _share(self, size: Tensor, merged: Tensor, factor: int) -> Tensor:
        """What each token's embedding is multiplied by, (B, L), before the ``size`` of them in its place are summed."""
        if factor == 1:
            return torch.ones(size.shape)
        divisor = (size.double().sqrt() if self.options.sqrt_mean else size.double()) + DIVISOR_OFFSET
        return torch.where(merged, 1 / divisor, 1.0)

    def forward(self, batch: Batch, context: Context) -> Output:
        vectors = self._compress(batch)
        hidden = self.lm.base_model(inputs_embeds=vectors[:, :-1], use_cache=False).last_hidden_state
        rows, columns = batch["thinks"]
        wanted = vectors[rows, columns + 1].detach() / self.embedding_deviation
        mean, log_deviation = self.latent_head(hidden[rows, columns])
        labels = label_loss(self.lm.get_output_embeddings(), hidden, batch["labels"], batch["labelled"])
        latent = self._latent_loss(mean, log_deviation, wanted, batch)
        statistics = {}
        if log_deviation is not None:
            entropy = (log_deviation.detach().float() + HALF_LOG_2PI + 0.5).mean(-1).sum()
            statistics = {"entropy": entropy, "vectors": entropy.new_full((), len(rows))}
        return Output({"cross_entropy": labels, "latent": self.options.latent_weight * latent}, statistics)

    def _compress(self, batch: Batch) -> Tensor:
        """(B, W, d) embeddings, each the sum of the tokens that share its place."""
        embedded = self.lm.get_input_embeddings()(batch["ids"])
        shares = embedded * batch["share"][..., None].to(embedded)
        width = batch["labels"].shape[1] + 1
        rows = torch.arange(len(embedded), device=self.device)[:, None] * width
        compressed = embedded.new_zeros(len(embedded) * width, embedded.shape[2])
        # Whole rows are added: on a GPU, adding numbers one by one would sort all of them to be deterministic
        compressed = compressed.index_add(0, (rows + batch["place"]).flatten(), shares.flatten(0, 1))
        return compressed.view(len(embedded), width, -1)

    def _latent_loss(self, mean: Tensor, log_deviation: Tensor | None, wanted: Tensor, batch: Batch) -> Tensor:
        """Sum over the chains' vectors (N, d) of the mean over d."""
        if self.options.latent_loss == "nll" and log_deviation is not None:
            scaled = (wanted - mean) * torch.exp(-log_deviation)
            return (0.5 * scaled**2 + log_deviation + HALF_LOG_2PI).mean(-1).sum()
        if log_deviation is not None:
            assert batch.keys is not None
            rows, columns = batch["thinks"]
            draws = normal(batch.keys[rows] + columns, mean.shape[1])
            mean = mean + log_deviation.exp() * draws.to(mean)
        return F.mse_loss(mean, wanted, reduction="none").mean(-1).sum()

    def observed(self, statistics: dict[str, float]) -> dict[str, float]:
        if "entropy" not in statistics:
            return {}
        return {"latent_entropy": statistics["entropy"] / max(statistics["vectors"], 1.0)}

    # -- inference

    def stochastic(self, decoding: Decoding) -> bool:
        return super().stochastic(decoding) or self._draws_latents(decoding)

    def _draws_latents(self, decoding: Decoding) -> bool:
        """By default vectors are drawn where tokens are."""
        drawn = decoding.latents == "sample" or (decoding.latents == "default" and decoding.tokens == "sample")
        return drawn and not self.options.deterministic

    def length(self, example: Example) -> Length:
        chain = len(lines(example.steps, self.vocabulary))
        latents = min(max(1, math.ceil(chain / self.speed)), self.options.max_latents)
        return Length(len(target(example, self.vocabulary, steps=False)), latents)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        prompts = [self._prompt(question, self.speed) for question in questions]
        ids, real, token_keys = batch_prompts(prompts, questions, decoding, self.vocabulary.eos, self.device)
        streams = ("latents", "ends")
        keys = {stream: question_keys(questions, decoding.seed, stream).to(self.device) for stream in streams}
        embed = self.lm.get_input_embeddings()
        prefix = prefill(self.lm.base_model, embed(ids), real, decoding.cache)
        prefix, latents, thought = self._think(prefix, keys, decoding)
        prefix = extend(prefix, embed(torch.full_like(token_keys, self.separator)))
        answer, cost = decode(self.lm, prefix, decoding, token_keys, self.vocabulary.eos)
        cost.latent_steps += float(thought.sum(1).float().mean())
        return Generation(answer, cost, trace={"latents": latents * thought[..., None]} if decoding.trace else {})

    def _think(self, prefix: Prefix, keys: dict[str, Tensor], decoding: Decoding) -> tuple[Prefix, Tensor, Tensor]:
        """Vectors until each row's separator: (B, n, d), and (B, n), which of them belong to a row's chain.

        A row whose chain has ended goes on with the batch, but neither sees nor counts what it is fed. Vectors of a row
        that has ended are still computed, so that under ``exchanged`` every row always receives another question's
        vector.
        """
        head = self.lm.get_output_embeddings()
        ends = replace(decoding, top_p=1.0)  # the nucleus is for answers
        lengths = forced(decoding, keys["ends"], "latents")
        running = torch.ones_like(keys["ends"], dtype=torch.bool)
        latents, thought = [], []
        for step in range(self.options.max_latents):
            latents.append(swap_latents(self._next_latent(prefix.hidden, keys["latents"], step, decoding), decoding))
            thought.append(running)
            prefix = _visible(extend(prefix, latents[-1]), running)
            if lengths is None:
                running = running & (choose(head(prefix.hidden), ends, keys["ends"], step) != self.separator)
            else:
                running = lengths > step + 1
            if not running.any():
                break
        return prefix, torch.stack(latents, dim=1), torch.stack(thought, dim=1)

    def _next_latent(self, hidden: Tensor, keys: Tensor, step: int, decoding: Decoding) -> Tensor:
        latent, log_deviation = self.latent_head(hidden)
        if log_deviation is not None and self._draws_latents(decoding):
            noise = normal(keys, latent.shape[1], offset=step * latent.shape[1]).to(latent)
            latent = latent + decoding.temperature * log_deviation.exp() * noise
        return latent.to(self.embedding_deviation) * self.embedding_deviation  # embeddings are float32 under autocast


def blocks(length: Tensor, factor: int) -> Tensor:
    """How many blocks hold ``length`` tokens; the last may be short."""
    return (length + factor - 1) // factor


def between(first: Tensor, end: Tensor, width: int) -> Tensor:
    """(B, width) which columns lie in each row's range."""
    columns = torch.arange(width)
    return (columns >= first) & (columns < end)


def merge(start: Tensor, length: Tensor, real: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Where the tokens of (B, L) rows go when ``length`` (B, 1) of them from ``start`` (B, 1) on are merged in blocks:
    their places (B, L), in order, and the number of tokens in each place (B, W), none in those after a row's end."""
    token = torch.arange(real.shape[1])
    chain = (token - start).clamp(min=0).minimum(length)  # tokens of the chain before this one
    place = token - chain + torch.where(token < start + length, chain // factor, blocks(length, factor))
    place = place.clamp(max=int(place[real].max()))
    counts = torch.zeros(len(real), int(place.max()) + 1, dtype=torch.long).scatter_add(1, place, real.long())
    return place, counts


def draw_labels(ids: Tensor, place: Tensor, counts: Tensor, keys: Tensor) -> Tensor:
    """(B, W) one of the tokens in each place, drawn by the rows' keys; an arbitrary one where there is none."""
    first = torch.searchsorted(place, torch.arange(counts.shape[1]).expand_as(counts).contiguous())
    drawn = first + (uniform(keys, counts.shape[1]) * counts).long()
    return ids.gather(1, drawn.clamp(max=ids.shape[1] - 1))


def _visible(prefix: Prefix, rows: Tensor) -> Prefix:
    """A prefix whose last position only some rows see."""
    return replace(prefix, real=torch.cat([prefix.real[:, :-1], rows[:, None]], dim=1), whole=False)
