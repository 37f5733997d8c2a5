"""CoLaR: the model thinks in vectors, into which training compresses the chain by a random factor (Tan et al., 2025).

Every block of ``r`` embeddings of the chain becomes one vector. A latent head learns to predict the next vector, and
the language model's head one token of its block, for every r up to a maximum. The speed r is part of the prompt.
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
from methods.collate import IGNORE, label_indices, labelled_tail, pad
from methods.cot_sft import SCORING, lines, prompt, target, target_nats
from methods.decoding import Prefix, choose_tokens, decode, extend, forced_lengths, read_prompts, swap_latents
from methods.generation import Decoding, Generation, Length, Nats
from methods.last_layer import forward_last
from methods.random_keys import generator, key, normal, question_keys, uniform

SEPARATOR_LIKE = "###"  # the published separator, one token in large vocabularies; here it is an added token
DIVISOR_OFFSET = 1e-5  # added to the divisor of a block's sum, as published
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class CoLaROptions(MethodOptions):
    max_compression: int = Field(
        default=5,
        ge=1,
        description="maximum compression factor; training draws one from 1 to this for each optimizer step",
    )
    speed: int | None = Field(default=None, ge=1, description="compression factor at test time; null: max_compression")
    sqrt_mean: bool = Field(
        default=True,
        description="divide a block's sum by the square root of its length, which keeps the variance; false: mean",
    )
    latent_loss: Literal["mse", "nll"] = Field(
        default="mse",
        description="loss of the latent head: mse of a sample, published for GSM8K, or the negative log likelihood",
    )
    deterministic: bool = Field(default=False, description="latent head without a standard deviation; only for mse")
    head_width: int | None = Field(
        default=None, ge=1, description="inner width of the latent head; null: the hidden size"
    )
    max_latents: int = Field(
        default=64, ge=1, description="maximum number of latents, after which the answer is forced"
    )
    warm_start: Literal["none", "cot_sft"] = Field(
        default="cot_sft", description="method to take the initial weights from"
    )

    @model_validator(mode="after")
    def _likelihood_needs_deviation(self) -> Self:
        if self.deterministic and self.latent_loss == "nll":
            raise ValueError("a deterministic latent head has no likelihood: set latent_loss to mse")
        return self


class LatentHead(nn.Module):
    """Predicts mean and log deviation of the next vector, in units of the embeddings' standard deviation."""

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
    thoughts_option = "max_compression"
    answering_options = ("speed", "max_latents")
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
        """Load the weights, initialise the separator from a token that looks like it, and measure the embeddings'
        standard deviation again; it is fixed from then on."""
        super().warm_start(weights)
        for layer in (self.lm.get_input_embeddings(), self.lm.get_output_embeddings()):
            layer.weight[self.separator] = layer.weight[self.vocabulary.encode(SEPARATOR_LIKE)].mean(0)
        self.embedding_deviation.copy_(self._table.std())

    def stages(self, budget: Budget) -> list[Stage]:
        """Return one stage of supervised training. Reinforcement learning of shorter chains would be a second one."""
        return [Stage("compression", budget.epochs, select_on=("cross_entropy", "latent"))]

    # -- training

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Collate ``ids`` (B, L); each token's ``place`` (B, L) in the compressed sequence (B, W) and its ``share``
        (B, L) of the vector there; ``counts`` (B, W), the tokens in each place; ``labels`` (B, n), the tokens to be
        predicted at the last n of the first W - 1 places, since no row has any before; and ``thinks`` (2, N), the rows
        and places where the next vector of the chain is predicted."""
        factor = self._draw_factor(context)
        before = [self._prompt(example.question, factor) for example in examples]
        chains = [lines(example.steps, self.vocabulary) for example in examples]
        after = [[self.separator, *target(example, self.vocabulary, steps=False)] for example in examples]
        ids, real = pad([[*b, *c, *a] for b, c, a in zip(before, chains, after, strict=True)], self.vocabulary.eos)
        start, length = (torch.tensor([len(piece) for piece in pieces])[:, None] for pieces in (before, chains))
        place, counts = merge(start, length, real, factor)
        merged = between(start - 1, start + length, ids.shape[1])
        thinks = between(start - 1, start + blocks(length, factor), counts.shape[1])
        _, step = context.epoch_and_step
        keys = torch.tensor([key(context.seed, step, example.id) for example in examples])
        written = (counts > 0) & between(start - 1, start.new_tensor(counts.shape[1]), counts.shape[1])
        labels = labelled_tail(draw_labels(ids, place, counts, keys).masked_fill(~written, IGNORE)[:, 1:])
        return Batch(
            {
                "ids": ids,
                "place": place,
                "share": self._share(counts.gather(1, place), merged, factor) * real,
                "counts": counts,
                "labels": labels,
                "labelled": label_indices(labels),
                "thinks": thinks.nonzero().T.contiguous(),
            },
            {"cross_entropy": float(written.sum()), "latent": float(thinks.sum())},
            tokens=int((counts > 0).sum()) - len(examples),
            keys=keys,
        )

    def _draw_factor(self, context: Context) -> int:
        """Draw one factor for all micro-batches of a step. Validation uses the same speed as answering."""
        if not context.training:
            return self.speed
        draws = generator(context.seed, context.step, "compression")
        return int(torch.randint(1, self.options.max_compression + 1, (), generator=draws))

    def _prompt(self, question: Sequence[int], factor: int) -> list[int]:
        """Return the prompt up to the separator that opens the chain, which is a block of its own."""
        return [*prompt([*question, *self.speed_prompts[factor]], self.vocabulary), self.separator]

    def _share(self, size: Tensor, merged: Tensor, factor: int) -> Tensor:
        """Return the factor (B, L) of each token's embedding in the sum over the ``size`` tokens of its place."""
        if factor == 1:
            return torch.ones(size.shape)
        divisor = (size.double().sqrt() if self.options.sqrt_mean else size.double()) + DIVISOR_OFFSET
        return torch.where(merged, 1 / divisor, 1.0)

    def forward(self, batch: Batch, context: Context) -> Output:
        vectors = self._compress(batch)
        read, count = vectors[:, :-1], batch["labels"].shape[1]
        hidden = forward_last(self.lm.base_model, count, inputs_embeds=read, use_cache=False).last_hidden_state
        rows, columns = batch["thinks"]
        wanted = vectors[rows, columns + 1].detach() / self.embedding_deviation
        mean, log_deviation = self.latent_head(hidden[rows, columns - read.shape[1]])
        labels = label_loss(self.lm.get_output_embeddings(), hidden, batch["labels"], batch["labelled"])
        latent = self._latent_loss(mean, log_deviation, wanted, batch)
        statistics = {}
        if log_deviation is not None:
            entropy = (log_deviation.detach().float() + HALF_LOG_2PI + 0.5).mean(-1).sum()
            statistics = {"entropy": entropy, "vectors": entropy.new_full((), len(rows))}
        return Output({"cross_entropy": labels, "latent": latent}, statistics)

    def _compress(self, batch: Batch) -> Tensor:
        """Return vectors (B, W, d), each the weighted sum of the embeddings of the tokens in its place."""
        embedded = self.lm.get_input_embeddings()(batch["ids"])
        shares = embedded * batch["share"][..., None].to(embedded)
        width = batch["counts"].shape[1]
        rows = torch.arange(len(embedded), device=self.device)[:, None] * width
        compressed = embedded.new_zeros(len(embedded) * width, embedded.shape[2])
        # Whole rows are added: to add single numbers deterministically, a GPU would have to sort all of them
        compressed = compressed.index_add(0, (rows + batch["place"]).flatten(), shares.flatten(0, 1))
        return compressed.view(len(embedded), width, -1)

    def _latent_loss(self, mean: Tensor, log_deviation: Tensor | None, wanted: Tensor, batch: Batch) -> Tensor:
        """Return the loss of the chains' vectors (N, d): the mean over d, summed over N."""
        if self.options.latent_loss == "nll" and log_deviation is not None:
            scaled = (wanted - mean) * torch.exp(-log_deviation)
            return (0.5 * scaled**2 + log_deviation + HALF_LOG_2PI).mean(-1).sum()
        if log_deviation is not None:
            assert batch.keys is not None
            rows, columns = batch["thinks"]
            draws = normal(batch.keys[rows] + columns, mean.shape[1])
            mean = mean + log_deviation.exp() * draws.to(mean)
        return F.mse_loss(mean, wanted, reduction="none").mean(-1).sum()

    def metrics(self, statistics: dict[str, float]) -> dict[str, float]:
        if "entropy" not in statistics:
            return {}
        return {"latent_entropy": statistics["entropy"] / max(statistics["vectors"], 1.0)}

    # -- inference

    def stochastic(self, decoding: Decoding) -> bool:
        return super().stochastic(decoding) or self._draws_latents(decoding)

    def _draws_latents(self, decoding: Decoding) -> bool:
        """Return whether vectors are drawn. By default, they are drawn if tokens are sampled."""
        drawn = decoding.latents == "sample" or (decoding.latents == "default" and decoding.tokens == "sample")
        return drawn and not self.options.deterministic

    def length(self, example: Example) -> Length:
        chain = len(lines(example.steps, self.vocabulary))
        latents = min(max(1, math.ceil(chain / self.speed)), self.options.max_latents)
        return Length(len(target(example, self.vocabulary, steps=False)), latents)

    def nats(self, examples: Sequence[Example]) -> Nats:
        prefix, _, _, _ = self._prefill_and_think([example.question for example in examples], SCORING)
        return target_nats(self.lm, prefix, examples, self.vocabulary, steps=False)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        prefix, latents, thought, keys = self._prefill_and_think(questions, decoding)
        answer, cost = decode(self.lm, prefix, decoding, keys, self.vocabulary.eos)
        cost.latent_steps += float(thought.sum(1).float().mean())
        return Generation(answer, cost, trace={"latents": latents * thought[..., None]} if decoding.trace else {})

    def _prefill_and_think(
        self, questions: Sequence[Sequence[int]], decoding: Decoding
    ) -> tuple[Prefix, Tensor, Tensor, Tensor]:
        """Return what precedes the answer, the vectors (B, n, d) in it, the mask (B, n) of those that belong to the
        chain of their row, and the keys (B,) for sampling the answer."""
        prompts = [self._prompt(question, self.speed) for question in questions]
        prefix, token_keys = read_prompts(self.lm, prompts, questions, decoding, self.vocabulary.eos)
        streams = ("latents", "ends")
        keys = {stream: question_keys(questions, decoding.seed, stream).to(self.device) for stream in streams}
        prefix, latents, thought = self._think(prefix, keys, decoding)
        separator = self.lm.get_input_embeddings()(torch.full_like(token_keys, self.separator))
        return extend(prefix, separator), latents, thought, token_keys

    def _think(self, prefix: Prefix, keys: dict[str, Tensor], decoding: Decoding) -> tuple[Prefix, Tensor, Tensor]:
        """Feed vectors until each row's separator. Return the prefix, the vectors (B, n, d), and the mask (B, n) of
        those that belong to the chain of their row.

        A row whose chain has ended stays in the batch, but neither attends to nor counts what it is fed.
        """
        head = self.lm.get_output_embeddings()
        ends = replace(decoding, top_p=1.0)  # nucleus sampling is for answers only
        lengths = forced_lengths(decoding, keys["ends"], "latents")
        running = torch.ones_like(keys["ends"], dtype=torch.bool)
        latents, thought = [], []
        for step in range(self.options.max_latents):
            latent = self._next_latent(prefix.hidden, keys["latents"], step, decoding)
            latents.append(swap_latents(latent, decoding, running))
            thought.append(running)
            prefix = _visible(extend(prefix, latents[-1]), running)
            # Also if lengths are forced: choosing a token is part of the work
            written = choose_tokens(head(prefix.hidden), ends, keys["ends"], step)
            running = running & (written != self.separator) if lengths is None else lengths > step + 1
            if decoding.thoughts == "exchanged":  # a chain ends where it ends for the question whose it is
                running = swap_latents(running, decoding)
            elif decoding.thoughts == "mean":  # and one of means with the last of the others'
                running = running & running[: len(running) // 2].any()
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
    """Return the number of blocks that hold ``length`` tokens; the last block may be short."""
    return (length + factor - 1) // factor


def between(first: Tensor, end: Tensor, width: int) -> Tensor:
    """Return the mask (B, width) of the columns from ``first`` up to, but not including, ``end`` in each row."""
    columns = torch.arange(width)
    return (columns >= first) & (columns < end)


def merge(start: Tensor, length: Tensor, real: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Merge ``length`` (B, 1) tokens of each row from ``start`` (B, 1) on into blocks. Return the place of each token
    (B, L), in order, and the number of tokens in each place (B, W), which is zero after a row's end."""
    token = torch.arange(real.shape[1])
    chain = (token - start).clamp(min=0).minimum(length)  # tokens of the chain before this one
    place = token - chain + torch.where(token < start + length, chain // factor, blocks(length, factor))
    place = place.clamp(max=int(place[real].max()))
    counts = torch.zeros(len(real), int(place.max()) + 1, dtype=torch.long).scatter_add(1, place, real.long())
    return place, counts


def draw_labels(ids: Tensor, place: Tensor, counts: Tensor, keys: Tensor) -> Tensor:
    """Return one of the tokens in each place (B, W), drawn by the rows' keys; in an empty place, an arbitrary token."""
    first = torch.searchsorted(place, torch.arange(counts.shape[1]).expand_as(counts).contiguous())
    drawn = first + (uniform(keys, counts.shape[1]) * counts).long()
    return ids.gather(1, drawn.clamp(max=ids.shape[1] - 1))


def _visible(prefix: Prefix, rows: Tensor) -> Prefix:
    """Return a prefix whose last position is attended to only by these rows."""
    return replace(prefix, real=torch.cat([prefix.real[:, :-1], rows[:, None]], dim=1), unpadded=False)
