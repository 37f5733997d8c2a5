"""The contents of a study file, as models that refuse unknown keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from methods.base import added_field
from methods.generation import Latents, Tokens

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LONGEST_NAME = 100  # letters: files are named after it, most with something before and behind it, and have 255 at most
Identifier = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)]
Form = Literal["equation", "text", "lines"]


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
    method: str = Field(description="one of `marcos-bench methods`, or of an installed plugin")
    title: str | None = Field(default=None, description="as the table prints it; default: the method's own title")
    indent: bool = Field(default=False, description="an ablation of the row above")
    control: bool = Field(default=False, description="a control row: shown apart, never ranked")
    backbone: BackboneSpec | None = Field(default=None, description="default: the block's, else the study's")
    starts_from: Identifier | None = Field(
        default=None, description="row whose weights it starts from; default: the one with default options"
    )
    options: dict[str, Any] = Field(default={}, description="of the method (`marcos-bench methods NAME`)")
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
