"""Runs: one method, trained on one data set, with one seed. Their names, and the settings that their results depend
on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.files import json_digest
from benchmarks.studies.micro_batches import rows_per_pass
from benchmarks.studies.specs import (
    AnalysisSpec,
    BackboneSpec,
    DataSpec,
    EngineSpec,
    EvaluationSpec,
    Kernels,
    Strict,
    TimingSpec,
    TokenizerSpec,
    TrainingSpec,
)
from benchmarks.studies.validation_errors import validate_settings
from methods.base import added_field
from methods.errors import InputError
from methods.registry import available, get_method

TaskName = Literal["train", "evaluate", "time"]
TASKS: tuple[TaskName, ...] = ("train", "evaluate", "time")
# Fields of a RunSpec that training does not depend on (except max_new_tokens, if accuracy selects the weights: see
# :func:`settings_digest`). ASKED: those that each task's result depends on
MEASURED = ("evaluation", "timing", "timing_threads", "analysis")
ASKED = {
    "train": (),
    "evaluate": ("evaluation",),
    "time": ("evaluation", "timing", "timing_threads"),
    "analyse": ("evaluation", "analysis"),
}


BUDGETS = {"epochs", "tokens"}  # settings of which a training has exactly one


def run_id(block: str, row: str, seed: int) -> str:
    """Return the id of a run, which is also its folder below ``runs``."""
    return f"{block}/{row}/s{seed}"


def row_of(run: str) -> str:
    """Return the row that a run's id names."""
    _, row, _ = run.split("/")
    return row


def override_training(training: TrainingSpec, *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return training settings in which each of ``overrides`` replaces those before it. A budget replaces an earlier
    one, whether in epochs or in tokens."""
    settings = training.model_dump(exclude_unset=True)
    for override in overrides:
        if BUDGETS & override.keys():
            settings = {key: value for key, value in settings.items() if key not in BUDGETS}
        settings |= override
    return settings


def set_path(settings: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return ``settings`` with another value where a dotted ``path`` leads, e.g. ``sparsity.weight``."""
    name, _, rest = path.partition(".")
    if not rest:
        return {**settings, name: value}
    inner = settings.get(name) or {}
    if not isinstance(inner, Mapping):
        raise InputError(f"`{name}` is one value ({inner}), so it has no `{rest}`: leave out what is behind it")
    return {**settings, name: set_path(inner, rest, value)}


class RunSpec(Strict):
    """Everything that determines the result of one run."""

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
    kernels: Kernels = added_field("native")
    timing_threads: int
    analysis: AnalysisSpec = AnalysisSpec()
    starts_from: str | None
    starts_at: str | None = None  # the folder of the run that it starts from, possibly in another study

    def with_decoding_options(self, decoding: str) -> RunSpec:
        """Return the run as it answers under a decoding: with the options that this changes."""
        options = self.options
        for path, value in self.evaluation.decodings[decoding].options.items():
            options = set_path(options, path, value)
        return self.model_copy(update={"options": options})

    def validated(self) -> RunSpec:
        """Return the run itself, or raise an error that names a decoding whose options a trained model cannot take, or
        a training setting that its engine or backbone cannot have."""
        if self.training.validation_questions and self.engine.kind != "process":
            raise InputError(
                f"{self.block}/{self.row}: `validation_questions` are answered by a process that has all weights: set "
                "`engine: {kind: process}`, or leave them out"
            )
        if self.training.lora and not self.backbone.pretrained:
            raise InputError(
                f"{self.block}/{self.row}: `lora` leaves the backbone's weights as they are, and here they are drawn: "
                "name a checkpoint in `backbone: {pretrained: ...}`, or leave `lora` out"
            )
        if self.kernels == "portable" and self.engine.compile:
            raise InputError(
                f"{self.block}/{self.row}: `compile` writes code for this machine's CPU: leave it out, or `kernels: "
                "portable`"
            )
        method = get_method(self.method)
        for name, decoding in self.evaluation.decodings.items():
            if fixed := sorted(decoding.options.keys() - set(method.answering_options)):
                raise InputError(
                    f"{self.block}/{self.row}, decoding {name!r}: a trained {self.method} cannot change `{fixed[0]}` "
                    f"(it can: {', '.join(method.answering_options) or 'none'}); `only` names whom a decoding is for"
                )
            if decoding.options:
                place = f"{self.block}/{self.row}, decoding {name!r}, options"
                validate_settings(method.Options, self.with_decoding_options(name).options, place)
        return self

    @property
    def folder(self) -> str:
        """The folder of the run's files, relative to the results folder."""
        return f"{self.study}/runs/{self.id}"

    @property
    def feature_batch_size(self) -> int:
        """Examples per forward pass when features are computed: the micro-batch, or a whole batch if none is set."""
        return rows_per_pass(self.training.batch_size, 1, self.engine.micro_batch)

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """The tasks that the run goes through."""
        return TASKS if self.timing else TASKS[:-1]

    def same_training_as(self, asked: RunSpec) -> bool:
        """Return whether this run, possibly of another study, is trained like the ``asked`` run, if it :meth:`covers`
        that. Names may differ."""
        named = {"id", "study", "row", "starts_from"}
        ours, theirs = (spec.model_dump(exclude={*named, *MEASURED}) for spec in (self, asked))
        return ours == theirs

    def covers(self, asked: RunSpec) -> bool:
        """Return whether this run, if it is trained like the ``asked`` run, provides all of that run's results."""
        held, wanted, parts = self.evaluation, asked.evaluation, {"tests", "decodings"}
        ours, theirs = (  # a run has the decodings that are meant for its method: other decodings do not matter
            {name: spec.model_copy(update={"only": None}) for name, spec in evaluation.decodings.items()}
            for evaluation in (held, wanted)
        )
        return (
            held.model_dump(exclude=parts) == wanted.model_dump(exclude=parts)
            and set(wanted.tests) <= set(held.tests)
            and theirs.items() <= ours.items()
            and (asked.timing is None or (asked.timing, asked.timing_threads) == (self.timing, self.timing_threads))
            and (asked.analysis == self.analysis or self.steerable_latents is None)
        )

    @property
    def steerable_latents(self) -> str | None:
        """The name of the run's latents that can be set by hand, or None. Without any, it has no analysis."""
        method = get_method(self.method)
        return method.steerable_latents(method.Options.model_validate(self.options))

    def digest(self, task: TaskName | Literal["analyse"]) -> str:
        """Return a digest of exactly the fields that the task's result depends on."""
        return settings_digest(self.model_dump(mode="json"), task)


def settings_digest(run: Mapping[str, Any], task: TaskName | Literal["analyse"]) -> str:
    """Return :meth:`RunSpec.digest` of a run's settings as they were recorded, whatever fields a RunSpec has today."""
    left_out = {"starts_at", *MEASURED} - {*ASKED[task]}  # a path is not a setting: the weights have a digest
    kept = {key: value for key, value in run.items() if key not in left_out}
    if task == "train" and run["training"].get("select_by") == "accuracy":
        kept["max_new_tokens"] = run["evaluation"]["max_new_tokens"]  # of the answers that weights are selected by
    if task == "time":  # only the default decoding is timed
        decodings = {name: value for name, value in run["evaluation"]["decodings"].items() if name == "default"}
        kept["evaluation"] = run["evaluation"] | {"decodings": decodings}
    else:
        kept["engine"] = {"precision": run["engine"]["precision"], **_passes(run)}
    return json_digest(kept)[:16]


def _passes(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide which examples share a pass. They count only if batches are cut and a loss term
    is a statistic of a pass, or if dropout is drawn for each pass, which compiled layers do in their own way."""
    engine, training = run["engine"], run["training"]
    draws = bool(training.get("dropout") or (training.get("lora") or {}).get("dropout"))
    if not draws and (run["method"] not in available() or not get_method(run["method"]).batch_terms):
        return {}
    found: dict[str, Any] = {}
    ranks = engine.get("gpus", 1) * engine.get("nodes", 1)
    if draws and engine.get("compile"):
        found["compile"] = True
    if engine.get("micro_tokens"):
        found["micro_tokens"] = engine["micro_tokens"]
    if engine.get("micro_batch"):
        rows = rows_per_pass(training["batch_size"], ranks, engine["micro_batch"])
        if rows < training["batch_size"]:
            found["micro_batch"] = rows
    elif ranks > 1 and (draws or engine.get("micro_tokens")):  # the number of parts is a multiple of that of ranks
        found["ranks"] = ranks
    return found
