"""What the stages of a run leave behind: the fields that the tables need, checked when a record is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.files import BrokenRecord, read_json
from benchmarks.scoring.diversity import DrawStatistics
from benchmarks.studies.paths import AT_STAGE
from benchmarks.studies.runs import RunSpec, StageName
from benchmarks.studies.specs import EvaluationSpec


class Record(BaseModel):
    """Fields that the tables need; a record may hold more."""

    model_config = ConfigDict(extra="allow")
    digest: str
    environment: dict[str, Any]

    def missing(self, asked: EvaluationSpec) -> str | None:
        """What a record of this stage should hold and does not."""
        return None


class StageRecord(BaseModel):
    phase: str = ""
    epochs: float | None = None
    warnings: list[str] = []  # of the weights that it selected


class TrainRecord(Record):
    stages: list[StageRecord] = []
    weights_sha256: str | None = None
    parameters: int
    wall_seconds: float
    tokens_per_second: float


class TestScores(BaseModel):
    """Scores of one test set; lists hold one number per decoding seed."""

    n: int
    n_distinct: int
    n_deduplicated: int
    accuracy: list[float] = Field(min_length=1)
    strict: list[float]
    no_answer: list[float]
    deduplicated: list[float] | None  # none where the training data hold every question
    forward_passes_per_question: float
    tokens_per_question: float
    latent_steps: float
    draws: list[DrawStatistics] = []  # of each step that is left to chance


class StageEnd(BaseModel):
    name: str
    steps: int  # of the run, until then
    epochs: float


class DecodingScores(BaseModel):
    stage: StageEnd | None = None  # that the weights come from; older records do not say
    stochastic: bool
    tests: dict[str, TestScores]


class EvaluateRecord(Record):
    weights_sha256: str | None = None  # of the weights that answered; older records do not say
    decodings: dict[str, DecodingScores]  # those of the study, then `at_stage` of each stage whose weights are kept
    predictions: dict[str, str]  # sha256 by decoding
    answered: dict[str, dict[str, Any]] = {}  # by decoding: the environment of answers that were only scored anew

    @property
    def by_stage(self) -> dict[str, tuple[StageEnd, DecodingScores]]:
        """How the default decoding answers by the weights of each stage that were kept, and at last by the final ones;
        by its name in ``decodings``."""
        names = [*(name for name in self.decodings if name.startswith(AT_STAGE)), "default"]
        return {name: (one.stage, one) for name in names if (one := self.decodings[name]).stage}

    def missing(self, asked: EvaluationSpec) -> str | None:
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
    weights_sha256: str | None = None
    other_load: float | None = None  # share of the machine's CPU time; older records do not say
    pace_seconds: float | None = None  # of a fixed piece of work in between; older records do not say
    tests: dict[str, dict[str, TestTimes]]
    train: TrainTimes

    def missing(self, asked: EvaluationSpec) -> str | None:
        gone = [test for test in asked.tests if "answer_only" not in self.tests.get(test, {})]
        return f"times of {gone}" if gone else None


RECORDS: dict[StageName, type[Record]] = {"train": TrainRecord, "evaluate": EvaluateRecord, "time": TimeRecord}


class RunRecords(BaseModel):
    """What the stages of a run left behind, and why a stage's record cannot be used."""

    train: TrainRecord | None = None
    evaluate: EvaluateRecord | None = None
    time: TimeRecord | None = None
    problems: dict[StageName, str] = {}

    def fit(self, spec: RunSpec) -> bool:
        """Whether all records come from this specification."""
        records: dict[StageName, Record | None] = {"train": self.train, "evaluate": self.evaluate, "time": self.time}
        return all(record is None or record.digest == spec.digest(stage) for stage, record in records.items())


def read_records(folder: Path, spec: RunSpec) -> RunRecords:
    """The usable records of one run."""
    records: dict[StageName, Any] = {}
    problems: dict[StageName, str] = {}
    for stage in spec.stages:
        try:
            records[stage] = _read_record(folder / f"{stage}.json", stage, spec)
        except BrokenRecord as error:
            problems[stage] = str(error)
    trained = getattr(records.get("train"), "weights_sha256", None)
    for stage, record in [*records.items()][1:]:
        if trained and record.weights_sha256 not in (None, trained):
            problems[stage] = f"stale {stage}.json: made from other weights; run `{stage}` again"
            del records[stage]
    return RunRecords(**records, problems=problems)


def parsed(path: Path, stage: StageName) -> Record:
    """A run's record, of whatever specification, or :class:`BrokenRecord`."""
    try:
        return RECORDS[stage].model_validate(read_json(path))
    except ValidationError as error:
        raise BrokenRecord(f"{path} is broken ({first_problem(error)}): delete it and run `{stage}` again") from error


def _read_record(path: Path, stage: StageName, spec: RunSpec) -> Record:
    if not path.exists():
        raise BrokenRecord(f"no {path.name}")
    record = parsed(path, stage)
    if record.digest != spec.digest(stage):
        raise BrokenRecord(f"stale {path.name}: made from another specification; run `{stage}` again")
    if missing := record.missing(spec.evaluation):
        raise BrokenRecord(f"{path} lacks {missing}: delete it and run `{stage}` again")
    return record


def first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
