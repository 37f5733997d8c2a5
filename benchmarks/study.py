"""Studies and runs. A study is a grid of runs; a run is one method, trained on one data set, with one seed.

A study is a YAML file (``workflows/config``). Everything that shapes a result is in it; nothing is taken from what
happens to be at hand on a machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

STUDIES = Path(__file__).resolve().parent.parent / "workflows" / "config"

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Form = Literal["equation", "text"]


class StudyError(ValueError):
    """A study that cannot be used: the message names the place and the mend."""


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


class TokenizerSpec(Strict):
    """Named by the study, never by what is at hand. Exactly one of the two."""

    trained: int | None = Field(
        default=None, ge=300, description="size of a byte-level BPE trained on the training split"
    )
    pretrained: str | None = Field(default=None, description="a published tokenizer: qwen2.5, or a folder or hub id")

    @model_validator(mode="after")
    def _exactly_one(self) -> TokenizerSpec:
        if (self.trained is None) == (self.pretrained is None):
            raise ValueError("name exactly one tokenizer: `trained: SIZE` or `pretrained: NAME`")
        return self


class DataSpec(Strict):
    """Training data of a block; validation rows are split off it by a fixed rule."""

    train: str = Field(description="name of a data set")
    form: Form = Field(default="equation", description="whether the steps are equations or sentences")
    validation: int = Field(default=500, ge=1, description="rows split off for validation")
    limit: int | None = Field(default=None, ge=1, description="use the first rows only, counted after the split")
    max_question_tokens: int = Field(default=256, ge=1)


class TrainingSpec(Strict):
    """How a run is optimised. The budget is epochs, or tokens of the training data (question, steps and answer)."""

    epochs: float | None = Field(default=None, gt=0)
    tokens: float | None = Field(default=None, gt=0)
    batch_size: int = Field(default=256, ge=1, description="examples per optimizer step, over all ranks")
    micro_batch_size: int | None = Field(
        default=None, ge=1, description="examples per forward pass; default: batch_size"
    )
    learning_rate: float = Field(default=1e-4, gt=0)
    schedule: Literal["constant", "cosine"] = "constant"
    final_learning_rate_share: float = Field(default=0.1, ge=0, le=1, description="where the cosine ends")
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="bfloat16: autocast over float32 weights"
    )
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
        return value

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


class EngineSpec(Strict):
    kind: Literal["process"] = "process"


class Row(Strict):
    """One row of the tables: a method with options, in the blocks named (default: all)."""

    id: Identifier
    method: str
    title: str | None = Field(default=None, description="as the table prints it; default: the method's own title")
    indent: bool = Field(default=False, description="an ablation of the row above")
    control: bool = Field(default=False, description="a control row: shown apart, never ranked")
    options: dict[str, Any] = {}
    training: dict[str, Any] = Field(default={}, description="training settings that differ from the study's")
    blocks: tuple[str, ...] | None = None


class Block(Strict):
    id: Identifier
    title: str
    data: DataSpec
    training: dict[str, Any] = Field(default={}, description="training settings that differ from the study's")


class Study(Strict):
    """A whole study, as its YAML file gives it."""

    name: Identifier
    title: str
    description: str = ""
    paper: str | None = Field(default=None, description="table of benchmarks/paper.yaml whose setting this study has")
    deviations: tuple[str, ...] = Field(
        default=(), description="where a paper-sized study departs from the paper, and why"
    )
    backbone: BackboneSpec = BackboneSpec()
    tokenizer: TokenizerSpec
    blocks: tuple[Block, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)
    training: TrainingSpec
    evaluation: EvaluationSpec
    timing: TimingSpec = TimingSpec()
    engine: EngineSpec = EngineSpec()
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="training seeds")
    threads: int = Field(
        default=1, ge=1, description="CPU threads of a training or evaluation process; part of the result"
    )
    timing_threads: int = Field(default=2, ge=1, description="CPU threads of a timing process")

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        for kind, ids in (("block", [b.id for b in self.blocks]), ("row", [r.id for r in self.rows])):
            if len(set(ids)) != len(ids):
                raise ValueError(f"two {kind}s have the same id: {ids}")
        known = {block.id for block in self.blocks}
        for row in self.rows:
            if unknown := set(row.blocks or ()) - known:
                raise ValueError(f"row {row.id!r} names unknown blocks {sorted(unknown)}; known: {sorted(known)}")
        return self

    def block(self, id: str) -> Block:
        return next(block for block in self.blocks if block.id == id)

    def row_title(self, row: Row) -> str:
        from methods.base import get_method

        return row.title or get_method(row.method).title

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """All runs by id, warm starts before what starts from them. Skipped settings have no run."""
        from methods.base import get_method

        runs: dict[str, RunSpec] = {}

        def add(block: Block, row: Row, seed: int) -> str | None:
            cls = get_method(row.method)
            options = cls.Options.model_validate(row.options)
            if cls.skip(options, self.setting(block)):
                return None
            id = f"{block.id}/{row.id}/s{seed}"
            if id in runs:
                return id
            start = cls.starts_from(options)
            parent = add(block, self._start_row(start), seed) if start else None
            training = self.training.model_dump(exclude_unset=True)
            for override in (block.training, row.training):
                if {"epochs", "tokens"} & override.keys():
                    training = {k: v for k, v in training.items() if k not in ("epochs", "tokens")}
                training |= override
            runs[id] = RunSpec(
                id=id,
                study=self.name,
                block=block.id,
                row=row.id,
                method=row.method,
                options=options.model_dump(),
                seed=seed,
                backbone=self.backbone,
                tokenizer=self.tokenizer,
                data=block.data,
                training=TrainingSpec.model_validate(training),
                evaluation=self._evaluation_for(row.method),
                timing=self.timing,
                engine=self.engine,
                threads=self.threads,
                timing_threads=self.timing_threads,
                starts_from=parent,
            )
            return id

        for block in self.blocks:
            for row in self.rows:
                if row.blocks is None or block.id in row.blocks:
                    for seed in self.seeds:
                        add(block, row, seed)
        return runs

    def setting(self, block: Block) -> dict[str, Any]:
        """What a method's ``skip`` is asked about."""
        return {
            "form": block.data.form,
            "pretrained": self.backbone.pretrained is not None,
            "backbone": self.backbone.name,
        }

    def skipped(self, block: Block, row: Row) -> str | None:
        """Why a row has no run in a block, or None."""
        from methods.base import get_method

        cls = get_method(row.method)
        return cls.skip(cls.Options.model_validate(row.options), self.setting(block))

    def _start_row(self, method: str) -> Row:
        """The row of a warm start: the method's own row with default options if the study has it."""
        own = [row for row in self.rows if row.method == method and not row.options]
        return own[0] if own else Row(id=method, method=method)

    def _evaluation_for(self, method: str) -> EvaluationSpec:
        """The decodings that are for a method; controls of thoughts are not for one that has none."""
        from methods.base import get_method

        own = {k: v for k, v in self.evaluation.decodings.items() if v.only is None or method in v.only}
        if not get_method(method).has_latents:
            own = {k: v for k, v in own.items() if v.thoughts == "own"}
        return self.evaluation.model_copy(update={"decodings": own})


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
    timing: TimingSpec
    engine: EngineSpec
    threads: int
    timing_threads: int
    starts_from: str | None

    def digest(self, stage: Literal["train", "evaluate", "time"]) -> str:
        """A digest of the fields that the stage's result depends on, and of no others."""
        measured = {"train": (), "evaluate": ("evaluation",), "time": ("evaluation", "timing", "timing_threads")}
        exclude: dict[str, Any] = dict.fromkeys({"evaluation", "timing", "timing_threads"} - set(measured[stage]), True)
        if stage == "time":  # it knows the default decoding alone
            exclude["evaluation"] = {"decodings": self.evaluation.decodings.keys() - {"default"}}
        text = json.dumps(self.model_dump(mode="json", exclude=exclude), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def study_path(name: str) -> Path:
    """The YAML file of a study, given its name or a path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else STUDIES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(shipped())
        raise StudyError(f"no study at {path}: give the path of a YAML file, or one of: {known}")
    return path


def shipped() -> list[str]:
    """Names of the studies that come with the suite."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name: str) -> Study:
    """Read and validate a study, given its name or the path of its YAML file."""
    path = study_path(str(name))
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise StudyError(f"{path} is no YAML: {error}") from error
    return parse_study(content, str(path))


def parse_study(content: Any, place: str) -> Study:
    """Validate the content of a study file, with errors that name place, key and mend."""
    try:
        study = Study.model_validate(content)
        for _ in study.runs:  # resolves methods and their options
            break
    except ValidationError as error:
        raise StudyError("\n".join([f"{place} is no valid study:", *_reasons(error)])) from error
    except KeyError as error:
        raise StudyError(f"{place} is no valid study: {error}") from error
    return study


def _reasons(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"]) or "top level"
        yield f"  {error.title}: {where}: {problem['msg']}"
