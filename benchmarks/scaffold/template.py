"""My method, in one sentence. As it stands, the model gets pause tokens to think in before it answers.

``marcos-bench new-method`` wrote this file. Comments and docstrings that start with CHANGE say what to adapt. All that
a method may define is documented in ``methods/base.py``, and what ``generate`` takes and returns in
``methods/generation.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from methods.backbone import label_loss
from methods.base import Batch, Budget, Context, Example, Method, MethodOptions, Output, Setup, Stage
from methods.collate import build_inputs_and_labels, label_indices
from methods.decoding import decode, read_prompts
from methods.generation import Decoding, Generation


class MyMethodOptions(MethodOptions):
    """CHANGE: the options that a study may set under `options:`. Unknown names and invalid values are refused."""

    pauses: int = Field(default=4, ge=0, description="pause tokens between question and answer")


class MyMethod(Method):
    """The model reads pause tokens after the question, which give it room to think, and then writes the answer.

    Layout: ``question newline pause … pause #### answer <eos>``. The loss covers everything after the pauses.
    """

    name = "my_method"
    title = "My method"  # as tables print it
    # CHANGE: the BibTeX entry of your method's paper
    citation = """@inproceedings{goyal2024think,
  title={Think before you speak: Training language models with pause tokens},
  author={Goyal, Sachin and Ji, Ziwei and Rawat, Ankit Singh and Menon, Aditya Krishna and others},
  booktitle={ICLR}, year={2024}}"""
    Options: ClassVar = MyMethodOptions
    options: MyMethodOptions
    # CHANGE: set this to True if your method thinks in vectors. Pass them through `methods.decoding.swap_latents`: the
    # table of controls then shows whether answers depend on them
    has_latents = False
    thoughts_option = "pauses"  # CHANGE: the option that sets how much it thinks; leave it out if there is none
    # CHANGE: override these members of `Method` if their defaults (in brackets) are wrong for your method:
    # - `length`: how much `generate` emits for an example (the marked answer). `marcos-bench measure` times that much.
    # - `stochastic`: whether the decoding seed changes answers (if tokens are sampled). If not, tables show no spread.
    # - `batch_terms`: losses that are statistics of a micro-batch, not sums over rows (none); see `Context.over_ranks`.
    # - `caches_in_training`: whether `forward` reads a KV cache (no). Activations cannot be recomputed then.
    # - `even_passes`: whether all micro-batches call the same modules in the same order (yes). Training on several
    #   ranks relies on this and on `batch_terms`.
    # - `answering_options`: options that a decoding of a study may change after training (none).
    # - `tested_options`: options that the conformance tests build the method with (the defaults).

    def __init__(self, options: MyMethodOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        # CHANGE: the modules. `extra_tokens=1` adds one embedding row, used here for the pause token.
        # `setup.backbone.trunk()` builds a transformer without a language model head
        self.lm = setup.backbone.causal_lm(extra_tokens=1)
        self.pause = self.lm.config.vocab_size - 1

    # CHANGE: to initialise your method from the CoT-SFT checkpoint of the same seed, define
    #     @classmethod
    #     def starts_from(cls, options: MyMethodOptions) -> str | None:
    #         return "cot_sft"

    def stages(self, budget: Budget) -> list[Stage]:
        """CHANGE: the curriculum, a list of stages. Each may select its weights by validation losses (`select_on`)."""
        return [Stage("answer", budget.epochs, select_on=("cross_entropy",))]

    def _prompt(self, question: Sequence[int]) -> list[int]:
        return [*question, *self.vocabulary.newline, *[self.pause] * self.options.pauses]

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """CHANGE: the token layout. The written steps are in `example.steps`, the current stage is `context.stage`."""
        prompts = [self._prompt(example.question) for example in examples]
        targets = [[*self.vocabulary.answer_marker, *example.answer, self.vocabulary.eos] for example in examples]
        ids, labels, tokens = build_inputs_and_labels(prompts, targets, self.vocabulary.eos)
        return Batch(
            {"ids": ids, "labels": labels, "labelled": label_indices(labels)},
            {"cross_entropy": float(sum(map(len, targets)))},  # the sum of this loss is divided by this number
            tokens,  # read by `forward` in all its passes, without padding
        )

    def forward(self, batch: Batch, context: Context) -> Output:
        """CHANGE: the losses, as sums over the batch, under the names that their denominators have in `collate`."""
        hidden = self.lm.base_model(input_ids=batch["ids"], use_cache=False).last_hidden_state
        loss = label_loss(self.lm.get_output_embeddings(), hidden, batch["labels"], batch["labelled"])
        return Output({"cross_entropy": loss})

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        """CHANGE: what happens between question and answer. `methods.decoding.extend` feeds one more vector per row."""
        prompts = [self._prompt(question) for question in questions]
        # keys (B,), one per question: draw all random numbers from keys, never from a global generator
        prefix, keys = read_prompts(self.lm, prompts, questions, decoding, self.vocabulary.eos)
        answer, cost = decode(self.lm, prefix, decoding, keys, self.vocabulary.eos)
        # CHANGE: if n vectors were fed per question, add `cost.latent_steps += n`; `extend` has counted its passes
        return Generation(answer, cost)
