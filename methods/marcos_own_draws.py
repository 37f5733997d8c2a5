"""MarCos with a further phase of training on its own draws of R. The phase is ours: the paper has no such thing.

In the paper's two phases, thinking and speaking see R only near where the encoder f puts it. What the predictor g draws
may lie between these codes, where nothing has trained the two: a step is spoken that no R stands for, or thinking goes
on from another step than the one that was spoken. Here, a trained MarCos answers training questions with R drawn from
g. Twice, R is then encoded again from the steps that were spoken, and they are spoken again, so that they are more
likely to follow from one another. Understanding, thinking and speaking learn to get from the *first* draws to the last
words, and go on with what phase 1 taught them. Of a solution, only which steps it has enters what they learn from
draws. f and g are fixed in this phase; then g is fitted again, as in phase 2. Answers are made as those of MarCos are.

Known limitation: the targets are the model's own words, so nothing but the loss of phase 1 beside them keeps R in use.
Where phase 1 has converged, gradients are small, and Adam's steps large: at a learning rate of 1e-4, what it had
learned was lost within 100 steps of `one_draw`, and kept at 2e-5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from methods.backbone import label_loss
from methods.base import Batch, Budget, Context, Example, Output, Stage, copy_weights
from methods.decoding import extend, prefill
from methods.errors import InputError
from methods.marcos.method import PHASE_2, MarCos
from methods.marcos.model import pool, sample_prior
from methods.marcos.options import MarCosOptions
from methods.marcos.targets import speaking_start
from methods.random_keys import key

OWN_DRAWS = "own draws"
ROUNDS = 2  # of encoding R from what was spoken


class MarCosOwnDrawsOptions(MarCosOptions):
    """Must equal those of the MarCos that it starts from, except for the lengths of its phases, its learning rates, and
    `max_step_tokens`, the length to which it speaks in training."""

    first_phase: float = Field(
        default=0.5, gt=0, description="epochs of training on own draws, as a multiple of the budget"
    )

    @model_validator(mode="after")
    def _require_two_phases(self) -> MarCosOwnDrawsOptions:
        if not self.randomness or self.joint_kl is not None:
            raise ValueError("own draws need R, and a MarCos that was trained in two phases")
        if self.speaking != "autoregressive":
            raise ValueError("own draws are spoken token by token: leave out `speaking`")
        if self.warm_start != "none":
            raise ValueError("training on own draws starts from a trained MarCos: leave out `warm_start`")
        return self


class MarCosOwnDraws(MarCos):
    """A trained MarCos, whose thinking and speaking are trained to take R that g draws for the same steps."""

    name = "marcos_own_draws"
    title = "MarCos, own draws"
    Options: ClassVar = MarCosOwnDrawsOptions
    options: MarCosOwnDrawsOptions
    caches_in_training = True
    tested_options: ClassVar = {**MarCos.tested_options, "max_step_tokens": 8}

    @classmethod
    def starts_from(cls, options: Any) -> str | None:
        return MarCos.name

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Start from all weights of a MarCos. Raise :class:`InputError` if its sizes are others."""
        held = self.state_dict()
        if other := [name for name, tensor in weights.items() if name in held and held[name].shape != tensor.shape]:
            raise InputError(
                f"{other[0]!r} of the MarCos to start from is {tuple(weights[other[0]].shape)}, and here "
                f"{tuple(held[other[0]].shape)}: give this row the options of the row that it starts from"
            )
        copy_weights(weights, self)

    @property
    def even_passes(self) -> bool:
        return False  # speaking token by token with split weights has not been tried

    def stages(self, budget: Budget) -> list[Stage]:
        """Return the phase on own draws, which trains all but f and g, and phase 2."""
        own = Stage(
            OWN_DRAWS,
            budget.epochs * self.options.first_phase,
            phase=OWN_DRAWS,
            trainable=("understanding", "thinking", "speaking", "neurons", "inject"),
            select_on=("reconstruction", "own_draws"),
        )
        return [own, *super().stages(budget)[1:]]

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """As :meth:`MarCos.collate`, with the positions that training on own draws reads besides."""
        batch, options = super().collate(examples, context), self.options
        batch.denominators["own_draws"] = float(len(examples))
        states, spoken = options.deep + options.shallow + options.tau, options.shallow + options.max_step_tokens
        question, rows = int(batch["question_real"].sum()), options.steps * len(examples)
        passes = ROUNDS + 2  # of thinking and of speaking: once from the draws, after each round, and to learn
        batch.tokens += passes * (options.steps * question + rows * (states + spoken))
        batch.tokens += ROUNDS * rows  # f reads one token of each step, and more if it is spoken
        return batch

    def forward(self, batch: Batch, context: Context) -> Output:
        """Return -L_re with encoded R, as phase 1 does, and the cross entropy of the model's own steps with drawn R."""
        if context.stage.phase == PHASE_2:
            return self.phase_2_loss(batch)
        h_in, real = self.understand(batch["question"]), batch["question_real"]
        _, _, r = self._encode_and_sample(batch, context)
        gold = self.think_all_steps(h_in, real, r).flatten(0, 1)[batch["spoken_rows"]]
        drawn, spoken = self.answer_own_draws(h_in, batch, context)
        own = self.own_loss(self.think_all_steps(h_in, real, drawn).flatten(0, 1), spoken)
        return Output({"reconstruction": self._reconstruction(gold, batch), "own_draws": own})

    @torch.no_grad()
    def answer_own_draws(self, h_in: Tensor, batch: Batch, context: Context) -> tuple[Tensor, Tensor]:
        """Return R_1, ..., R_K as g draws them (K, B, tau d), and the tokens (K B, max_step_tokens) of the steps that
        they lead to after :data:`ROUNDS` of encoding R again, with end-of-text from each step's end on."""
        real, neurons = batch["question_real"], self.initial_neurons(len(h_in))
        assert batch.keys is not None
        keys, drawn, shallow = batch.keys ^ key(OWN_DRAWS, context.epoch_and_step), [], []
        empty = torch.ones_like(batch["targets"][:, :1], dtype=torch.bool).index_fill(0, batch["spoken_rows"], False)
        for k in range(self.options.steps):
            mu, log_sigma = self.prior(pool(neurons, h_in, real))  # (2)
            drawn.append(sample_prior(mu, log_sigma, keys, k, temperature=1.0).to(self.neurons))
            neurons = self.think(neurons, h_in, real, drawn[-1])  # (3)
            shallow.append(neurons[:, self.options.deep :])
        spoken = self.speak_greedily(torch.cat(shallow), empty)  # (4)
        for _ in range(ROUNDS):
            r, _ = self.encode_r(self.encoder_inputs(batch, spoken))  # (6)
            spoken = self.speak_greedily(self.think_all_steps(h_in, real, r).flatten(0, 1), empty)
        return torch.stack(drawn), spoken

    def speak_greedily(self, shallow: Tensor, empty: Tensor) -> Tensor:
        """Return the likeliest tokens (N, max_step_tokens) after the shallow neurons (N, S, d); none in steps that a
        solution lacks, which are ``empty`` (N, 1), because nothing has trained them. Every row takes as many passes,
        because a device would have to be waited for to know which rows have ended."""
        lm, eos = self.speaking, self.vocabulary.eos
        embed, head = lm.get_input_embeddings(), lm.get_output_embeddings()
        token = self._start(len(shallow))
        prefix, tokens = prefill(lm.base_model, torch.cat([shallow, embed(token)[:, None]], dim=1), None), []
        for place in range(self.options.max_step_tokens):
            prefix = extend(prefix, embed(token)) if place else prefix
            token = head(prefix.hidden).argmax(-1)
            token = torch.where(tokens[-1] == eos, eos, token) if place else token
            tokens.append(token)
        return torch.stack(tokens, dim=1).masked_fill(empty, eos)

    def _start(self, rows: int) -> Tensor:
        (start,) = speaking_start(self.vocabulary)
        return torch.full((rows,), start, device=self.device)

    def encoder_inputs(self, batch: Batch, spoken: Tensor) -> dict[str, Tensor]:
        """Return what f reads of steps spoken (K B, M), as :meth:`MarCos._collate_targets` does of gold ones."""
        targets = torch.cat([self._start(len(spoken))[:, None], spoken], dim=1)
        lengths = 1 + (spoken != self.vocabulary.eos).sum(1)
        if self.options.encoder_reads == "step":
            return {"targets": targets, "lengths": lengths}
        question, real = batch["question"], batch["question_real"]
        by_step = targets.view(self.options.steps, len(question), -1).unbind()
        ends = real.sum(1)[:, None] + lengths.view(self.options.steps, -1).T.cumsum(1)  # (B, K)
        starts = torch.cat([real.sum(1, keepdim=True), ends[:, :-1]], dim=1)
        paths = torch.cat([question, *by_step], dim=1)  # later steps overwrite the padding of those before them
        for step, ids in enumerate(by_step):
            places = starts[:, step, None] + torch.arange(ids.shape[1], device=ids.device)
            paths = paths.scatter(1, places, ids)
        return {"paths": paths, "lengths": ends}

    def own_loss(self, shallow: Tensor, spoken: Tensor) -> Tensor:
        """Return the cross entropy (a sum, in nats) of steps spoken (N, M) after the shallow neurons (N, S, d), each
        with its end-of-text. Empty steps have none."""
        places = torch.arange(spoken.shape[1], device=spoken.device)
        lengths = (spoken != self.vocabulary.eos).sum(1, keepdim=True)
        written = (places <= lengths) & (lengths > 0)
        start = self._start(len(spoken))[:, None]
        hidden = self.speak(shallow, torch.cat([start, spoken[:, :-1]], dim=1))
        rows = torch.arange(len(spoken), device=spoken.device)
        labelled = torch.cartesian_prod(rows, places).T  # a mask would be read
        return label_loss(self.speaking.get_output_embeddings(), hidden, spoken, labelled, written.float())
