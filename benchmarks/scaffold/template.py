"""My method, in one sentence. As it stands, the model gets pause tokens to think in before it answers.

``marcos-bench new-method`` wrote this file. Comments that start with CHANGE say what to make your own. All that a
method may define is in ``methods/base.py``; what answering takes and returns is in ``methods/generation.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from methods.backbone import label_loss
from methods.base import Batch, Budget, Context, Example, Method, MethodOptions, Output, Setup, Stage
from methods.collating import continued, labelled
from methods.decoding import batch_prompts, decode, prefill
from methods.generation import Decoding, Generation


class MyMethodOptions(MethodOptions):
    """CHANGE: what a study may set under `options:`. Unknown names and bad values are refused."""

    pauses: int = Field(default=4, ge=0, description="pause tokens between question and answer")


class MyMethod(Method):
    """The model reads pause tokens after the question, to think in, and then says the answer.

    Layout: ``question newline pause … pause #### answer <eos>``, with the loss on what follows the pauses.
    """

    name = "my_method"
    title = "My method"  # as the tables print it
    # CHANGE: the paper of your method
    citation = """@inproceedings{goyal2024think,
  title={Think before you speak: Training language models with pause tokens},
  author={Goyal, Sachin and Ji, Ziwei and Rawat, Ankit Singh and Menon, Aditya Krishna and others},
  booktitle={ICLR}, year={2024}}"""
    Options: ClassVar = MyMethodOptions
    options: MyMethodOptions
    # CHANGE: True for a method that thinks in vectors. It then passes them through `methods.decoding.swap_latents`, and
    # the table of controls asks what they carry
    has_latents = False
    # CHANGE: override these hooks of `Method` where their defaults (in brackets) are not true of your method:
    # - `length`: how much it says for an example (the marked answer). `marcos-bench measure` times that much.
    # - `stochastic`: whether the decoding seed changes its answers (if tokens are sampled); else no spread is shown.
    # - `batch_terms`: losses that are statistics of a micro-batch, not sums over rows (none); see `Context.over_ranks`.
    # - `caches_in_training`: whether `forward` reads a cache, so that no layer may be run again (no).
    # - `even_passes`: whether all micro-batches call the same modules in the same order (yes). Training on several
    #   ranks relies on it and on `batch_terms`.

    def __init__(self, options: MyMethodOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        # CHANGE: the modules. `extra_tokens=1` adds one embedding row, used for the pause token; `trunk()` builds the
        # model without a head
        self.lm = setup.backbone.causal_lm(extra_tokens=1)
        self.pause = self.lm.config.vocab_size - 1

    # CHANGE: to start from the CoT-SFT checkpoint of the same seed, define
    #     @classmethod
    #     def starts_from(cls, options: MyMethodOptions) -> str | None:
    #         return "cot_sft"

    def stages(self, budget: Budget) -> list[Stage]:
        """CHANGE: the curriculum, one `Stage` after the other. Each may select its weights on validation losses."""
        return [Stage("answer", budget.epochs, select_on=("cross_entropy",))]

    def _prompt(self, question: Sequence[int]) -> list[int]:
        return [*question, *self.vocabulary.newline, *[self.pause] * self.options.pauses]

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """CHANGE: the layout of the tokens. `example.steps` has the written steps, `context.stage` the stage."""
        prompts = [self._prompt(example.question) for example in examples]
        targets = [[*self.vocabulary.answer_marker, *example.answer, self.vocabulary.eos] for example in examples]
        ids, labels, tokens = continued(prompts, targets, self.vocabulary.eos)
        return Batch(
            {"ids": ids, "labels": labels, "labelled": labelled(labels)},
            {"cross_entropy": float(sum(map(len, targets)))},  # what the sum of this loss is divided by
            tokens,  # that `forward` reads, padding apart, over all its passes
        )

    def forward(self, batch: Batch, context: Context) -> Output:
        """CHANGE: the losses, as sums over the batch, each under the name that its denominator has in `collate`."""
        hidden = self.lm.base_model(input_ids=batch["ids"], use_cache=False).last_hidden_state
        loss = label_loss(self.lm.get_output_embeddings(), hidden, batch["labels"], batch["labelled"])
        return Output({"cross_entropy": loss})

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        """CHANGE: what happens between question and answer. `methods.decoding.extend` feeds one more vector."""
        prompts = [self._prompt(question) for question in questions]
        # all randomness comes from keys, one for each question
        ids, real, keys = batch_prompts(prompts, questions, decoding, self.vocabulary.eos, self.device)
        prefix = prefill(self.lm.base_model, self.lm.get_input_embeddings()(ids), real, decoding.cache)
        answer, cost = decode(self.lm, prefix, decoding, keys, self.vocabulary.eos)
        # CHANGE: a method that thinks in vectors adds what they took: cost + Cost(forward_passes=1, latent_steps=1)
        return Generation(answer, cost)
