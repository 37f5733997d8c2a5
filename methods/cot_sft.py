"""CoT-SFT: supervised fine-tuning on the written chain of thought, the baseline for all other methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

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
    Vocabulary,
    added_field,
)
from methods.collate import build_inputs_and_labels, label_indices
from methods.decoding import Prefix, decode, read_prompts, text_nats
from methods.generation import Decoding, Generation, Length, Nats
from methods.packing import join_rows, places_of

SCORING = Decoding(cache="dynamic")  # of gold texts, which are read after a prefix in one pass
PACKED = "join the rows of a batch into one, in training, instead of padding them; the same up to rounding"


class CoTSFTOptions(MethodOptions):
    steps: bool = Field(
        default=True,
        description="generate the chain of thought; false: a control trained without it, which answers at once",
    )
    packed: bool = added_field(False, description=PACKED)


class CoTSFT(Method):
    """The model is fine-tuned to write the chain of thought, then the answer.

    Layout: ``question newline step newline … #### answer <eos>``, with the loss on everything after the question.
    """

    name = "cot_sft"
    title = "CoT-SFT"
    citation = """@inproceedings{wei2022chain,
  title={Chain-of-thought prompting elicits reasoning in large language models},
  author={Wei, Jason and Wang, Xuezhi and Schuurmans, Dale and Bosma, Maarten and others},
  booktitle={NeurIPS}, year={2022}}"""
    Options: ClassVar = CoTSFTOptions
    options: CoTSFTOptions

    def __init__(self, options: CoTSFTOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        self.lm = setup.backbone.causal_lm()

    def stages(self, budget: Budget) -> list[Stage]:
        return [Stage("chain" if self.options.steps else "answer", budget.epochs, select_on=("cross_entropy",))]

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        prompts = [prompt(example.question, self.vocabulary) for example in examples]
        targets = self.targets(examples, context)
        ids, labels, tokens = build_inputs_and_labels(prompts, targets, self.vocabulary.eos)
        tensors = {"ids": ids, "labels": labels}
        if self.options.packed:
            lengths = [len(asked) + len(written) - 1 for asked, written in zip(prompts, targets, strict=True)]
            tensors = join_rows(ids, labels, torch.tensor(lengths))
        tensors["labelled"] = label_indices(tensors["labels"])
        return Batch(tensors, {"cross_entropy": float(sum(map(len, targets)))}, tokens)

    def targets(self, examples: Sequence[Example], context: Context) -> list[list[int]]:
        """Return the tokens to be written after each prompt."""
        return [target(example, self.vocabulary, self.options.steps) for example in examples]

    def forward(self, batch: Batch, context: Context) -> Output:
        places = places_of(batch.tensors)
        hidden = self.lm.base_model(input_ids=batch["ids"], use_cache=False, **places).last_hidden_state
        loss = label_loss(self.lm.get_output_embeddings(), hidden, batch["labels"], batch["labelled"])
        return Output({"cross_entropy": loss})

    @property
    def writes_steps(self) -> bool:
        """Whether the trained model writes steps before its answer."""
        return self.options.steps

    def length(self, example: Example) -> Length:
        return Length(len(target(example, self.vocabulary, self.writes_steps)))

    def nats(self, examples: Sequence[Example]) -> Nats:
        prefix, _ = self._prefill_questions([example.question for example in examples], SCORING)
        return target_nats(self.lm, prefix, examples, self.vocabulary, self.writes_steps)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        prefix, keys = self._prefill_questions(questions, decoding)
        answer, cost = decode(self.lm, prefix, decoding, keys, self.vocabulary.eos)
        return Generation(answer, cost)

    def _prefill_questions(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> tuple[Prefix, Tensor]:
        """Return what precedes the text, and the keys (B,) for sampling it."""
        prompts = [prompt(question, self.vocabulary) for question in questions]
        return read_prompts(self.lm, prompts, questions, decoding, self.vocabulary.eos)


def prompt(question: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Return the prompt of a written chain: the question and a newline."""
    return [*question, *vocabulary.newline]


def lines(steps: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of all steps, one line per step."""
    return [token for step in steps for token in (*step, *vocabulary.newline)]


def target(example: Example, vocabulary: Vocabulary, steps: bool = True) -> list[int]:
    """Return the tokens to be written after the prompt: one line per step, the marked answer, end-of-text."""
    chain = lines(example.steps, vocabulary) if steps else []
    return [*chain, *vocabulary.answer_marker, *example.answer, vocabulary.eos]


def target_nats(
    lm: Any, prefix: Prefix, examples: Sequence[Example], vocabulary: Vocabulary, steps: bool = True
) -> Nats:
    """Return the nats of each :func:`target` after a prefix: of all steps together and of the answer after them, or of
    the answer alone."""
    nats = text_nats(lm, prefix, [target(example, vocabulary, steps) for example in examples], vocabulary.eos)
    if not steps:
        return Nats(answer=nats.sum(1))
    chains = torch.tensor([len(lines(example.steps, vocabulary)) for example in examples], device=nats.device)
    in_chain = torch.arange(nats.shape[1], device=nats.device) < chains[:, None]
    return Nats(text=torch.stack([(nats * in_chain).sum(1), (nats * ~in_chain).sum(1)], dim=1))
