"""Options of MarCos; the defaults are the paper's settings at 0.5B."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from methods.base import MethodOptions, added_field


class SparsityOptions(MethodOptions):
    """The L1 term on R and its adaptive weight (paper, appendix "Dynamic Weighting Strategy")."""

    weight: float = Field(default=1e-4, ge=0, description="lambda, or where it starts when adaptive")
    adaptive: bool = Field(default=True, description="lambda goes up and down with the L1 norm of R, to the target")
    target: float = Field(default=10 / 48, gt=0, description="L1 norm of R per sample and step that lambda steers to")
    steps: Literal["said", "all"] = added_field(
        "said",
        description="whose R counts: that of steps that say something, as in the published code, or of all, empty ones "
        "too, as the paper writes the loss",
    )
    minimum: float = Field(default=1e-6, description="lower bound of an adaptive lambda")
    maximum: float = Field(default=0.1, description="upper bound of an adaptive lambda")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> SparsityOptions:
        if self.minimum > self.maximum:
            raise ValueError(f"`minimum` of lambda is {self.minimum:g}, above its `maximum` of {self.maximum:g}")
        return self


class MarCosOptions(MethodOptions):
    steps: int = Field(default=3, ge=1, description="K thinking steps; the answer is always spoken from the last")
    deep: int = Field(
        default=10, ge=0, title="Deep neurons T", description="read by thinking alone; 0 is the ablation w/o Neu_deep"
    )
    shallow: int = Field(default=100, ge=1, title="Shallow neurons S", description="read by the speaking layer")
    tau: int = Field(default=16, ge=1, title="Length of R, τ", description="R has tau x hidden_size dimensions")
    randomness: bool = Field(default=True, description="think with R; false is the ablation w/o R")
    attention: Literal["bidirectional", "causal"] = Field(
        default="bidirectional",
        description="of the thinking layer; causal is an ablation (paper, appendix 'Additional Ablation Studies')",
    )
    thinking_init: Literal["normal", "xavier"] = Field(
        default="normal",
        description="of the thinking layer's matrices: normal as the architecture has it, as in the published code, "
        "or Xavier's uniform (same appendix)",
    )
    encoder_reads: Literal["step", "path"] = added_field(
        "step",
        description="what f encodes R of a step from: its text alone, as in the paper; or the question and all steps "
        "up to it, which tell what the step adds to them",
    )
    posterior: Literal["deterministic", "noisy", "gaussian"] = Field(
        default="deterministic",
        description="R in training: what f gives, as in the published code; with noise of epsilon; or with noise of a "
        "deviation that f gives too, as in the paper",
    )
    epsilon: float = Field(
        default=1e-2, gt=0, description="standard deviation of the posterior in the KL term, and of its noise"
    )
    sparsity: SparsityOptions = Field(default=SparsityOptions(), description="the L1 term on R and its weight lambda")
    first_phase: float = Field(
        default=0.5, gt=0, description="phase 1's epochs, times those of the budget (0.5: 10 of the paper's 20)"
    )
    second_phase: float = Field(default=0.5, gt=0, description="those of phase 2, which trains the predictor alone")
    second_rate: float | None = added_field(
        None,
        gt=0,
        description="learning rate of phase 2, on the run's schedule; default: that of phase 1, as in the paper. The "
        "published code goes from 1e-5 to 1e-6",
    )
    speaking: Literal["autoregressive", "one_shot"] = Field(
        default="autoregressive", description="one_shot: all tokens of a step from one pass, each blind to the others"
    )
    refinements: int = Field(
        default=0, ge=0, description="mask-predict passes after the one of one_shot, which is then trained for them"
    )
    marked: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="share of the training examples with #### before their answer; the paper's text targets have both "
        "kinds, which R tells apart (its figure of interventions)",
    )
    max_step_tokens: int = Field(default=128, ge=1, description="targets are cut there; one_shot says as many at once")

    @model_validator(mode="after")
    def _refines_what_is_said_at_once(self) -> MarCosOptions:
        if self.refinements and self.speaking != "one_shot":
            raise ValueError("`refinements` refine what is said at once: set `speaking: one_shot`, or leave them out")
        return self
