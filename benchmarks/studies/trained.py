"""How the runs of a study are trained, as models that refuse unknown keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from benchmarks.studies.specs import Strict
from methods.base import added_field

Beta = Annotated[float, Field(ge=0, lt=1)]


class LoraSpec(Strict):
    """Low-rank adapters of the linear layers named: they, and markers, are trained in the place of all weights."""

    rank: int = Field(ge=1, description="inner width of an adapter")
    alpha: float = Field(gt=0, description="what adapters add is multiplied by alpha / rank")
    modules: tuple[str, ...] = Field(min_length=1, description="linear layers of each block, such as q_proj and v_proj")
    dropout: float = added_field(0.0, ge=0, lt=1, description="of what adapters read, in training")

    @field_validator("modules")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            raise ValueError(f"{twice[0]} is named twice: a layer has one adapter")
        return value


class TrainingSpec(Strict):
    """How a run is optimised. The budget is epochs, or tokens of the training data (question, steps and answer)."""

    epochs: float | None = Field(default=None, gt=0, description="budget, or `tokens`")
    tokens: float | None = Field(default=None, gt=0, description="budget, or `epochs`: tokens of the training data")
    batch_size: int = Field(default=256, ge=1, description="examples per optimizer step, over all ranks")
    learning_rate: float = Field(default=1e-4, gt=0, description="of AdamW, at its peak")
    schedule: Literal["constant", "cosine"] = Field(
        default="constant", description="of the learning rate, over each phase, after `warmup_steps`"
    )
    final_learning_rate_share: float = Field(
        default=0.1, ge=0, le=1, description="share of the learning rate that the cosine schedule ends at"
    )
    warmup_steps: int = Field(default=0, ge=0, description="of each phase, in which the learning rate rises")
    weight_decay: float = Field(default=0.01, ge=0, description="of AdamW")
    decays: Literal["all", "matrices"] = added_field(
        "all", description="the parameters that weight decay shrinks; matrices: no biases and no gains of norms"
    )
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), description="of AdamW")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="larger gradients are clipped; null: none are")
    validations: int = Field(default=5, ge=1, description="of each stage that selects its weights; others have one")
    validation_questions: int = added_field(
        0,
        ge=0,
        description="held-out questions that each validation answers greedily, for a curve of accuracy in the log",
    )
    select_by: Literal["loss", "accuracy"] = added_field(
        "loss",
        description="what selects the weights of stages that select some; accuracy: that of the "
        "`validation_questions`, where the stage's weights can answer, and of equal ones the loss",
    )
    dropout: float = added_field(
        0.0, ge=0, lt=1, description="in training, wherever the transformers' architecture has some"
    )
    lora: LoraSpec | None = added_field(
        None,
        description="train adapters beside the weights of a checkpoint, which stay as they are but for the rows of "
        "markers; default: train all",
    )
    log_every: int = Field(default=10, ge=1, description="steps between lines of `log.jsonl`")
    checkpoint_seconds: float = Field(default=60.0, ge=0, description="seconds between checkpoints")
    keep_stages: bool = added_field(
        False,
        description="keep the weights that each stage of a curriculum ends with, and evaluate how they answer by the "
        "default decoding (`table_stages`)",
    )

    @property
    def draws(self) -> bool:
        """Whether a training pass draws random numbers of the global generator: those of dropout."""
        return bool(self.dropout or (self.lora and self.lora.dropout))

    @model_validator(mode="after")
    def _one_budget(self) -> TrainingSpec:
        if (self.epochs is None) == (self.tokens is None):
            raise ValueError("give exactly one budget: `epochs` or `tokens`")
        return self

    @model_validator(mode="after")
    def _accuracy_is_known(self) -> TrainingSpec:
        if self.select_by == "accuracy" and not self.validation_questions:
            raise ValueError("`select_by: accuracy` needs answers: give a number of `validation_questions`")
        return self
