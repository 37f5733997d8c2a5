"""The settings of a study, as models that refuse unknown keys: data, backbone, engine, training, evaluation, timing,
analysis, and the names of tables and figures."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from methods.base import added_field
from methods.generation import Latents, Tokens

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LONGEST_NAME = 100  # letters: files are named after it, most with something before and behind it, and have 255 at most
Identifier = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)]
Form = Literal["equation", "text", "lines"]
Kernels = Literal["native", "portable"]
Offload = Literal["none", "optimizer", "weights"]
Beta = Annotated[float, Field(ge=0, lt=1)]


def _several(names: Any) -> Any:
    """Turn a single name into a tuple of it, and null into an empty tuple."""
    if names is None or isinstance(names, str):
        return (names,) if names else ()
    return tuple(names) if isinstance(names, list) else names


FROM_ENVIRONMENT = re.compile(r"\$\{(\w+):-(.+)\}")


def _from_environment(name: Any) -> Any:
    """Replace ``${VARIABLE:-HUB_ID}`` by the folder that an environment variable names, or else by the hub id."""
    found = FROM_ENVIRONMENT.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        return name
    folder = os.environ.get(found[1])
    if folder and not os.path.isdir(folder):
        raise ValueError(f"{found[1]} names {folder}, which is no folder: unset it to take {found[2]} from the hub")
    return folder or found[2]


def _of_the_hub(revision: str | None, info: ValidationInfo) -> str | None:
    """Drop the revision if a folder stands in for the hub's checkpoint: it would name what was not used."""
    return None if os.path.isdir(info.data.get("pretrained") or "") else revision


Revision = Annotated[str | None, AfterValidator(_of_the_hub)]
Pretrained = Annotated[str | None, BeforeValidator(_from_environment, json_schema_input_type=str | None)]
Names = Annotated[tuple[str, ...], BeforeValidator(_several, json_schema_input_type=str | tuple[str, ...] | None)]


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BackboneSpec(Strict):
    """A causal language model: an architecture from scratch, or a pretrained checkpoint."""

    name: str = Field(default="qwen2-tiny", description="name of an architecture in methods/backbone.py")
    pretrained: Pretrained = Field(
        default=None,
        description="checkpoint to start from: a folder or a hub id; ${VARIABLE:-HUB_ID} is the folder that an "
        "environment variable names, if it is set",
    )
    revision: Revision = Field(default=None, description="revision (commit) of the hub checkpoint")
    overrides: dict[str, bool | int | float | str] = Field(
        default={}, description="changes to the Hugging Face configuration, by field"
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
        description="vocabulary size of a byte-level BPE trained on the training split, or `words`: one token per word",
    )
    pretrained: Pretrained = Field(
        default=None,
        description="published tokenizer: qwen2.5, llama-3.2, gpt2, a folder or a hub id, or ${VARIABLE:-HUB_ID}",
    )
    revision: Revision = added_field(None, description="revision (commit) of a hub tokenizer")

    @model_validator(mode="after")
    def _consistent(self) -> TokenizerSpec:
        if (self.trained is None) == (self.pretrained is None):
            raise ValueError("name exactly one tokenizer: `trained: SIZE`, `trained: words` or `pretrained: NAME`")
        if self.revision and not self.pretrained:
            raise ValueError("`revision` is a published tokenizer's: name that as `pretrained`, or leave it out")
        return self


class DataSpec(Strict):
    """Training data of a block; validation rows are split off it by a fixed rule, or are a data set of their own."""

    train: str = Field(description="name of a data set")
    form: Form = Field(default="equation", description="form of the steps: equations, sentences or lines")
    validation: int = Field(default=500, ge=1, description="rows split off for validation")
    validation_set: str | None = added_field(
        None,
        description="data set whose test split validates, in place of rows split off; no test set of the block. "
        "Training rows with one of its questions are left out",
    )
    limit: int | None = Field(
        default=None, ge=1, description="train on the first rows only, this many, after the validation split"
    )
    max_question_tokens: int = Field(default=256, ge=1, description="leave out rows with longer questions")

    @property
    def held_out(self) -> str:
        """The data set that validation rows are of."""
        return self.validation_set or self.train


class DecodingSpec(Strict):
    """One way of decoding that is evaluated. ``seeds`` beyond the first count only if the method samples."""

    tokens: Tokens = Field(default="greedy", description="how tokens are chosen")
    latents: Latents | Literal["encoded"] = Field(
        default="default",
        description="sample latents or use their mean; default: the method's usual way; encoded: those into which "
        "training encodes the gold steps and answer, the most that perfect draws could reach (rows that encode none "
        "are left out)",
    )
    thoughts: Literal["own", "exchanged", "mean"] = Field(
        default="own", description="control: answer with a question's own latents, another question's, or their mean"
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        description="temperature of sampled tokens; also scales the standard deviation of sampled latents",
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="nucleus sampling: sample from the most likely tokens of this total probability",
    )
    seeds: int = Field(
        default=5, ge=1, description="number of decoding seeds (0, 1, ...), one answer per question each"
    )
    only: tuple[str, ...] | None = Field(default=None, description="methods to decode this way; default: all")
    options: dict[str, Any] = added_field(
        {},
        description="method options to override, of those that can change without retraining; `base.num_latents`: one "
        "of a nested option",
    )

    @model_validator(mode="after")
    def _top_p_needs_sampling(self) -> DecodingSpec:
        if self.top_p < 1 and self.tokens == "greedy":
            raise ValueError("`top_p` is for tokens that are drawn: set `tokens: sample`, or leave it out")
        return self


class EvaluationSpec(Strict):
    tests: tuple[str, ...] = Field(min_length=1, description="data sets to test on")
    batch_size: int = Field(default=64, ge=1, description="questions per batch")
    max_new_tokens: int = Field(default=128, ge=1, description="maximum length of a generated answer")
    decodings: dict[Identifier, DecodingSpec] = Field(
        default={"default": DecodingSpec()},
        min_length=1,
        description="decodings by name; the main table shows `default`",
    )
    nats: int = added_field(
        0,
        ge=0,
        description="validation rows, spread evenly, whose gold steps and answer are scored in nats; 0: none",
    )

    @field_validator("decodings")
    @classmethod
    def _check_default(cls, value: dict[str, DecodingSpec]) -> dict[str, DecodingSpec]:
        if "default" not in value:
            raise ValueError("one decoding must be named `default`: the main table shows it")
        if value["default"].only is not None:
            raise ValueError("`default` is for all methods: leave out its `only`")
        if value["default"].options:
            raise ValueError("`default` answers by the run's own options: leave out its `options`")
        if value["default"].latents == "encoded":
            raise ValueError("`default` answers without the gold steps: give `latents: encoded` to another decoding")
        if value["default"].thoughts != "own":
            raise ValueError("`default` answers with a question's own latents: give `thoughts` to another decoding")
        compared = {"tokens", "latents", "temperature", "top_p", "options"}
        default = value["default"].model_dump(include=compared)
        for name, spec in value.items():
            if spec.thoughts != "own" and spec.model_dump(include=compared) != default:
                raise ValueError(f"`{name}` is compared with `default`: it may differ in `thoughts` and `seeds` only")
        return value

    @model_validator(mode="after")
    def _controls_have_another_question(self) -> EvaluationSpec:
        if self.batch_size == 1 and (found := [n for n, spec in self.decodings.items() if spec.thoughts != "own"]):
            raise ValueError(
                f"`{found[0]}` takes the latents of other questions of a batch: `batch_size` must be at least 2"
            )
        return self


class EngineSpec(Strict):
    """What computes the steps of a run. Only ``precision`` affects the results, so a run that was started on one number
    of GPUs may be resumed on another. Exceptions: how a batch is split (``micro_batch``, ``micro_tokens``, the
    number of GPUs) matters for methods with ``batch_terms`` and with dropout. With ``micro_batch`` set, the number of
    GPUs does not. With dropout, ``compile`` matters too."""

    kind: Literal["process", "deepspeed"] = Field(
        default="process", description="process: one process on one device; deepspeed: one rank per GPU"
    )
    gpus: int = Field(default=1, ge=1, description="ranks per node, one per GPU; without GPUs they share the CPU")
    nodes: int = Field(default=1, ge=1, description="number of machines")
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=0,
        description="ZeRO stage, which partitions across ranks: 1 optimizer states, 2 also gradients, 3 also weights",
    )
    offload: Offload = Field(
        default="none", description="what to offload to CPU memory; weights: both weights and optimizer states"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="precision of training, evaluation and timing; bfloat16: autocast with float32 weights",
    )
    micro_batch: int | None = Field(
        default=None,
        ge=1,
        description="examples per forward pass on each rank; default: the rank's whole share of the batch",
    )
    micro_tokens: int | None = added_field(
        None,
        ge=1,
        description="upper limit on examples x tokens of the longest example (question, steps and answer) per training "
        "or validation pass: batches of long examples are split further",
    )
    activation_checkpointing: bool = Field(
        default=False, description="recompute activations in the backward pass instead of storing them"
    )
    compile: bool = added_field(
        False,
        description="compile the transformer layers: needs a C compiler (on a CPU: C++) and up to a minute first; "
        "with a KV cache, attention stays uncompiled; in training, so do latent steps",
    )
    hang_seconds: float = Field(
        default=900,
        gt=0,
        description="seconds without progress after which all ranks are stopped and the hanging one is named",
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

    id: Identifier = Field(description="name in run ids and folders")
    method: str = Field(description="a method listed by `marcos-bench list methods`, installed plugins included")
    # matplotlib leaves labels that begin with an underscore out of legends
    title: str | None = Field(default=None, pattern="^[^_]", description="title in tables; default: the method's title")
    indent: bool = Field(default=False, description="indent the row in tables, as an ablation of a row above")
    control: bool = Field(default=False, description="control: shown separately and never ranked")
    backbone: BackboneSpec | None = Field(default=None, description="default: the block's backbone, else the study's")
    starts_from: Identifier | None = Field(
        default=None,
        description="row to take the initial weights from; default: the start method's row with default options",
    )
    options: dict[str, Any] = Field(
        default={}, description="method options (listed by `marcos-bench list methods NAME`)"
    )
    training: dict[str, Any] = Field(default={}, description="overrides of the study's training settings")
    engine: dict[str, Any] = Field(default={}, description="overrides of the study's engine settings")
    decodings: dict[Identifier, DecodingSpec] = Field(
        default={}, description="the study's decodings to replace in this row, by name"
    )
    blocks: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="blocks to train the row in; default: all"
    )


class Block(Strict):
    """A part of the tables: training data, and the rows that are trained on them."""

    id: Identifier = Field(description="name in run ids and folders")
    title: str = Field(description="title in tables")
    data: DataSpec
    backbone: BackboneSpec | None = Field(default=None, description="default: that of the study")
    tokenizer: TokenizerSpec | None = Field(default=None, description="default: that of the study")
    training: dict[str, Any] = Field(
        default={}, description="overrides of the training settings of the study and its rows"
    )
    options: dict[str, dict[str, Any]] = Field(
        default={}, description="overrides of the rows' options, by method; a nested mapping is replaced as a whole"
    )
    tests: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="test sets for the runs of this block; default: all"
    )


class LoraSpec(Strict):
    """Low-rank adapters of the linear layers named: they, and markers, are trained in the place of all weights."""

    rank: int = Field(ge=1, description="rank of the adapters")
    alpha: float = Field(gt=0, description="the adapters' output is scaled by alpha / rank")
    modules: tuple[str, ...] = Field(min_length=1, description="linear layers to adapt, such as q_proj and v_proj")
    dropout: float = added_field(0.0, ge=0, lt=1, description="dropout on the adapters' input during training")

    @field_validator("modules")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            raise ValueError(f"{twice[0]} is named twice: a layer has one adapter")
        return value


class TrainingSpec(Strict):
    """How a run is optimised. The budget is epochs, or tokens of the training data (question, steps and answer)."""

    epochs: float | None = Field(default=None, gt=0, description="training budget in epochs (give this or `tokens`)")
    tokens: float | None = Field(
        default=None, gt=0, description="training budget in tokens of the data (give this or `epochs`)"
    )
    batch_size: int = Field(default=256, ge=1, description="examples per optimizer step, summed over ranks")
    group_by_length: bool = added_field(
        True,
        description="batch rows of similar length, which pads least; false: random batches. Where length tells the "
        "number of steps, a batch of one length is a gradient for one number of steps alone",
    )
    learning_rate: float = Field(default=1e-4, gt=0, description="peak learning rate of AdamW")
    schedule: Literal["constant", "cosine"] = Field(
        default="constant", description="learning rate schedule of each phase, after `warmup_steps`"
    )
    final_learning_rate_share: float = Field(
        default=0.1, ge=0, le=1, description="where the cosine schedule ends, as a fraction of `learning_rate`"
    )
    warmup_steps: int = Field(default=0, ge=0, description="warm-up steps at the start of each phase")
    weight_decay: float = Field(default=0.01, ge=0, description="weight decay of AdamW")
    decays: Literal["all", "matrices"] = added_field(
        "all", description="parameters that weight decay applies to; matrices: all but biases and norm weights"
    )
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), description="betas of AdamW")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="clip gradients to this norm; null: no clipping")
    validations: int = Field(
        default=5, ge=1, description="validations per stage that selects its weights; other stages have one"
    )
    validation_questions: int = added_field(
        0,
        ge=0,
        description="held-out questions to answer greedily at each validation, for an accuracy curve in the log",
    )
    select_by: Literal["loss", "accuracy"] = added_field(
        "loss",
        description="criterion for selecting weights; accuracy: on the `validation_questions`, ties broken by the loss "
        "(by the loss alone in stages whose weights cannot answer)",
    )
    dropout: float = added_field(
        0.0, ge=0, lt=1, description="dropout during training, wherever the architecture has it"
    )
    lora: LoraSpec | None = added_field(
        None,
        description="train low-rank adapters and keep the checkpoint's weights frozen, except for the embeddings of "
        "markers; default: train all weights",
    )
    log_every: int = Field(default=10, ge=1, description="optimizer steps between lines of `log.jsonl`")
    checkpoint_seconds: float = Field(default=60.0, ge=0, description="seconds between checkpoints")
    keep_stages: bool = added_field(
        False,
        description="keep the final weights of each curriculum stage and evaluate them with the default decoding "
        "(`table_stages`)",
    )

    @property
    def draws(self) -> bool:
        """Whether a training pass draws random numbers of the global generator: those of dropout."""
        return bool(self.dropout or (self.lora and self.lora.dropout))

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSpec:
        if (self.epochs is None) == (self.tokens is None):
            raise ValueError("give exactly one budget: `epochs` or `tokens`")
        if self.select_by == "accuracy" and not self.validation_questions:
            raise ValueError("`select_by: accuracy` needs answers: give a number of `validation_questions`")
        return self


class TimingSpec(Strict):
    """Settings of timing, which runs alone on the machine."""

    batch_size: int = Field(default=64, ge=1, description="questions per batch")
    repeats: int = Field(default=5, ge=1, description="number of timed passes over each test set")
    questions: int | None = Field(
        default=None, ge=1, description="time a subset of this many questions, evenly spaced by length; default: all"
    )
    train_steps: int = Field(
        default=20, ge=3, description="number of timed optimizer steps per phase, over batches of all lengths"
    )


class AnalysisSpec(Strict):
    """How latents that can be set by hand are analysed. The defaults are the paper's where it states them."""

    questions: int = Field(default=200, ge=1, description="number of questions per test set, evenly spaced")
    active_above: float = Field(default=0.1, description="threshold above which a dimension counts as active")
    frequent_share: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="fraction of dimensions, the most often active ones, that count as frequent",
    )
    frequent_at_least: int = Field(default=12, ge=1, description="minimum number of frequent dimensions")
    correlated_above: float = Field(
        default=0.9, description="Pearson correlation above which two dimensions are joined by an edge"
    )
    values: tuple[float, ...] = Field(
        default=(0.0, 0.1, 0.5), min_length=1, description="values to set the dimensions of a clique to"
    )
    samples: int = Field(default=20, ge=1, description="sampled answers per question, for calibration")


class Comparisons(Strict):
    """The pairs of rows that a study sets out to compare, named before its test questions are answered.

    Their tests are corrected for these pairs alone; every other pair counts as looked up afterwards. So neighbours in
    rank can be planned by a ranking that is known before (``ranking``), and never by that of the study's own test
    questions, which would choose the pairs by what is then tested.
    """

    against: dict[Identifier, tuple[Identifier, ...]] = Field(
        default={}, description="by row, such as a control: the rows that are each compared with it"
    )
    ranking: tuple[Identifier, ...] = Field(
        default=(),
        description="rows as validation questions or an earlier study rank them (never this study's test questions), "
        "each of which is compared with the next",
    )
    pairs: tuple[tuple[Identifier, Identifier], ...] = Field(default=(), description="other pairs of rows")

    @property
    def planned(self) -> tuple[tuple[str, str], ...]:
        """All pairs. A difference is that of the first row minus the second."""
        against = ((row, other) for other, rows in self.against.items() for row in rows)
        return (*against, *pairwise(self.ranking), *self.pairs)

    @model_validator(mode="after")
    def _each_once(self) -> Comparisons:
        if twice := sorted({row for row in self.ranking if self.ranking.count(row) > 1}):
            raise ValueError(f"row {twice[0]!r} is twice in `ranking`: a row has one rank")
        seen: set[frozenset[str]] = set()
        for a, b in self.planned:
            if a == b:
                raise ValueError(f"row {a!r} is compared with itself: name two rows")
            if {a, b} in seen:
                raise ValueError(f"rows {a!r} and {b!r} are compared twice: leave the pair out in one place")
            seen.add(frozenset((a, b)))
        if not seen:
            raise ValueError("no two rows are compared: name them in `against`, `ranking` or `pairs`")
        return self


class PublishedRow(Strict):
    """What somebody else's model answered, as published: a row of `main` or `3b` that was not trained here, and that is
    never ranked. Answers are scored as those of the study's own runs are."""

    title: str = Field(description="title in tables")
    source: str = Field(description="where the outputs come from: address and version, or citation")
    outputs: dict[str, str] = Field(
        min_length=1,
        description="by test set: file of outputs, as `marcos-bench score` takes it, relative to the study's file; "
        "${VARIABLE}/FILE is in the folder that an environment variable names, and is not shown if that is not set",
    )


class Table(StrEnum):
    """A table by its name, written to ``table_NAME.{md,tex,csv,json}``."""

    main = "main"  # accuracy and costs
    comparisons = "comparisons"  # the comparisons that a study plans, and all others
    decoding = "decoding"  # accuracy by decoding
    controls = "controls"  # do the latents carry anything?
    nats = "nats"  # what gold texts cost, and accuracy with the latents that encode them
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

    overview = "overview"  # accuracy by number of steps, and against test time: the first image of the report
    pareto = "pareto"  # accuracy against test time and training compute
    steps = "steps"  # accuracy by number of steps
    latents_curve = "latents_curve"  # accuracy of a trained model against the number of latents that it answers with
    dimensions = "dimensions"  # R of three cases in the first step that uses any; how often each dimension is active
    intervention = "intervention"  # correlated dimensions, and what setting a clique of them does
    encoding = "encoding"  # the drawn digit of Random Summation in R, and the steering test
    draws = "draws"  # what R encodes of what a step draws, and whether speaking and thinking read its draws alike
    copied = "copied"  # which step the answers to the long-range copy repeat
    calibration = "calibration"  # the mean of R against one sample and majorities of more
    curves = "curves"  # accuracy on held-out questions while runs trained
    sweeps = "sweeps"  # accuracy against one numeric option at a time
