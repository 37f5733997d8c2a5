"""The settings of a study, as models that refuse unknown keys: data, backbone, engine, training, evaluation, timing,
analysis, and the names of tables and figures."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from methods.base import added_field
from methods.generation import Latents, Tokens

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LONGEST_NAME = 100  # letters: files are named after it, most with something before and behind it, and have 255 at most
Identifier = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)]
Form = Literal["equation", "text", "lines"]
Beta = Annotated[float, Field(ge=0, lt=1)]


def _several(names: Any) -> Any:
    """Turn a single name into a tuple of it, and null into an empty tuple."""
    if names is None or isinstance(names, str):
        return (names,) if names else ()
    return tuple(names) if isinstance(names, list) else names


Names = Annotated[tuple[str, ...], BeforeValidator(_several, json_schema_input_type=str | tuple[str, ...] | None)]


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
    """The tokenizer of a study, independent of what a machine has available. Exactly one of the two is given."""

    trained: Annotated[int, Field(ge=300)] | Literal["words"] | None = Field(
        default=None,
        description="size of a byte-level BPE trained on the training split, or `words`: one token per word of it",
    )
    pretrained: str | None = Field(
        default=None, description="a published tokenizer: qwen2.5, llama-3.2 or gpt2, or a folder or hub id"
    )
    revision: str | None = added_field(None, description="pinned revision of a tokenizer that a hub id names")

    @model_validator(mode="after")
    def _consistent(self) -> TokenizerSpec:
        if (self.trained is None) == (self.pretrained is None):
            raise ValueError("name exactly one tokenizer: `trained: SIZE`, `trained: words` or `pretrained: NAME`")
        if self.revision and not self.pretrained:
            raise ValueError("`revision` is a published tokenizer's: name that as `pretrained`, or leave it out")
        return self


class DataSpec(Strict):
    """Training data of a block; validation rows are split off it by a fixed rule."""

    train: str = Field(description="name of a data set")
    form: Form = Field(default="equation", description="whether the steps are equations, sentences or lines")
    validation: int = Field(default=500, ge=1, description="rows split off for validation")
    limit: int | None = Field(
        default=None, ge=1, description="train on this many rows only: the first ones after the split"
    )
    max_question_tokens: int = Field(default=256, ge=1, description="rows with a longer question are left out")


class DecodingSpec(Strict):
    """One way of decoding that is evaluated. ``seeds`` beyond the first count only if the method samples."""

    tokens: Tokens = Field(default="greedy", description="how the answer's tokens are chosen")
    latents: Latents = Field(
        default="default",
        description="whether latents are drawn, or their mean is taken; default: the method's own way",
    )
    thoughts: Literal["own", "exchanged", "mean"] = Field(
        default="own", description="a control: whose latents a question is answered with"
    )
    temperature: float = Field(
        default=1.0, gt=0, description="of tokens that are drawn, and a factor on the deviation of latents that are"
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="tokens are drawn from the likeliest of this total mass")
    seeds: int = Field(default=5, ge=1, description="answers to each question, drawn by seeds from 0 on")
    only: tuple[str, ...] | None = Field(default=None, description="methods that this decoding is for; default: all")
    options: dict[str, Any] = added_field(
        {}, description="options in the place of the run's own, of those that a method can change without training"
    )


class EvaluationSpec(Strict):
    tests: tuple[str, ...] = Field(min_length=1, description="names of data sets")
    batch_size: int = Field(default=64, ge=1, description="questions that are answered together")
    max_new_tokens: int = Field(default=128, ge=1, description="tokens after which an answer is cut off")
    decodings: dict[Identifier, DecodingSpec] = Field(
        default={"default": DecodingSpec()}, min_length=1, description="by name; the main table shows `default`"
    )

    @field_validator("decodings")
    @classmethod
    def _has_default(cls, value: dict[str, DecodingSpec]) -> dict[str, DecodingSpec]:
        if "default" not in value:
            raise ValueError("one decoding must be named `default`: the main table shows it")
        if value["default"].only is not None:
            raise ValueError("`default` is for all methods: leave out its `only`")
        if value["default"].options:
            raise ValueError("`default` answers by the run's own options: leave out its `options`")
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
        shared = {"tokens", "latents", "temperature", "top_p", "options"}
        for name, spec in value.items():
            if spec.thoughts != "own" and spec.model_dump(include=shared) != value["default"].model_dump(
                include=shared
            ):
                raise ValueError(f"`{name}` is compared with `default`: it may differ in `thoughts` and `seeds` only")
        return value


class EngineSpec(Strict):
    """What computes the steps of a run. Only ``precision`` affects the results, so a run that was started on one number
    of GPUs may be resumed on another. There are two exceptions. For a method that has ``batch_terms``, ``micro_batch``
    counts, or ``micro_tokens`` and the number of GPUs. With dropout these count too, the number of GPUs unless
    ``micro_batch`` is set, and ``compile``."""

    kind: Literal["process", "deepspeed"] = Field(
        default="process", description="process: one process on one device; deepspeed: one rank per GPU"
    )
    gpus: int = Field(default=1, ge=1, description="ranks per node; where there is no GPU they share the CPU")
    nodes: int = Field(default=1, ge=1, description="machines with that many ranks each")
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=0, description="what is split between ranks: 1 optimizer states, 2 gradients too, 3 weights too"
    )
    offload: Literal["none", "optimizer", "weights"] = Field(
        default="none", description="what is kept in CPU memory; weights: the weights and the optimizer states"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of training, evaluation and timing; bfloat16: autocast over float32 weights"
    )
    micro_batch: int | None = Field(
        default=None, ge=1, description="examples per forward pass of a rank; default: its whole share of a batch"
    )
    micro_tokens: int | None = added_field(
        None,
        ge=1,
        description="examples per pass of training and validation times the tokens of the batch's longest one "
        "(question, steps and answer), at most: batches of long examples are cut into more parts",
    )
    activation_checkpointing: bool = Field(
        default=False, description="recompute activations in the backward pass instead of keeping them"
    )
    compile: bool = added_field(
        False,
        description="compile the transformers' layers, which takes a C compiler (on a CPU: C++) and up to a minute at "
        "first, and then passes over memory less often; where a cache is read, all but attention and, in training, "
        "thoughts",
    )
    hang_seconds: float = Field(
        default=900,
        gt=0,
        description="ranks that make no progress for this long are stopped, and the one that hangs is named",
    )

    @model_validator(mode="after")
    def _consistent(self) -> EngineSpec:
        if self.kind == "process" and (self.gpus > 1 or self.nodes > 1 or self.zero_stage or self.offload != "none"):
            raise ValueError("`kind: process` is one process on one device: set `kind: deepspeed` for more")
        if self.offload == "optimizer" and self.zero_stage == 0:
            raise ValueError("`offload: optimizer` needs zero_stage 1, 2 or 3")
        if self.offload == "weights" and self.zero_stage != 3:
            raise ValueError("`offload: weights` needs zero_stage 3")
        if self.compile and self.zero_stage == 3:
            raise ValueError(
                "`compile` needs layers whose weights are whole: set zero_stage to 2 at most, or leave it out"
            )
        return self

    @property
    def ranks(self) -> int:
        return self.gpus * self.nodes


class Row(Strict):
    """One row of the tables: a method with options, in the blocks named."""

    id: Identifier = Field(description="its name in run ids and folders")
    method: str = Field(description="one of `marcos-bench list methods`, or of an installed plugin")
    title: str | None = Field(default=None, description="as the table prints it; default: the method's own title")
    indent: bool = Field(default=False, description="an ablation of the row above")
    control: bool = Field(default=False, description="a control row: shown apart, never ranked")
    backbone: BackboneSpec | None = Field(default=None, description="default: the block's, else the study's")
    starts_from: Identifier | None = Field(
        default=None, description="row whose weights it starts from; default: the one with default options"
    )
    options: dict[str, Any] = Field(default={}, description="of the method (`marcos-bench list methods NAME`)")
    training: dict[str, Any] = Field(default={}, description="training settings that differ from the study's")
    engine: dict[str, Any] = Field(default={}, description="engine settings that differ from the study's")
    decodings: dict[Identifier, DecodingSpec] = Field(
        default={}, description="decodings of the study that are different in this row"
    )
    blocks: tuple[str, ...] | None = Field(default=None, min_length=1, description="default: all")


class Block(Strict):
    """A part of the tables: training data, and the rows that are trained on them."""

    id: Identifier = Field(description="its name in run ids and folders")
    title: str = Field(description="as tables print it")
    data: DataSpec
    backbone: BackboneSpec | None = Field(default=None, description="default: the study's")
    tokenizer: TokenizerSpec | None = Field(default=None, description="default: the study's")
    training: dict[str, Any] = Field(
        default={}, description="training settings that differ from the study's and its rows'"
    )
    options: dict[str, dict[str, Any]] = Field(
        default={}, description="by method: options that differ from its rows'; a mapping in them replaces theirs"
    )
    tests: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="tests that the runs of this block are evaluated on; default: all"
    )


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


class TimingSpec(Strict):
    """Settings of the timing stage, which runs alone on the machine."""

    batch_size: int = Field(default=64, ge=1, description="questions that are answered together")
    repeats: int = Field(default=5, ge=1, description="timed passes over each test set")
    questions: int | None = Field(
        default=None, ge=1, description="time only this many questions, spread evenly over their lengths; default: all"
    )
    train_steps: int = Field(
        default=20, ge=3, description="timed optimizer steps per phase, over batches of all lengths"
    )


class AnalysisSpec(Strict):
    """How latents that can be set by hand are analysed. The defaults are the paper's where it states them."""

    questions: int = Field(
        default=200, ge=1, description="questions of each test set that are asked, spread evenly over it"
    )
    active_above: float = Field(default=0.1, description="a dimension is active above this value")
    frequent_share: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="share of all dimensions that count as frequent, the most often active ones",
    )
    frequent_at_least: int = Field(
        default=12, ge=1, description="the fewest dimensions that count as frequent, where that share gives fewer"
    )
    correlated_above: float = Field(
        default=0.9, description="two dimensions are joined by an edge above this Pearson correlation"
    )
    values: tuple[float, ...] = Field(
        default=(0.0, 0.1, 0.5), min_length=1, description="values that a clique is set to"
    )
    samples: int = Field(default=20, ge=1, description="drawn answers per question, for calibration")


class Table(StrEnum):
    """A table by its name, written to ``table_NAME.{md,tex,csv,json}``."""

    main = "main"  # accuracy and costs
    decoding = "decoding"  # accuracy by decoding
    controls = "controls"  # do the latents carry anything?
    stages = "stages"  # accuracy lost and won at each stage of a curriculum
    ablation = "ablation"  # MarCos with other settings, against its own
    nar = "nar"  # speaking without autoregression
    scale = "3b"  # baselines on a larger backbone
    pretrained = "pretrained"  # methods that start from published checkpoints
    synthetic = "synthetic"  # tasks that leave something to chance
    longrange = "longrange"  # copying from an earlier step
    claims = "claims"  # what the paper claims about its numbers


class Figure(StrEnum):
    """A figure by its name, written to ``figures/NAME.{png,pdf,csv,md}``."""

    pareto = "pareto"  # accuracy against test time and training compute
    steps = "steps"  # accuracy by number of steps
    dimensions = "dimensions"  # R of three cases in the first step that uses any; how often each dimension is active
    intervention = "intervention"  # correlated dimensions, and what setting a clique of them does
    cases = "cases"  # outputs before and after dimensions are set
    encoding = "encoding"  # the drawn digit of Random Summation in R, and the steering test
    copied = "copied"  # which step the answers to the long-range copy repeat
    calibration = "calibration"  # the mean of R against one sample and majorities of more
    curves = "curves"  # accuracy on held-out questions while runs trained
    sweeps = "sweeps"  # accuracy against one numeric option at a time
