"""Read the run records of a study into one tidy data frame.

No row is dropped: if a record is missing, broken or made from another specification, the row says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from benchmarks.archive import refuse_packed
from benchmarks.files import (
    BrokenRecord,
    nonblank_lines,
    read_json,
    read_json_if_intact,
    read_parquet,
    write_json,
    write_text,
)
from benchmarks.records.schema import (
    EvaluateRecord,
    PublishedScores,
    RunRecords,
    TestTimes,
    read_model,
    read_records,
)
from benchmarks.records.statistics import correctness, sample_std
from benchmarks.studies.paths import COLLECTED, DONE, Paths, data_folder
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import Block
from benchmarks.studies.study import Study
from methods.base import added_field

COLUMNS = {  # one row per run, decoding and test set; seconds, bytes, shares of 1
    "study": "string",
    "block": "string",
    "row": "string",
    "title": "string",
    "method": "string",
    "seed": "Int64",  # training seed
    "run": "string",
    "shown": "boolean",  # False: a warm start that is not a row of the tables
    "decoding": "string",
    "test": "string",
    "status": "string",  # done, partial (a task is missing), not run
    "reason": "string",
    "warning": "string",  # problems at the end of training, in this run or in its warm starts
    "dead_latents": "boolean",  # no latent was in use at the end of training: the results are those without latents
    "n": "Int64",
    "n_distinct": "Int64",
    "n_deduplicated": "Int64",
    "stochastic": "boolean",
    "n_seeds": "Int64",  # decoding seeds
    "accuracy_mean": "Float64",
    "accuracy_std": "Float64",  # over decoding seeds; missing if nothing is drawn
    "strict": "Float64",
    "no_answer": "Float64",
    "deduplicated": "Float64",  # accuracy on the questions that are not in the training data
    "follows": "Float64",  # with latents of other questions: answers that are what these are answered
    "forward_passes": "Float64",  # per question
    "tokens_per_question": "Float64",
    "latent_steps": "Float64",
    "test_seconds_median": "Float64",  # over repeats, for `timed_n` questions, answer only
    "test_seconds_spread": "Float64",  # half the range of the repeats; missing for a single repeat
    "all_steps_seconds_median": "Float64",  # the same with steps written; only for methods that can leave them out
    "all_steps_seconds_spread": "Float64",
    "timed_n": "Int64",
    "ms_per_question": "Float64",
    "tokens_per_second": "Float64",
    "peak_memory": "Float64",
    "parameters": "Int64",
    "training_flops": "Float64",  # for the whole budget, warm starts included
    "train_epoch_seconds": "Float64",  # one epoch of each phase, warm starts included
    "train_wall_seconds": "Float64",  # warm starts included
    "train_tokens_per_second": "Float64",  # of this run alone
}

MADE_BY = "`evaluate`, then `collect`"  # what makes a run's frames, for messages


@dataclass(frozen=True, eq=False)  # what was computed of them is kept by their identity
class StudyRecords:
    """The collected records of a study."""

    study: Study
    results: Path  # the folder of all studies' results, in which the runs' answers lie
    runs: Mapping[str, RunRecords]  # by the run's id
    data: Mapping[str, dict[str, Any]]  # the `done.json` of each block's data, by the block's id
    published: Sequence[PublishedScores] = ()  # of the outputs that the study names and that were at hand

    @property
    def folder(self) -> Path:
        """The folder of the study's own results."""
        return self.results / self.study.name

    def test_title(self, test: str) -> str:
        """Return a data set's title, from the cards that were recorded when the data were prepared."""
        cards = (data.get("cards", {}) for data in self.data.values())
        return next((held[test]["title"] for held in cards if test in held), test)

    def paths(self, run: str) -> Paths:
        """Return the paths of a run's files, which another study may have made."""
        return Paths(self.results, self.study.sources[run])

    def evaluations(self, block: str, row: str) -> list[EvaluateRecord]:
        """Return the evaluation records of a row's trainings, as far as there are any."""
        found = (self.runs[run.id].evaluate for run in self.study.trainings(block, row))
        return [record for record in found if record]

    def answers_of(self, run: RunSpec, decoding: str, columns: Sequence[str]) -> pd.DataFrame | None:
        """Return a run's answers, with a column ``training_seed``, or None if none are recorded."""
        record = self.runs[run.id].evaluate
        if not record or decoding not in record.predictions:
            return None
        path, digest = self.paths(run.id).predictions(decoding), record.predictions[decoding]
        return read_parquet(path, digest, MADE_BY, columns).assign(training_seed=run.seed)

    def answers(self, block: str, row: str, decoding: str, columns: Sequence[str]) -> pd.DataFrame | None:
        """Return a row's answers in all of its trainings, or None without any."""
        found = (self.answers_of(run, decoding, columns) for run in self.study.trainings(block, row))
        frames = [frame for frame in found if frame is not None]
        return pd.concat(frames, ignore_index=True) if frames else None

    def correctness(self, block: str, row: str, decoding: str) -> dict[str, pd.DataFrame]:
        """Return by test set which answers of a row are correct: a line per question, a column per training
        (:func:`benchmarks.records.statistics.correctness`). Empty without answers."""
        answers = self.answers(block, row, decoding, ("test", "id", "same_as", "correct"))
        return {} if answers is None else {str(test): correctness(of) for test, of in answers.groupby("test")}

    def log(self, run: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of a run's log, if there is one. Raise :class:`BrokenRecord` if one is broken."""
        path = self.paths(run).log
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for place, line in nonblank_lines(text, path):
            try:
                entry = json.loads(line)  # a loss may be NaN, which `parse_json` refuses
            except json.JSONDecodeError as error:
                fix = "remove the folder, and train this run again"
                raise BrokenRecord(f"{place}: broken JSON ({error.msg}): {fix}") from error
            yield entry

    def nats(self, block: str, row: str) -> pd.DataFrame | None:
        """Return what gold texts cost in all of a row's trainings, with a column ``training_seed``, or None if nothing
        is recorded."""
        frames = [
            read_parquet(self.paths(run.id).nats, record.nats, MADE_BY).assign(training_seed=run.seed)
            for run in self.study.trainings(block, row)
            if (record := self.runs[run.id].evaluate) and record.nats
        ]
        return pd.concat(frames, ignore_index=True) if frames else None


class Collected(BaseModel):
    """The content of ``collect.json``. :class:`StudyRecords` has the same beside the study."""

    study: str
    runs: dict[str, RunRecords]
    data: dict[str, dict[str, Any]]
    published: list[PublishedScores] = added_field([])


def collect(study: Study, results: Path, published: Sequence[PublishedScores] = ()) -> pd.DataFrame:
    """Read all records of a study, write ``collect.json`` and ``frame.csv``, and return the frame. ``published``: the
    scores of the outputs that the study names (:func:`benchmarks.outputs.score_published`)."""
    records = replace(read_study(study, results), published=published)
    frame = to_frame(records)
    write_collected(records)
    write_text(records.folder / "frame.csv", frame.to_csv(index=False))
    return frame


def write_collected(records: StudyRecords) -> None:
    collected = Collected(
        study=records.study.name, runs={**records.runs}, data={**records.data}, published=[*records.published]
    )
    write_json(records.folder / COLLECTED, collected.model_dump(mode="json"))


def read_study(study: Study, results: Path) -> StudyRecords:
    """Read all records of a study from the folders of its runs and data."""
    runs = {id: read_records(results, source) for id, source in study.sources.items()}
    data = {block.id: _data_record(study, block, results) for block in study.blocks}
    return StudyRecords(study, results, runs, data)


def require_records(study: Study, results: Path) -> None:
    """Raise :class:`BrokenRecord` if the folder has no record of the study: most likely it is the wrong folder."""
    refuse_packed(results / study.name)
    if not any(Paths(results, spec).record(task).is_file() for spec in study.sources.values() for task in spec.tasks):
        raise BrokenRecord(
            f"no run of {study.name} has a record in {results.absolute()}: run the study first, or name "
            "the folder that holds its results (--results)"
        )


def load_collected(study: Study, results: Path) -> StudyRecords:
    """Load what ``collect`` wrote for this version of the study. Raise :class:`BrokenRecord` if there is none."""
    records = read_collected(study, results)
    if not all(id in records.runs and records.runs[id].fit(source) for id, source in study.sources.items()):
        raise BrokenRecord(
            f"{records.folder.absolute() / COLLECTED} was made from another version of the study: run "
            f"`{study.command('collect', results)}` again"
        )
    return records


def read_collected(study: Study, results: Path) -> StudyRecords:
    """Read what ``collect`` wrote for any version of the study. Raise :class:`BrokenRecord` if it cannot be read."""
    refuse_packed(results / study.name)
    # An absolute path, so that the error shows if the command runs in the wrong folder
    path, command = results.absolute() / study.name / COLLECTED, study.command("collect", results)
    held = read_model(path, Collected, f"run `{command}` again", f"run `{command}`")
    return StudyRecords(study, results, held.runs, held.data, held.published)


def _data_record(study: Study, block: Block, results: Path) -> dict[str, Any]:
    """Return a block's data record: the study's own, unless all of its runs belong to another study. Where no data are
    prepared, as in results that were unpacked, it is what was collected last. Without one, tables say neither which
    data a block has nor how many, and print test sets by their short names."""
    homes = [source.study for source in study.sources.values() if source.block == block.id]
    home = study.name if study.name in homes or not homes else homes[0]
    try:
        return read_json(data_folder(results, home, block.id) / DONE)
    except BrokenRecord as error:
        for name in (study.name, home):
            held = read_json_if_intact(results / name / COLLECTED).get("data", {}).get(block.id, {})
            if held and "problem" not in held:
                return held
        return {"problem": str(error)}


def to_frame(records: StudyRecords) -> pd.DataFrame:
    """Return a frame with one row per run, decoding and test set, in the study's order. Warm starts that the tables do
    not show come last."""
    study = records.study
    lines = []
    for block in study.blocks:
        for row in study.rows_of(block):
            lines += [line for spec in study.trainings(block.id, row.id) for line in _run_lines(records, spec)]
    emitted = {line["run"] for line in lines}
    for spec in study.runs.values():
        if spec.id not in emitted:  # a warm start of no row, or of a row that this block does not have
            lines += [line | {"shown": False} for line in _run_lines(records, spec)]
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    frame["study"] = study.name
    frame["title"] = frame["row"].map(lambda row: study.row_titles.get(row, row))
    return frame.astype(COLUMNS)


def _run_lines(records: StudyRecords, spec: RunSpec) -> Iterator[dict[str, Any]]:
    record, runs = records.runs[spec.id], [*with_starts(records.study, spec)]
    problems = [*record.problems.values()]
    for run in runs[1:]:  # whether a warm start itself was evaluated does not matter here
        why = [text for task, text in records.runs[run].problems.items() if task != "evaluate"]
        problems += [f"its warm start {run}: {text}" for text in why]
    nothing = len(record.problems) == len(records.study.sources[spec.id].tasks)
    trained = [records.runs[run] for run in runs]
    stages = [stage for run in trained if run.train for stage in run.train.stages]
    warnings = dict.fromkeys(text for stage in stages for text in stage.warnings)
    shared = {
        "block": spec.block,
        "row": spec.row,
        "method": spec.method,
        "seed": spec.seed,
        "run": spec.id,
        "shown": True,
        "status": "done" if not problems else "not run" if nothing else "partial",
        "reason": "; ".join(problems) or None,
        "warning": "; ".join(warnings) or None,
        "dead_latents": any(stage.dead_latents for stage in stages) if stages else None,
        **_training(trained),
    }
    for decoding in spec.evaluation.decodings:
        for test in spec.evaluation.tests:
            timed = _timing(record, test) if decoding == "default" else {}  # no other decoding is timed
            yield {**shared, "decoding": decoding, "test": test, **_scores(record, decoding, test), **timed}


def with_starts(study: Study, spec: RunSpec) -> Iterator[str]:
    """Yield the ids of a run, of the run it starts from, and so on."""
    yield spec.id
    if spec.starts_from:
        yield from with_starts(study, study.runs[spec.starts_from])


def _training(chain: list[RunRecords]) -> dict[str, Any]:
    """Return the costs of training, summed over the run and its warm starts. A sum with an unknown part is left out."""
    values: dict[str, Any] = {}
    trained = [records.train for records in chain if records.train]
    timed = [records.time.train for records in chain if records.time]
    if own := chain[0].train:
        values |= {"parameters": own.parameters, "train_tokens_per_second": own.tokens_per_second}
    if len(trained) == len(chain):
        values["train_wall_seconds"] = sum(record.wall_seconds for record in trained)
    if len(timed) == len(chain):
        phases = [phase for times in timed for phase in times.phases.values()]
        values["train_epoch_seconds"] = sum(phase.epoch_seconds for phase in phases)
        values["training_flops"] = sum(times.training_flops for times in timed)
    return values


def _scores(records: RunRecords, decoding: str, test: str) -> dict[str, Any]:
    if records.evaluate is None:
        return {}
    scored = records.evaluate.decodings[decoding]
    scores = scored.tests[test]
    return {
        "n": scores.n,
        "n_distinct": scores.n_distinct,
        "n_deduplicated": scores.n_deduplicated,
        "stochastic": scored.stochastic,
        "n_seeds": len(scores.accuracy),
        "accuracy_mean": _mean(scores.accuracy),
        "accuracy_std": sample_std(scores.accuracy) if scored.stochastic else None,
        "strict": _mean(scores.strict),
        "no_answer": _mean(scores.no_answer),
        "deduplicated": _mean(scores.deduplicated) if scores.deduplicated else None,
        "follows": _mean(scores.follows) if scores.follows else None,
        "forward_passes": scores.forward_passes_per_question,
        "tokens_per_question": scores.tokens_per_question,
        "latent_steps": scores.latent_steps,
    }


def _timing(records: RunRecords, test: str) -> dict[str, Any]:
    if records.time is None:
        return {}
    modes = records.time.tests[test]
    answer = modes["answer_only"]
    median, half = _repeats(answer)
    values = {
        "test_seconds_median": median,
        "test_seconds_spread": half,
        "timed_n": answer.n,
        "ms_per_question": 1000 * median / answer.n,
        "tokens_per_second": answer.tokens_per_second,
        "peak_memory": answer.peak_memory_bytes,
    }
    if "all_steps" in modes:
        median, half = _repeats(modes["all_steps"])
        values |= {"all_steps_seconds_median": median, "all_steps_seconds_spread": half}
    return values


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _repeats(times: TestTimes) -> tuple[float, float | None]:
    """Return the median and half the range of the timed repeats (None for a single repeat)."""
    half = float(np.ptp(times.seconds)) / 2 if len(times.seconds) > 1 else None
    return float(np.median(times.seconds)), half
