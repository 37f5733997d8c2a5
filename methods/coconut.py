"""Coconut: stage by stage, thoughts (hidden states that are fed back as inputs) replace the steps of the chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from methods.backbone import label_loss
from methods.base import (
    Batch,
    Budget,
    Context,
    Example,
    Method,
    MethodOptions,
    Output,
    Setup,
    Stage,
    added_field,
    copy_weights,
)
from methods.collate import IGNORE, label_indices, masks_of_padding, pad
from methods.cot_sft import SCORING, prompt, target, target_nats
from methods.decoding import Prefix, batch_prompts, decode, empty_prefix, forward_cached, swap_latents
from methods.generation import Decoding, Generation, Length, Nats
from methods.random_keys import key, uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

TRAINING = Decoding(cache="dynamic")  # training: every question keeps its own thoughts, and gradients flow


class CoconutOptions(MethodOptions):
    """Stage s = 1 … ``max_stage`` replaces each of the first s steps by ``thoughts_per_step`` thoughts; the final stage
    drops all remaining steps. The published run on GSM8K has three stages of 3 epochs and a final one of 13."""

    thoughts_per_step: int = Field(default=2, ge=1, description="latent thoughts per step replaced")
    thoughts: int | None = added_field(
        None,
        ge=0,
        description="number of thoughts (control pause: of pauses) before an answer, whatever it was in training; "
        "null: as in training. Controls that have neither answer as ever",
    )
    max_stage: int = Field(
        default=3, ge=1, description="stages before the final one: stage s replaces the first s steps"
    )
    stage_share: float = Field(
        default=3 / 22, gt=0, description="fraction of the budget for each stage before the final one"
    )
    uniform_prob: float = Field(default=0.0, ge=0, le=1, description="fraction of examples trained at a random stage")
    optimizer_restart: Literal["never", "stage", "epoch"] = Field(
        default="stage", description="when to reset the optimizer; published code: each epoch, paper: each stage"
    )
    control: Literal["none", "no_cot", "no_curriculum", "no_thoughts", "pause", "explicit"] = Field(
        default="none",
        description="no_cot: trained without steps, answers at once; no_curriculum: final stage only; no_thoughts: "
        "steps are removed without replacement; pause: a learned token replaces each thought; explicit: every stage "
        "keeps all steps, and is otherwise unchanged",
    )
    warm_start: Literal["cot_sft", "none"] = Field(
        default="cot_sft", description="method to take the initial weights from; no_cot takes none"
    )

    @model_validator(mode="after")
    def _require_final_stage(self) -> CoconutOptions:
        stages = 0 if self.control in ("no_cot", "no_curriculum") else self.max_stage
        if stages * self.stage_share >= 1:
            raise ValueError(
                f"{stages} stages of {self.stage_share:.3g} of the budget leave nothing for the "
                "final stage; lower stage_share"
            )
        return self


@dataclass
class ThoughtPass:
    """The result of reading a sequence together with its thoughts."""

    hidden: Tensor  # (B, T, d) final hidden states at the text
    thoughts: Tensor  # (B, m, d) inputs at the m columns where rows may hold thoughts
    prefix: Prefix


class Coconut(Method):
    """The model feeds hidden states back as inputs; these thoughts replace the written steps, stage by stage.

    Layout: ``question newline <begin> thoughts <end> steps left … #### answer <eos>``, with the loss on what follows
    ``<end>``. The thought at a position is the final hidden state of the position before it.
    """

    name = "coconut"
    title = "Coconut"
    citation = """@inproceedings{hao2025coconut,
  title={Training large language models to reason in a continuous latent space},
  author={Hao, Shibo and Sukhbaatar, Sainbayar and Su, DiJia and Li, Xian and others},
  booktitle={COLM}, year={2025}}"""
    Options: ClassVar = CoconutOptions
    has_latents = True
    thoughts_option = "thoughts_per_step"
    caches_in_training = True
    answering_options = ("thoughts",)
    options: CoconutOptions

    def __init__(self, options: CoconutOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        self.lm = setup.backbone.causal_lm(extra_tokens=3)
        size = self.lm.config.vocab_size
        self.begin, self.end, self.latent = range(size - 3, size)
        self._initialise_markers()

    @torch.no_grad()
    def _initialise_markers(self) -> None:
        """Initialise the markers to the token that opens an equation (or the mean of its tokens), as published."""
        opening = self.vocabulary.encode("<<")
        for table in (self.lm.get_input_embeddings(), self.lm.get_output_embeddings()):
            table.weight[self.begin :] = table.weight[opening].mean(0)

    @classmethod
    def starts_from(cls, options: CoconutOptions) -> str | None:
        return None if options.control == "no_cot" else super().starts_from(options)

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        copy_weights(weights, self)
        self._initialise_markers()

    @property
    def even_passes(self) -> bool:
        return not self.options.uniform_prob  # drawn stages may give one micro-batch more thoughts than another

    # -- curriculum

    @property
    def final_stage(self) -> int:
        return self.options.max_stage + 1

    def stages(self, budget: Budget) -> list[Stage]:
        first = self.final_stage if self.options.control in ("no_cot", "no_curriculum") else 1
        shares = dict.fromkeys(range(first, self.final_stage), self.options.stage_share)
        shares[self.final_stage] = 1 - sum(shares.values())
        return [stage for number, share in shares.items() for stage in self._split_stage(number, share * budget.epochs)]

    def _split_stage(self, number: int, epochs: float) -> list[Stage]:
        """Return one stage, or parts of about an epoch each if the optimizer restarts every epoch. Only the final stage
        selects its weights, and only in its last part, because each part starts from what the one before selects."""
        final = number == self.final_stage
        count = max(1, round(epochs)) if self.options.optimizer_restart == "epoch" else 1
        name = "final stage" if final else f"stage {number}"
        return [
            Stage(
                name if count == 1 else f"{name}, part {part} of {count}",
                epochs / count,
                keep_optimizer=self.options.optimizer_restart == "never",
                select_on=("cross_entropy",) if final and part == count else (),
                settings={"stage": number},
            )
            for part in range(1, count + 1)
        ]

    def example_stages(self, examples: Sequence[Example], context: Context) -> list[int]:
        """Return the stage of each example: the scheduled one, or a drawn one (``uniform_prob``)."""
        scheduled = int(context.stage.settings["stage"])
        if not (self.options.uniform_prob and context.training):
            return [scheduled] * len(examples)
        draws = uniform(torch.tensor([key(context.seed, "stage", context.epoch, e.id) for e in examples]), 2)
        drawn = (draws[:, 1] * torch.tensor([len(e.steps) + 1 for e in examples])).long()
        return torch.where(draws[:, 0] < self.options.uniform_prob, drawn, scheduled).tolist()

    def steps_left(self, example: Example, stage: int) -> Sequence[Sequence[int]]:
        """Return the steps that are still written in a stage."""
        if self.options.control == "explicit":
            return example.steps
        return [] if stage >= self.final_stage else example.steps[stage:]

    def length(self, example: Example) -> Length:
        return Length(len(target(example, self.vocabulary, self.writes_steps)))

    @property
    def writes_steps(self) -> bool:
        """Whether the trained model writes steps before its answer."""
        return self.options.control == "explicit"

    # -- training

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Collate ``prompt`` (B, P), padded on the left, up to the marker of the last thought; ``text`` (B, T), which
        follows it; ``labels`` (B, T), the next token at each position of ``text``; and ``thinking`` (B, m), which tells
        where the last m columns of ``prompt`` hold thoughts."""
        prompts, texts = [], []
        for example, stage in zip(examples, self.example_stages(examples, context), strict=True):
            opened, closed = self._enclose(example.question, self.thought_count(stage))
            prompts.append(opened)
            left = replace(example, steps=self.steps_left(example, stage))
            texts.append([closed, *target(left, self.vocabulary)])
        prompt_ids, real = pad(prompts, self.vocabulary.eos, side="left")
        text, written = pad(texts, self.vocabulary.eos)
        labels = text.masked_fill(~written, IGNORE)[:, 1:]
        at = label_indices(labels)
        return Batch(
            {
                "prompt": prompt_ids,
                **masks_of_padding(real=real),
                "thinking": self._thought_mask(prompt_ids),
                "text": text[:, :-1],
                "labels": labels,
                "labelled": at,
            },
            {"cross_entropy": float(at.shape[1])},
            tokens=int(real.sum()) + at.shape[1],
        )

    def _thought_mask(self, prompts: Tensor) -> Tensor:
        """Return where the last m columns of prompts (B, P) hold thoughts, (B, m); m is the most that any row has."""
        held = (prompts == self.latent) & (self.options.control != "pause")
        return held[:, prompts.shape[1] - int(held.sum(1).max()) :]

    def thought_count(self, stage: int) -> int:
        """Return the number of thoughts that an example of a stage is trained with."""
        return self.options.thoughts_per_step * min(stage, self.options.max_stage)

    def _enclose(self, question: Sequence[int], thoughts: int) -> tuple[list[int], int]:
        """Return the question, with markers in the places of thoughts, and the token that the text starts from."""
        asked = prompt(question, self.vocabulary)
        if self.options.control in ("no_cot", "no_thoughts", "explicit"):
            return asked[:-1], asked[-1]
        return [*asked, self.begin, *[self.latent] * thoughts], self.end

    def forward(self, batch: Batch, context: Context) -> Output:
        return self.losses_and_latents(batch, context)[0]

    def losses_and_latents(self, batch: Batch, context: Context) -> tuple[Output, Tensor]:
        """Return the loss sums and the thoughts (B, m, d); a row with fewer than m thoughts has them at the end."""
        reading = self.forward_with_thoughts(batch["prompt"], batch.get("real"), batch["thinking"], batch["text"])
        loss = label_loss(self.lm.get_output_embeddings(), reading.hidden, batch["labels"], batch["labelled"])
        return Output({"cross_entropy": loss}), reading.thoughts

    def forward_with_thoughts(
        self, prompts: Tensor, real: Tensor | None, thinking: Tensor, text: Tensor, decoding: Decoding = TRAINING
    ) -> ThoughtPass:
        """Read prompts (B, P) and the text (B, T) after them: one pass up to the first thought, then one from each
        thought on.

        ``real`` (B, P) masks out the prompts' padding; None: there is none. ``thinking`` (B, m) tells where the last m
        columns of the prompts hold thoughts. Rows with fewer thoughts still read their question while others think.
        """
        vectors = self.lm.get_input_embeddings()(torch.cat([prompts, text], dim=1))
        prefix, hidden, thoughts = empty_prefix(self.lm.base_model, vectors, decoding.cache), vectors[:, :0], []
        if real is not None:  # padding after a text counts as real: causal attention hides it from all tokens before
            real = torch.cat([real, real.new_ones(text.shape)], dim=1)
        first = prompts.shape[1] - thinking.shape[1]
        for start, stop in pairwise([0, *range(first, prompts.shape[1]), vectors.shape[1]]):
            inputs = vectors[:, start:stop]
            if start:
                own = swap_latents(prefix.hidden[:, None], decoding)
                thoughts.append(torch.where(thinking[:, start - first, None, None], own, inputs[:, :1]))
                inputs = torch.cat([thoughts[-1], inputs[:, 1:]], dim=1)
            last = text.shape[1] if stop == vectors.shape[1] else 1
            prefix, output = forward_cached(prefix, inputs, None if real is None else real[:, start:stop], last=last)
            hidden = output.last_hidden_state
        return ThoughtPass(hidden[:, -text.shape[1] :], torch.cat([vectors[:, :0], *thoughts], dim=1), prefix)

    def naive_forward(self, batch: Batch, context: Context) -> Output:
        """Compute the losses row by row, reading each row again from its start for every thought."""
        sums = []
        real = batch.get("real")
        reals = torch.ones_like(batch["prompt"], dtype=torch.bool) if real is None else real
        for prompt_ids, own, text, labels in zip(batch["prompt"], reals, batch["text"], batch["labels"], strict=True):
            vectors = self.naive_inputs(torch.cat([prompt_ids[own], text]))
            logits = self.lm(inputs_embeds=vectors[None], use_cache=False).logits[0, -len(text) :]
            sums.append(F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum"))
        return Output({"cross_entropy": torch.stack(sums).sum()})

    def naive_inputs(self, ids: Tensor) -> Tensor:
        """Return the input vectors (L, d) of one row of ids (L,), thoughts included."""
        vectors = self.lm.get_input_embeddings()(ids)
        thinking = (ids == self.latent) & (self.options.control != "pause")
        for place in thinking.nonzero().squeeze(1).tolist():
            hidden = self.lm.base_model(inputs_embeds=vectors[None, :place], use_cache=False).last_hidden_state
            vectors = torch.cat([vectors[:place], hidden[0, -1:], vectors[place + 1 :]])
        return vectors

    # -- inference

    def nats(self, examples: Sequence[Example]) -> Nats:
        reading, _ = self._prefill_and_think([example.question for example in examples], SCORING)
        return target_nats(self.lm, reading.prefix, examples, self.vocabulary, self.writes_steps)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        reading, keys = self._prefill_and_think(questions, decoding)
        answer, cost = decode(self.lm, reading.prefix, decoding, keys, self.vocabulary.eos)
        cost.latent_steps += reading.thoughts.shape[1]
        return Generation(answer, cost, trace={"thoughts": reading.thoughts} if decoding.trace else {})

    def _prefill_and_think(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> tuple[ThoughtPass, Tensor]:
        """Return what precedes the text, thoughts included, and the keys (B,) for sampling it."""
        stage = self.final_stage if decoding.stage is None else int(decoding.stage.settings["stage"])
        thoughts = self.thought_count(stage) if self.options.thoughts is None else self.options.thoughts
        enclosed = [self._enclose(question, thoughts) for question in questions]
        prompts = [opened for opened, _ in enclosed]
        ids, real, keys = batch_prompts(prompts, questions, decoding, self.vocabulary.eos, self.device)
        closed = torch.tensor([[token] for _, token in enclosed], device=self.device)
        return self.forward_with_thoughts(ids, real, self._thought_mask(ids), closed, decoding), keys
