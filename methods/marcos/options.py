"""Options of MarCos. The defaults are the paper's values at 0.5B where it gives them, else the published code's. Each
description states which; deviations from the paper are listed in `methods/marcos/__init__.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from methods.base import MethodOptions, added_field

Padding = Literal["empty", "answer", "left"]


class SparsityOptions(MethodOptions):
    """The L1 term on R and its adaptive weight (paper, appendix "Dynamic Weighting Strategy", eq. (10))."""

    weight: float = Field(default=1e-4, ge=0, description="lambda, or its initial value if adaptive (the paper's)")
    adaptive: bool = Field(
        default=True,
        description="adapt lambda so that the L1 norm of R approaches the target, as in the paper; false: ablation "
        "with a fixed lambda",
    )
    target: float = Field(
        default=10 / 48,
        gt=0,
        description="beta: target L1 norm of R per example and step. The paper gives no value; this is the published "
        "code's, 10 for a micro-batch of 16 examples with 3 steps",
    )
    steps: Literal["nonempty", "all"] = added_field(
        "nonempty",
        description="steps whose R is penalised. nonempty: only steps with a text, as in the published code; all: "
        "empty steps too, as in the paper's loss",
    )
    minimum: float = Field(
        default=1e-6, description="lower bound of the adaptive lambda (the published code's; the paper has no bounds)"
    )
    maximum: float = Field(
        default=0.1, description="upper bound of the adaptive lambda (the published code's; the paper has no bounds)"
    )

    @model_validator(mode="after")
    def _require_ordered_bounds(self) -> SparsityOptions:
        if self.minimum > self.maximum:
            raise ValueError(f"`minimum` of lambda is {self.minimum:g}, above its `maximum` of {self.maximum:g}")
        if self.adaptive and not self.minimum <= self.weight <= self.maximum:
            raise ValueError(
                f"lambda starts at {self.weight:g} and adapts between {self.minimum:g} and {self.maximum:g}: give it "
                "other bounds, or set `adaptive: false` for a fixed one (0: no term)"
            )
        return self


class MarCosOptions(MethodOptions):
    steps: int = Field(
        default=3,
        ge=1,
        description="number of thinking steps K (the paper's). The last one always speaks the answer, as in the "
        "published code",
    )
    deep: int = Field(
        default=10,
        ge=0,
        title="Deep neurons T",
        description="number of deep neurons, seen by the thinking layer only (the paper's); 0: ablation w/o Neu_deep",
    )
    shallow: int = Field(
        default=100,
        ge=1,
        title="Shallow neurons S",
        description="number of shallow neurons, which the speaking layer reads (the paper's)",
    )
    tau: int = Field(
        default=16, ge=1, title="Length of R, τ", description="R has tau x hidden_size dimensions (tau is the paper's)"
    )
    randomness: bool = Field(
        default=True, description="whether thinking steps take in R, as in the paper; false: ablation w/o R"
    )
    attention: Literal["bidirectional", "causal"] = Field(
        default="bidirectional",
        description="attention of the thinking layer: bidirectional, as in the paper, or causal, its ablation "
        "(appendix 'Additional Ablation Studies')",
    )
    thinking_init: Literal["normal", "xavier"] = Field(
        default="normal",
        description="initialisation of the thinking layer's matrices: the architecture's normal distribution, as in "
        "the published code, or Xavier uniform (same appendix)",
    )
    encoder_reads: Literal["step", "path"] = added_field(
        "step",
        description="input of the encoder f of R: the step's text alone, as in the paper, or the question and all "
        "steps up to it, which show what the step adds",
    )
    posterior: Literal["deterministic", "noisy", "gaussian"] = Field(
        default="deterministic",
        description="R in training. deterministic: the output of f, as in the published code; noisy: the same plus "
        "noise of standard deviation epsilon; gaussian: f predicts the standard deviation too, as in the paper",
    )
    epsilon: float = Field(
        default=1e-2,
        gt=0,
        description="standard deviation of the posterior's noise (noisy) and of the posterior in the KL term (noisy, "
        "deterministic); lower bound of the standard deviation that g predicts (always). In neither the paper nor "
        "the published code",
    )
    sparsity: SparsityOptions = Field(default=SparsityOptions(), description="L1 term on R and its weight lambda")
    first_phase: float = Field(
        default=0.5, gt=0, description="phase 1 epochs as a multiple of the budget (0.5: 10 of 20, as in the paper)"
    )
    second_phase: float = Field(
        default=0.5,
        gt=0,
        description="phase 2 epochs as a multiple of the budget (0.5: 10 of 20, as in the paper); it trains g only",
    )
    joint_kl: float | None = added_field(
        None,
        ge=0,
        le=1,
        description="train g with all else in phase 1, and no phase 2, as in the loss that the paper derives and then "
        "splits: the weight with which the KL term trains f. g always learns at its full rate; thinking, whose neurons "
        "g reads, is not trained by this term. Default: two phases, as in the paper's training",
    )
    joint_start: float = added_field(
        0.0, ge=0, lt=1, description="with `joint_kl`: fraction of phase 1 in which the KL term does not train f yet"
    )
    second_rate: float | None = added_field(
        None,
        gt=0,
        description="peak learning rate of phase 2; default: that of phase 1, as in the paper. The published code "
        "decays from 1e-5 to 1e-6",
    )
    warm_start: Literal["none", "cot_sft"] = added_field(
        "none",
        description="method whose language model the understanding, thinking and speaking layers start from, as they "
        "start from a pretrained one in the paper's table of pretrained models; the paper's main table has none",
    )
    speaking: Literal["autoregressive", "one_shot"] = Field(
        default="autoregressive",
        description="autoregressive, as in the paper's main results, or one_shot: all tokens of a step in one pass, "
        "none of which sees the others (paper: non-autoregressive decoding)",
    )
    refinements: int = Field(
        default=0,
        ge=0,
        description="mask-predict passes after the first with one_shot, which is then trained for them (the paper has "
        "none)",
    )
    padding: Padding = added_field(
        "empty",
        description="the groups that are left over if a chain has too few steps for all. empty: they come last and "
        "have no text, so that these steps are thought but not spoken; answer: they come last and have the answer, so "
        "that thinking is trained to keep it; left: they come first and have no text, so that the last step of any "
        "chain is just before its answer. The paper is silent; the published code moves the answer of some chains to "
        "an earlier group",
    )
    marked: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="fraction of training examples with #### before the answer. The paper gives no fraction, but its "
        "text targets have both kinds, which R distinguishes (its figure of interventions)",
    )
    max_step_tokens: int = Field(
        default=128,
        ge=1,
        description="maximum length of a step in training, without end-of-text; one_shot generates this many positions "
        "in one pass. 128 is the paper's value for one_shot, and the published code's for both",
    )

    @model_validator(mode="after")
    def _require_one_shot_for_refinements(self) -> MarCosOptions:
        if self.refinements and self.speaking != "one_shot":
            raise ValueError("`refinements` refine what is spoken at once: set `speaking: one_shot`, or leave them out")
        return self

    @model_validator(mode="after")
    def _require_joint_training(self) -> MarCosOptions:
        if self.joint_kl is not None and not self.randomness:
            raise ValueError("`joint_kl` is about R: leave it out with `randomness: false`")
        if self.joint_start and self.joint_kl is None:
            raise ValueError("`joint_start` is when `joint_kl` begins: give both, or neither")
        return self

    @model_validator(mode="after")
    def _require_one_initialisation(self) -> MarCosOptions:
        if self.warm_start != "none" and self.thinking_init != "normal":
            raise ValueError("a thinking layer with a `warm_start` is not initialised: leave out `thinking_init`")
        return self
