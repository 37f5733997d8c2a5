"""The records that the tasks of a run write: the fields that the tables need, validated when a record is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.files import BrokenRecord, read_json
from benchmarks.scoring.diversity import DrawStatistics
from benchmarks.studies.paths import AT_STAGE, Paths
from benchmarks.studies.runs import RunSpec, TaskName
from benchmarks.studies.specs import EvaluationSpec

M = TypeVar("M", bound=BaseModel)


class Record(BaseModel):
    """The fields that the tables need. A record may have more."""

    model_config = ConfigDict(extra="allow")
    digest: str
    environment: dict[str, Any]

    def missing(self, asked: EvaluationSpec) -> str | None:
        """Describe what the record lacks for the evaluation that was asked for, or return None."""
        return None


class StageRecord(BaseModel):
    phase: str
    epochs: float
    warnings: list[str]  # about the weights that the stage selected
    dead_latents: bool = False  # of these weights: no latent is in use (`Method.dead_latents`)


class TrainRecord(Record):
    key: str  # what the weights depend on
    spec: dict[str, Any]  # of the study that made the run
    data: dict[str, Any]
    stages: list[StageRecord]
    weights_sha256: str
    parameters: int
    wall_seconds: float
    tokens_per_second: float

    @property
    def ranks(self) -> int:
        """The number of ranks that the run was trained on."""
        return self.spec["engine"]["gpus"] * self.spec["engine"]["nodes"]

    @property
    def held_out(self) -> int:
        """The number of validation rows."""
        return self.data["counts"]["validation"]


class TestScores(BaseModel):
    """Scores on one test set. Lists have one number per decoding seed."""

    n: int
    n_distinct: int
    n_deduplicated: int
    accuracy: list[float] = Field(min_length=1)
    strict: list[float]
    no_answer: list[float]
    deduplicated: list[float] | None  # None if every question is in the training data
    follows: list[float] | None = None  # answers that are those of the question whose latents they were given
    forward_passes_per_question: float
    tokens_per_question: float
    latent_steps: float
    draws: list[DrawStatistics]  # one per step that is left to chance


class StageEnd(BaseModel):
    name: str
    steps: int  # of the whole run, up to the end of this stage
    epochs: float


class DecodingScores(BaseModel):
    stage: StageEnd | None = None  # the stage that the weights come from; missing in older records
    stochastic: bool
    tests: dict[str, TestScores]


class ScoredBy(BaseModel):
    """The scorer of a test set."""

    name: str
    version: str


class PublishedScores(BaseModel):
    """Scores of what somebody else's model answered, on one test set; shares of 1."""

    title: str
    source: str  # as the study names it; empty if the outputs are no part of a study
    test: str
    file: str  # without its folder
    sha256: str
    scorer: ScoredBy
    n: int  # questions that have an output
    n_distinct: int
    of: int  # questions of the test set
    unmatched: int  # lines that answer none of them
    accuracy: float
    low: float  # 95 % interval
    high: float
    strict: float
    no_answer: float


class EvaluateRecord(Record):
    weights_sha256: str  # of the evaluated weights
    scorers: dict[str, ScoredBy]  # by test set
    decodings: dict[str, DecodingScores]  # the study's, then a `default@N` for each stage whose weights were kept
    predictions: dict[str, str]  # sha256 by decoding
    nats: str | None = None  # sha256 of the nats of validation rows, if the study asks for them
    answered: dict[str, dict[str, Any]] = {}  # by decoding: the environment that produced answers only rescored here

    @property
    def by_stage(self) -> dict[str, tuple[StageEnd, DecodingScores]]:
        """The default decoding's scores with each stage's kept weights and, last, with the final weights, by their
        names in ``decodings``."""
        names = [*(name for name in self.decodings if name.startswith(AT_STAGE)), "default"]
        return {name: (one.stage, one) for name in names if (one := self.decodings[name]).stage}

    def missing(self, asked: EvaluationSpec) -> str | None:
        if asked.nats and self.nats is None:
            return "nats"
        if gone := set(asked.decodings) - (self.decodings.keys() & self.predictions.keys()):
            return f"decodings {sorted(gone)}"
        gone = {test for scores in self.decodings.values() for test in set(asked.tests) - scores.tests.keys()}
        return f"tests {sorted(gone)}" if gone else None


class TestTimes(BaseModel):
    seconds: list[float] = Field(min_length=1)  # one per repeat
    n: int
    tokens_per_second: float
    peak_memory_bytes: float | None


class PhaseTimes(BaseModel):
    epoch_seconds: float


class TrainTimes(BaseModel):
    phases: dict[str, PhaseTimes]
    training_flops: float


class TimeRecord(Record):
    weights_sha256: str
    other_load: float  # other processes' share of the machine's CPU time
    pace_seconds: float  # of a fixed piece of work between measurements
    tests: dict[str, dict[str, TestTimes]]
    train: TrainTimes

    def missing(self, asked: EvaluationSpec) -> str | None:
        gone = [test for test in asked.tests if "answer_only" not in self.tests.get(test, {})]
        return f"times of {gone}" if gone else None


RECORDS: dict[TaskName, type[Record]] = {"train": TrainRecord, "evaluate": EvaluateRecord, "time": TimeRecord}


class RunRecords(BaseModel):
    """The records of a run's tasks, and for each record that cannot be used the reason why."""

    train: TrainRecord | None = None
    evaluate: EvaluateRecord | None = None
    time: TimeRecord | None = None
    problems: dict[TaskName, str] = {}

    @property
    def tasks(self) -> dict[TaskName, Record]:
        """The records that can be used, by task."""
        return {task: record for task in RECORDS if (record := getattr(self, task))}

    def fit(self, spec: RunSpec) -> bool:
        """Return whether all records come from this specification."""
        return all(record.digest == spec.digest(task) for task, record in self.tasks.items())


def read_records(results: Path, spec: RunSpec) -> RunRecords:
    """Read the usable records of one run, and the problems of the others."""
    paths = Paths(results, spec)
    records: dict[TaskName, Any] = {}
    problems: dict[TaskName, str] = {}
    for task in spec.tasks:
        try:
            records[task] = _read_record(paths.record(task), task, spec)
        except BrokenRecord as error:
            problems[task] = str(error)
    if trained := records.get("train"):
        for task, record in [*records.items()][1:]:
            if record.weights_sha256 != trained.weights_sha256:
                problems[task] = f"stale {task}.json: made from other weights; run `{task}` again"
                del records[task]
    return RunRecords(**records, problems=problems)


def read_model(path: Path, model: type[M], again: str, missing: str = "run the task that writes it") -> M:
    """Read a JSON file that has the form of ``model``. Raise :class:`BrokenRecord` if it is unreadable: ``missing``
    tells what to do without a file, ``again`` with a broken one."""
    try:
        return model.model_validate(read_json(path, missing))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise BrokenRecord(f"{path} is broken ({where}: {problem['msg']}): {again}") from error


def parsed(path: Path, task: TaskName) -> Record:
    """Read a run's record, whatever specification it was made from. Raise :class:`BrokenRecord` if it is unreadable."""
    return read_model(path, RECORDS[task], f"delete it and run `{task}` again")


def _read_record(path: Path, task: TaskName, spec: RunSpec) -> Record:
    if not path.exists():
        raise BrokenRecord(f"no {path.name}")
    record = parsed(path, task)
    if record.digest != spec.digest(task):
        raise BrokenRecord(f"stale {path.name}: made from another specification; run `{task}` again")
    if missing := record.missing(spec.evaluation):
        raise BrokenRecord(f"{path} lacks {missing}: delete it and run `{task}` again")
    return record
