"""Recompute recorded scores from the predictions, and bring records up to the scorers of today."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from benchmarks.archive import refuse_packed
from benchmarks.data import load_records
from benchmarks.evaluation.task import means
from benchmarks.files import BrokenRecord, read_json, read_parquet, write_json, write_parquet, write_text
from benchmarks.processes.locks import RunLock
from benchmarks.records.provenance import outdated_scorers
from benchmarks.records.results import read_collected, to_frame, write_collected
from benchmarks.records.schema import EvaluateRecord, ScoredBy, parsed
from benchmarks.scoring.diversity import draw_statistics
from benchmarks.scoring.scorers import score_frame, scorer_of, versions
from benchmarks.studies.paths import COLLECTED, Paths
from benchmarks.studies.specs import Form, Table
from benchmarks.studies.study import Study
from benchmarks.tables.render import rendered

CLOSE = 1e-9  # smaller differences come from sums in another order


def wrong_answers(record: dict[str, Any], paths: Paths, form: Form) -> Iterator[str]:
    """Yield what is wrong with the predictions' digests, the score of each answer, and the mean scores in a record of
    evaluate."""
    if record.get("nats"):
        try:
            read_parquet(paths.nats, record["nats"], "`evaluate`")
        except BrokenRecord as error:
            yield str(error)
    for name, digest in record["predictions"].items():
        path = paths.predictions(name)
        if name not in record["decodings"]:
            yield f"no scores of {path.name} are recorded"
            continue
        try:
            frame = read_parquet(path, digest, "`evaluate`")
        except BrokenRecord as error:
            yield str(error)
        else:
            yield from _scores(name, frame, form)
            for test, recorded in record["decodings"][name]["tests"].items():
                yield from _means(f"{name}, {test}", frame.loc[frame["test"] == test], recorded)


def _scores(name: str, frame: pd.DataFrame, form: Form) -> Iterator[str]:
    again = score_frame(frame.assign(question=_questions(frame, form)))
    for column in again:
        old, values = (_plain(one, column) for one in (frame, again))
        wrong = frame.loc[(old != values) & ~(old.isna() & values.isna())]
        if len(wrong):
            first = wrong.iloc[0]
            yield (
                f"{name}: `{column}` of {len(wrong)} answers is not what the scorer says, first {first['test']} "
                f"{first['id']}, seed {first['seed']}"
            )


def _plain(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return a column with comparable values: lists, which are arrays when they are read back, become tuples."""
    values = [tuple(value) if isinstance(value, list | np.ndarray) else value for value in frame[column].tolist()]
    return pd.Series(values, index=frame.index, dtype="object")


def _questions(frame: pd.DataFrame, form: Form) -> list[str]:
    """Return the question of each answer. Only questions that their scorer reads are loaded; others are empty."""
    scorers = {test: scorer_of(test) for test in frame["test"].unique()}
    read = {test: scorer.reads_steps or scorer.reads_question for test, scorer in scorers.items()}
    texts = {test: _texts(test, form) if needed else {} for test, needed in read.items()}
    return [texts[test].get(id, "") for test, id in zip(frame["test"], frame["id"], strict=True)]


@lru_cache(maxsize=8)
def _texts(test: str, form: Form) -> dict[str, str]:
    """Return the questions of a test set by their ids: generating them can take longer than scoring their answers."""
    return {record.id: record.question for record in load_records(test, form, "test")}


def _means(place: str, frame: pd.DataFrame, recorded: dict[str, Any]) -> Iterator[str]:
    for key, found in means(frame).items():
        if not _same(recorded[key], found):
            yield f"{place}: `{key}` is recorded as {recorded[key]} and comes out as {found}"
    if changed := changed_value(recorded["draws"], draw_statistics(frame)):
        yield f"{place}: `draws`: {changed}"


def changed_value(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    """Describe the first value that differs between two lists of lines, or return an empty text. Columns that only one
    of them has are ignored."""
    if len(old) != len(new):
        return f"{len(old)} lines, now {len(new)}"
    for number, (was, now) in enumerate(zip(old, new, strict=True), 1):
        for key, value in was.items():
            if key in now and not _same(value, now[key]):
                return f"line {number}, {key}: recorded {value}, recomputed {now[key]}"
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE) or (math.isnan(a) and math.isnan(b))
    return a == b


# ---- scorers of other versions


def rescore(study: Study, folder: Path) -> Iterator[str]:
    """Score the recorded answers of a study anew where another version of their scorer did, without asking a model, and
    write what follows: predictions, ``evaluate.json``, the collection, its frame, and the tables that are there. Yield
    each score that moves, and the files that change. Raise :class:`BrokenRecord` if answers are missing or packed."""
    folder = folder.resolve()
    refuse_packed(folder)
    results = folder.parent
    for spec in study.sources.values():
        paths = Paths(results, spec)
        if paths.record("evaluate").is_file():
            with RunLock(paths.answers):
                moved = _rescore_run(spec.id, paths, spec.data.form)
            yield from moved
    if not (folder / COLLECTED).is_file():
        return
    held = read_collected(study, results)
    for id, source in study.sources.items():
        path = Paths(results, source).record("evaluate")
        before = held.runs[id].evaluate if id in held.runs else None
        if before and path.is_file():
            held.runs[id].evaluate = cast(EvaluateRecord, parsed(path, "evaluate"))
    write_collected(held)
    texts = {"frame.csv": to_frame(held).to_csv(index=False)}
    for table in Table:
        if (folder / f"table_{table}.json").is_file():
            texts |= {f"table_{table}.{ending}": text for ending, text in rendered(held, table).items()}
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
            write_text(path, text)
            yield f"{name} is written anew"
    for figure in study.figures:
        if (folder / f"figures/{figure}.csv").is_file():
            yield f"the figure {figure} is as before: `{study.command('figure', results, '--figure', figure)}`"
    for other in study.shared:
        yield f"runs of {other} were looked at, too: `{study.family[other].command('rescore', results)}` for its tables"


def _rescore_run(id: str, paths: Paths, form: Form) -> list[str]:
    """Score the answers of one run anew, and write its predictions and its record. Return each score that moves. What
    cannot be read is noticed before anything is written."""
    record, moved = read_json(paths.record("evaluate")), list[str]()
    stale = outdated_scorers({test: ScoredBy(**by) for test, by in record["scorers"].items()})
    digests = record["predictions"].items() if stale else ()
    frames = {name: read_parquet(paths.predictions(name), digest, "`evaluate`") for name, digest in digests}
    frames = {name: new for name, frame in frames.items() if (new := _rescored(frame, stale, form)) is not None}
    for name, frame in frames.items():
        path = paths.predictions(name)
        record["predictions"][name] = write_parquet(path, frame)
        proof = path.with_suffix(".json")
        if proof.is_file():  # `evaluate` goes on taking these answers for its own
            write_json(proof, read_json(proof) | {"sha256": record["predictions"][name]})
        for test in stale:
            recorded, answers = record["decodings"][name]["tests"][test], frame.loc[frame["test"] == test]
            drawn = draw_statistics(answers)
            if changed := changed_value(recorded["draws"], drawn):
                moved.append(f"{id}, {name}, {test}: `draws`: {changed}")
                recorded["draws"] = drawn
            for key, value in means(answers).items():
                if recorded[key] != value:
                    moved.append(f"{id}, {name}, {test}: `{key}` was {recorded[key]}, is {value}")
                    recorded[key] = value
    scorers = versions(record["scorers"])
    if record["scorers"] != scorers:
        write_json(paths.record("evaluate"), {**record, "scorers": scorers})
    return moved


def _rescored(frame: pd.DataFrame, tests: list[str], form: Form) -> pd.DataFrame | None:
    """Return predictions with the answers to some tests scored anew, or None if no score moves."""
    chosen = frame["test"].isin(tests)
    old, new = frame.loc[chosen], score_frame(frame.assign(question=_questions(frame, form))).loc[chosen]
    if all(_plain(old, column).equals(_plain(new, column)) for column in new):
        return None
    frame.loc[chosen, new.columns] = new
    return frame
