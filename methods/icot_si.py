"""iCoT-SI (stepwise internalisation): CoT-SFT whose written chain loses tokens from one side until none is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from methods.base import Budget, Context, Example, MethodOptions, Stage, added_field
from methods.cot_sft import PACKED, CoTSFT, lines, target
from methods.errors import InputError
from methods.random_keys import key, uniform

PUBLISHED_CUTOFF = 39  # in tokens of GPT-2 or Mistral, on GSM8K's equations


class ICoTSIOptions(MethodOptions):
    """The published run removes 8 tokens per epoch, and all once it reaches 39. Good values of both depend on the
    tokenizer and the budget."""

    tokens_per_epoch: float | None = Field(
        default=None, gt=0, description="tokens removed per epoch; null: set by removal_share"
    )
    removal_share: float = Field(
        default=0.4, gt=0, lt=1, description="fraction of the budget after which all tokens are removed"
    )
    cutoff: int | None = Field(
        default=None,
        ge=1,
        description="number of removed tokens from which all are removed; null: set by cutoff_quantile",
    )
    cutoff_quantile: float = Field(
        default=0.9, gt=0, le=1, description="cutoff as a quantile of the chain lengths in the training data"
    )
    smoothing: float | None = Field(
        default=4.0,
        gt=0,
        description="lambda of the removal smoothing: o more tokens are removed, P(o) ~ exp(-lambda o); null: o = 0",
    )
    packed: bool = added_field(False, description=PACKED)
    optimizer_restart: bool = Field(default=True, description="reset the optimizer whenever more tokens are removed")
    warm_start: Literal["none", "cot_sft"] = Field(
        default="none", description="method to take the initial weights from"
    )


class ICoTSI(CoTSFT):
    """The model is trained like CoT-SFT, while more and more tokens are removed from the left of the written chain."""

    name = "icot_si"
    title = "iCoT-SI"
    citation = """@misc{deng2024explicit,
  title={From explicit {CoT} to implicit {CoT}: learning to internalize {CoT} step by step},
  author={Deng, Yuntian and Choi, Yejin and Shieber, Stuart}, year={2024}, eprint={2405.14838},
  archivePrefix={arXiv}}"""
    Options: ClassVar = ICoTSIOptions
    options: ICoTSIOptions

    # -- curriculum

    def cutoff(self, budget: Budget) -> int:
        """Return how many tokens are removed one by one: a constant, or a quantile of the chains' lengths."""
        if self.options.cutoff is not None:
            return self.options.cutoff
        lengths = sorted(budget.chain_lengths) or [PUBLISHED_CUTOFF]
        return int(lengths[math.ceil(self.options.cutoff_quantile * len(lengths)) - 1])

    def stages(self, budget: Budget) -> list[Stage]:
        """Return one stage for each number of removed tokens (numbers for which the budget has no optimizer step are
        skipped), then one stage without any chain, whose weights are selected."""
        cutoff, options = self.cutoff(budget), self.options
        if not cutoff:
            raise InputError("icot_si: the training data have no steps whose tokens could be removed: train CoT-SFT")
        rate = options.tokens_per_epoch or cutoff / (options.removal_share * budget.epochs)
        if cutoff >= rate * budget.epochs:
            raise InputError(
                f"icot_si: {budget.epochs:g} epochs end before {cutoff} tokens are removed at {rate:g} per epoch; "
                "raise tokens_per_epoch, or leave it out so that it follows from removal_share"
            )
        starts = [int(count / rate * budget.steps_per_epoch) for count in range(cutoff + 1)]
        stages = [
            self._stage(count, (stop - start) / budget.steps_per_epoch)
            for count, (start, stop) in enumerate(pairwise(starts))
            if stop > start
        ]
        return [*stages, self._stage(math.inf, budget.epochs - starts[-1] / budget.steps_per_epoch)]

    def _stage(self, removed: float, epochs: float) -> Stage:
        internalised = math.isinf(removed)
        return Stage(
            "all removed" if internalised else f"{removed} removed",
            epochs,
            keep_optimizer=not self.options.optimizer_restart,
            select_on=("cross_entropy",) if internalised else (),
            settings={"removed": removed},
        )

    @property
    def writes_steps(self) -> bool:
        return False

    # -- training

    def targets(self, examples: Sequence[Example], context: Context) -> list[list[int]]:
        """Return the targets of CoT-SFT without the first tokens of each chain."""
        removed = self._removed(examples, context).tolist()
        return [target(example, self.vocabulary)[count:] for example, count in zip(examples, removed, strict=True)]

    def _removed(self, examples: Sequence[Example], context: Context) -> Tensor:
        """Return the number of tokens to remove (B,): the stage's plus each example's offset, at most the chain."""
        epoch, _ = context.epoch_and_step
        keys = torch.tensor([key(context.seed, "removal", epoch, example.id) for example in examples])
        offsets = (-torch.log1p(-uniform(keys, 1).squeeze(1)) / (self.options.smoothing or math.inf)).floor()
        chains = torch.tensor([len(lines(example.steps, self.vocabulary)) for example in examples])
        return torch.minimum(context.stage.settings["removed"] + offsets, chains).long()
