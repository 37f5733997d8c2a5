"""What a study file may say, and what decides one run: models that refuse unknown keys."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from methods.registry import available, get_method

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Form = Literal["equation", "text", "lines"]
StageName = Literal["train", "evaluate", "time"]
STAGES: tuple[StageName, ...] = ("train", "evaluate", "time")
# Fields of a run that its training does not depend on, and those of them that a stage does
MEASURED = ("evaluation", "timing", "timing_threads", "analysis")
ASKED = {
    "train": (),
    "evaluate": ("evaluation",),
    "time": ("evaluation", "timing", "timing_threads"),
    "analyse": ("evaluation", "analysis"),
}


class Strict(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BackboneSpec(Strict):
    """A causal language model: an architecture from scratch, or a pretrained checkpoint."""

    name: str = Field(default="qwen2-tiny", description="a configuration of methods/backbone.py")
    pretrained: str | None = Field(default=None, description="folder or hub id of a checkpoint to start from")
    revision: str | None = Field(default=None, description="pinned revision of a hub checkpoint")
    overrides: dict[str, int | float] = Field(
        default={}, description="fields of the Hugging Face configuration to change"
    )

    @model_validator(mode="after")
    def _consistent(self) -> BackboneSpec:
        if self.pretrained and self.overrides:
            raise ValueError("a checkpoint brings its own configuration: leave out `overrides`, or `pretrained`")
        if self.revision and not self.pretrained:
            raise ValueError("`revision` is a checkpoint's: name that as `pretrained`, or leave it out")
        return self


class TokenizerSpec(Strict):
    """Named by the study, never by what is at hand. Exactly one of the two."""

    trained: Annotated[int, Field(ge=300)] | Literal["words"] | None = Field(
        default=None,
        description="size of a byte-level BPE trained on the training split, or `words`: one token per word of it",
    )
    pretrained: str | None = Field(
        default=None, description="a published tokenizer: qwen2.5 or llama-3.2, or a folder or hub id"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> TokenizerSpec:
        if (self.trained is None) == (self.pretrained is None):
            raise ValueError("name exactly one tokenizer: `trained: SIZE`, `trained: words` or `pretrained: NAME`")
        return self


class DataSpec(Strict):
    """Training data of a block; validation rows are split off it by a fixed rule."""

    train: str = Field(description="name of a data set")
    form: Form = Field(default="equation", description="whether the steps are equations, sentences or lines")
    validation: int = Field(default=500, ge=1, description="rows split off for validation")
    limit: int | None = Field(default=None, ge=1, description="use the first rows only, counted after the split")
    max_question_tokens: int = Field(default=256, ge=1)


class TrainingSpec(Strict):
    """How a run is optimised. The budget is epochs, or tokens of the training data (question, steps and answer)."""

    epochs: float | None = Field(default=None, gt=0)
    tokens: float | None = Field(default=None, gt=0)
    batch_size: int = Field(default=256, ge=1, description="examples per optimizer step, over all ranks")
    learning_rate: float = Field(default=1e-4, gt=0)
    schedule: Literal["constant", "cosine"] = "constant"
    final_learning_rate_share: float = Field(default=0.1, ge=0, le=1, description="where the cosine ends")
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    validations: int = Field(default=5, ge=1, description="validations per stage that selects its weights")
    log_every: int = Field(default=10, ge=1)
    checkpoint_seconds: float = Field(default=60.0, ge=0, description="seconds between checkpoints")

    @model_validator(mode="after")
    def _one_budget(self) -> TrainingSpec:
        if (self.epochs is None) == (self.tokens is None):
            raise ValueError("give exactly one budget: `epochs` or `tokens`")
        return self


class DecodingSpec(Strict):
    """One way of decoding that is evaluated; ``seeds`` beyond the first count only where the method draws."""

    tokens: Literal["greedy", "sample"] = "greedy"
    latents: Literal["default", "sample", "mean"] = "default"
    thoughts: Literal["own", "exchanged", "mean"] = Field(
        default="own", description="control: whose latents a question gets"
    )
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seeds: int = Field(default=5, ge=1)
    only: tuple[str, ...] | None = Field(default=None, description="methods that this decoding is for; default: all")


class EvaluationSpec(Strict):
    tests: tuple[str, ...] = Field(min_length=1, description="names of data sets")
    batch_size: int = Field(default=64, ge=1)
    max_new_tokens: int = Field(default=128, ge=1)
    decodings: dict[Identifier, DecodingSpec] = Field(default={"default": DecodingSpec()}, min_length=1)

    @field_validator("decodings")
    @classmethod
    def _has_default(cls, value: dict[str, DecodingSpec]) -> dict[str, DecodingSpec]:
        if "default" not in value:
            raise ValueError("one decoding must be named `default`: the main table shows it")
        if value["default"].only is not None:
            raise ValueError("`default` is for all methods: leave out its `only`")
        return value

    @model_validator(mode="after")
    def _controls_have_another_question(self) -> EvaluationSpec:
        if self.batch_size == 1 and (found := [n for n, spec in self.decodings.items() if spec.thoughts != "own"]):
            raise ValueError(
                f"`{found[0]}` takes the latents of other questions of a batch: `batch_size` must be over 1"
            )
        return self

    @field_validator("decodings")
    @classmethod
    def _controls_decode_as_default(cls, value: dict[str, DecodingSpec]) -> dict[str, DecodingSpec]:
        shared = {"tokens", "latents", "temperature", "top_p"}
        for name, spec in value.items():
            if spec.thoughts != "own" and spec.model_dump(include=shared) != value["default"].model_dump(
                include=shared
            ):
                raise ValueError(f"`{name}` is compared with `default`: it may differ in `thoughts` and `seeds` only")
        return value


class TimingSpec(Strict):
    """The timing stage runs alone on the machine."""

    batch_size: int = Field(default=64, ge=1)
    repeats: int = Field(default=5, ge=1, description="timed passes over each test set")
    questions: int | None = Field(
        default=None, ge=1, description="time the first questions only; default: the whole set"
    )
    train_steps: int = Field(
        default=20, ge=3, description="timed optimizer steps per phase, over batches of all lengths"
    )


class AnalysisSpec(Strict):
    """What is asked of latents that can be set by hand; the defaults are the paper's, where it gives any."""

    questions: int = Field(default=200, ge=1, description="of each test set, spread evenly over it")
    active_above: float = Field(default=0.1, description="a dimension is active above this value")
    frequent_share: float = Field(default=0.01, gt=0, le=1, description="of all dimensions, the most often active")
    frequent_at_least: int = Field(default=12, ge=1, description="dimensions, where that share is fewer")
    correlated_above: float = Field(default=0.9, description="Pearson correlation of two dimensions with an edge")
    values: tuple[float, ...] = Field(default=(0.0, 0.1, 0.5), min_length=1, description="that a clique is set to")
    samples: int = Field(default=20, ge=1, description="drawn answers per question, for calibration")


class EngineSpec(Strict):
    """What a run's steps run on. Of all this only ``precision`` shapes a result, and ``micro_batch`` that of a method
    with ``batch_terms``: a run that was started on one number of GPUs goes on with another."""

    kind: Literal["process", "deepspeed"] = Field(
        default="process", description="process: one process on one device; deepspeed: one rank per GPU"
    )
    gpus: int = Field(default=1, ge=1, description="ranks per node; where there is no GPU they share the CPU")
    nodes: int = Field(default=1, ge=1)
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=0, description="what is split between ranks: 1 optimizer states, 2 gradients too, 3 weights too"
    )
    offload: Literal["none", "optimizer", "weights"] = Field(
        default="none", description="what lies in CPU memory; weights: them and the optimizer states"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of training, evaluation and timing; bfloat16: autocast over float32 weights"
    )
    micro_batch: int | None = Field(
        default=None, ge=1, description="examples per forward pass of a rank; default: its whole share of a batch"
    )
    activation_checkpointing: bool = Field(
        default=False, description="compute activations again in the backward pass instead of keeping them"
    )
    hang_seconds: float = Field(
        default=900, gt=0, description="ranks that get nowhere for so long are stopped, and the one that hangs is named"
    )

    @model_validator(mode="after")
    def _consistent(self) -> EngineSpec:
        if self.kind == "process" and (self.gpus > 1 or self.nodes > 1 or self.zero_stage or self.offload != "none"):
            raise ValueError("`kind: process` is one process on one device: set `kind: deepspeed` for more")
        if self.offload == "optimizer" and self.zero_stage == 0:
            raise ValueError("`offload: optimizer` needs zero_stage 1, 2 or 3")
        if self.offload == "weights" and self.zero_stage != 3:
            raise ValueError("`offload: weights` needs zero_stage 3")
        return self

    @property
    def ranks(self) -> int:
        return self.gpus * self.nodes


class Row(Strict):
    """One row of the tables: a method with options, in the blocks named (default: all)."""

    id: Identifier
    method: str
    title: str | None = Field(default=None, description="as the table prints it; default: the method's own title")
    indent: bool = Field(default=False, description="an ablation of the row above")
    control: bool = Field(default=False, description="a control row: shown apart, never ranked")
    backbone: BackboneSpec | None = Field(default=None, description="default: the block's, else the study's")
    options: dict[str, Any] = {}
    training: dict[str, Any] = Field(default={}, description="training settings that differ from the study's")
    engine: dict[str, Any] = Field(default={}, description="engine settings that differ from the study's")
    decodings: dict[Identifier, DecodingSpec] = Field(
        default={}, description="decodings of the study that are others in this row"
    )
    blocks: tuple[str, ...] | None = None


class Block(Strict):
    id: Identifier
    title: str
    data: DataSpec
    backbone: BackboneSpec | None = Field(default=None, description="default: the study's")
    tokenizer: TokenizerSpec | None = Field(default=None, description="default: the study's")
    training: dict[str, Any] = Field(
        default={}, description="training settings that differ from the study's and its rows'"
    )
    options: dict[str, dict[str, Any]] = Field(default={}, description="by method: options that differ from its rows'")
    tests: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="the tests that are for this block; default: all"
    )


class RunSpec(Strict):
    """Everything that decides the result of one run."""

    id: str
    study: str
    block: str
    row: str
    method: str
    options: dict[str, Any]
    seed: int
    backbone: BackboneSpec
    tokenizer: TokenizerSpec
    data: DataSpec
    training: TrainingSpec
    evaluation: EvaluationSpec
    timing: TimingSpec | None
    engine: EngineSpec
    threads: int
    timing_threads: int
    analysis: AnalysisSpec = AnalysisSpec()
    starts_from: str | None

    @property
    def rows_at_once(self) -> int:
        """Examples in one pass of a rank, where none of a step's accumulation decides it."""
        return min(self.training.batch_size, self.engine.micro_batch or self.training.batch_size)

    @property
    def stages(self) -> tuple[StageName, ...]:
        """The stages that the run goes through."""
        return STAGES if self.timing else STAGES[:-1]

    def serves(self, asked: RunSpec) -> bool:
        """Whether this run, of another study perhaps, gives all that is asked of a run of other names."""
        own, theirs = (spec.model_dump(exclude={"id", "study", "row", *MEASURED}) for spec in (self, asked))
        held, wanted = self.evaluation, asked.evaluation
        same = held.model_copy(update={"tests": (), "decodings": {}}) == wanted.model_copy(
            update={"tests": (), "decodings": {}}
        )
        return (
            own == theirs
            and same
            and set(wanted.tests) <= set(held.tests)
            and wanted.decodings.items() <= held.decodings.items()
            and (asked.timing is None or (asked.timing, asked.timing_threads) == (self.timing, self.timing_threads))
        )

    def digest(self, stage: StageName | Literal["analyse"]) -> str:
        """A digest of the fields that the stage's result depends on, and of no others."""
        return settings_digest(self.model_dump(mode="json"), stage)


def settings_digest(run: Mapping[str, Any], stage: StageName | Literal["analyse"]) -> str:
    """:meth:`RunSpec.digest` of a run's settings as they were written, whatever fields there are today."""
    kept = {key: value for key, value in run.items() if key not in MEASURED or key in ASKED[stage]}
    if stage == "time":  # it knows the default decoding alone
        decodings = {name: value for name, value in run["evaluation"]["decodings"].items() if name == "default"}
        kept["evaluation"] = run["evaluation"] | {"decodings": decodings}
    else:
        kept["engine"] = {"precision": run["engine"]["precision"], **_rows_together(run)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _rows_together(run: Mapping[str, Any]) -> dict[str, int]:
    """The examples of a micro-batch, where they are fewer than a batch and a loss term is a statistic of them."""
    if run["method"] not in available() or not get_method(run["method"]).batch_terms:
        return {}
    engine, batch = run["engine"], run["training"]["batch_size"]
    ranks = engine.get("gpus", 1) * engine.get("nodes", 1)
    rows = engine.get("micro_batch") or math.ceil(batch / ranks)
    return {"micro_batch": rows} if rows < batch else {}
