"""Checks recorded results by computing them again from the predictions: scores, means, tables, numbers of figures.

Checkpoints are not needed. What depends on no prediction (times, losses) is only compared with its copies.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import ValidationError

from benchmarks.data import load_records
from benchmarks.diversity import draw_statistics
from benchmarks.evaluation import means
from benchmarks.figures import Figure
from benchmarks.files import BrokenRecord, read_json, sha256
from benchmarks.paths import Paths
from benchmarks.records import RECORDS, RunRecords, first_problem
from benchmarks.results import Collected, to_frame
from benchmarks.runs import RunSpec, StageName, settings_digest
from benchmarks.scoring import Asked, Score
from benchmarks.scoring.by_test import scorer_of
from benchmarks.specs import Form
from benchmarks.study import Study
from benchmarks.tables import Table
from benchmarks.tables.render import rendered
from methods.registry import get_method

CLOSE = 1e-9  # numbers that differ by less do so because sums were taken in another order
SPEC = "spec.json"
WORDS = ("legend", "notes")  # of a table: its rendered text is compared
SCORED = ("extracted", "correct", "strict", "draws")  # older predictions have no draws


@dataclass(frozen=True)
class Finding:
    """``drift``: all numbers are the same, but today's code or study puts them differently or has more to say."""

    place: str
    kind: Literal["ok", "drift", "differs"]
    text: str = ""


def verify(study: Study, folder: Path) -> list[Finding]:
    """All findings on the results of ``study`` in ``folder``, whose last part is the study's name."""
    folder = folder.resolve()
    if folder.name != study.name or not (folder / "collect.json").is_file():
        raise BrokenRecord(f"{folder} holds no collected results of {study.name}: name the folder of a study, in which "
                           "collect.json is")  # fmt: skip
    sources = study.sources.values()  # perhaps of another study, whose results are in a folder beside this one
    findings = [finding for run in sources for finding in _run(run, Paths(folder.parent, run))]
    collected = Collected.model_validate(read_json(folder / "collect.json"))
    findings.append(Finding("collect.json", *_collection(study, collected, folder)))
    findings.append(Finding("frame.csv", *_frame(study, collected, folder)))
    for table in Table:  # any of them: that of claims may be there though the study does not name it
        if (folder / f"table_{table}.json").is_file():
            findings += _table(study, collected, folder, table)
        elif table in study.tables:
            findings.append(Finding(f"table_{table}", "drift", "is not there"))
    shown = [figure for figure in Figure if (folder / f"figures/{figure}.csv").is_file()]
    return findings + [_figure(study, collected, folder, figure) for figure in shown]


def report(findings: list[Finding]) -> str:
    """A line for each finding, and a count."""
    lines = [f"{finding.kind:8} {finding.place}{': ' * bool(finding.text)}{finding.text}" for finding in findings]
    counts = Counter(finding.kind for finding in findings)
    lines.append(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if changed := sum(finding.kind == "drift" and finding.place.endswith(SPEC) for finding in findings):
        lines.append(f"{changed} runs are specified otherwise today: what is made of several of them (sums along warm "
                     "starts, tables) may differ for that alone; --study takes the study as it was")  # fmt: skip
    return "\n".join(lines)


# ---- runs


def _run(spec: RunSpec, paths: Paths) -> Iterator[Finding]:
    """The specification of a run against the study, each record against its specification, scores against answers."""
    try:
        recorded = read_json(paths.run / SPEC)
    except BrokenRecord as error:
        yield Finding(f"{spec.id} {SPEC}", "differs", str(error))
        return
    changed = sorted(_changes(_completed(recorded), spec.model_dump(mode="json")))
    kind = "drift" if changed else "ok"
    yield Finding(f"{spec.id} {SPEC}", kind, f"the study now says otherwise: {'; '.join(changed)}" * bool(changed))
    for stage in spec.stages:
        place = f"{spec.id} {stage}.json"
        try:
            record = read_json(paths.record(stage))
        except BrokenRecord as error:
            yield Finding(place, "differs", str(error))
            continue
        problems = list(_record(record, stage, recorded))
        if stage == "evaluate":
            problems += _answers(record, paths, spec.data.form)
        yield Finding(place, "differs" if problems else "ok", "; ".join(problems))


def _completed(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded specification with the defaults of settings that were added since; unchanged where it is not valid any
    more."""
    try:
        spec = RunSpec.model_validate(recorded)
        options = get_method(spec.method).Options.model_validate(spec.options)
    except ValueError:
        return recorded
    return spec.model_copy(update={"options": options.model_dump(mode="json")}).model_dump(mode="json")


def _changes(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Where two nested settings differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{place} was {json.dumps(old)}, is {json.dumps(new)}"
        return
    for key in old.keys() | new.keys():
        where = f"{place}.{key}".lstrip(".")
        if key in old and key in new:
            yield from _changes(old[key], new[key], where)
        else:
            yield f"{where} {'is gone' if key in old else f'is new ({json.dumps(new[key])})'}"


def _record(record: dict[str, Any], stage: StageName, spec: dict[str, Any]) -> Iterator[str]:
    try:
        RECORDS[stage].model_validate(record)
    except ValidationError as error:
        yield f"is broken ({first_problem(error)})"
        return
    if record["digest"] != settings_digest(spec, stage):
        yield f"was made from another specification than spec.json: digest {record['digest']}"


def _answers(record: dict[str, Any], paths: Paths, form: Form) -> Iterator[str]:
    """The predictions' digests, each answer's score, and the means over them."""
    for name, digest in record["predictions"].items():
        path = paths.predictions(name)
        if not path.is_file():
            yield f"{path.name} is not there"
        elif sha256(path) != digest:
            yield f"{path.name} is not the recorded file"
        else:
            frame = pd.read_parquet(path)
            yield from _scores(name, frame, form)
            for test, scores in record["decodings"][name]["tests"].items():
                yield from _means(f"{name}, {test}", frame.loc[frame["test"] == test], scores)


def _scores(name: str, frame: pd.DataFrame, form: Form) -> Iterator[str]:
    again = _scored(frame, form)
    for column in (name for name in SCORED if name in frame):
        values = pd.Series([getattr(one, column) for one in again], index=frame.index, dtype="object")
        old = frame[column].map(tuple) if column == "draws" else frame[column].astype("object")
        wrong = frame.loc[(old != values) & ~(old.isna() & values.isna())]
        if len(wrong):
            first = wrong.iloc[0]
            yield (f"{name}: `{column}` of {len(wrong)} answers is not what the scorer says, first {first['test']} "
                   f"{first['id']}, seed {first['seed']}")  # fmt: skip


def _scored(frame: pd.DataFrame, form: Form) -> list[Score]:
    """Each answer's score by its test set's scorer; questions are read again only for one that reads steps."""
    scorers = {test: scorer_of(test) for test in frame["test"].unique()}
    stepwise = [test for test, scorer in scorers.items() if scorer.reads_steps]
    texts = {(test, row.id): row.question for test in stepwise for row in load_records(test, form, "test")}
    columns = ("test", "id", "text", "gold", "n_steps")
    scores = []
    for test, id, text, gold, steps in zip(*(frame[column] for column in columns), strict=True):
        asked = Asked(texts.get((test, id), ""), gold, None if pd.isna(steps) else int(steps))
        scores.append(scorers[test].score(text, asked))
    return scores


def _means(place: str, frame: pd.DataFrame, scores: dict[str, Any]) -> Iterator[str]:
    for key, found in means(frame).items():
        recorded, values = _listed(scores[key]), _listed(found)
        if len(recorded) != len(values) or any(abs(a - b) > CLOSE for a, b in zip(recorded, values, strict=True)):
            yield f"{place}: `{key}` is recorded as {recorded} and comes out as {values}"
    drawn = draw_statistics(frame) if "draws" in frame else []
    if changed := _numbers(scores.get("draws") or [], drawn):
        yield f"{place}: `draws`: {changed}"


def _listed(value: list[float] | float | None) -> list[float]:
    """The numbers of a score: one for each decoding seed, one alone, or none."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


# ---- what is made of the records


def _collection(study: Study, collected: Collected, folder: Path) -> tuple[Literal["ok", "differs"], str]:
    """The collected records against those of the runs."""
    wrong = []
    for id, source in study.sources.items():
        held = collected.runs.get(id, RunRecords())
        for stage in source.stages:
            path, record = Paths(folder.parent, source).record(stage), getattr(held, stage)
            found = RECORDS[stage].model_validate(read_json(path)) if path.is_file() else None
            if found != record:
                wrong.append(f"{id} {stage}")
    return ("differs", f"other records than the runs' own: {', '.join(wrong)}") if wrong else ("ok", "")


def _frame(study: Study, collected: Collected, folder: Path) -> tuple[Literal["ok", "drift", "differs"], str]:
    again = to_frame(study, collected).to_csv(index=False)
    try:
        recorded = (folder / "frame.csv").read_text()
    except FileNotFoundError:
        return "differs", "is not there"
    if recorded == again:
        return "ok", ""
    old, new = (pd.read_csv(io.StringIO(text)).to_dict("records") for text in (recorded, again))
    changed = _numbers(old, new)
    return ("differs", changed) if changed else ("drift", "columns have changed; all shared numbers are the same")


def _table(study: Study, collected: Collected, folder: Path, table: Table) -> Iterator[Finding]:
    """Numbers decide: a text with the same numbers that differs is only worded differently today."""
    try:
        again = rendered(study, collected, folder.parent, table)
    except BrokenRecord as error:
        yield Finding(f"table_{table}", "differs", f"cannot be made: {error}")
        return
    recorded, made = read_json(folder / f"table_{table}.json"), json.loads(again["json"])
    for part in (name for name, lines in recorded.items() if isinstance(lines, list) and name not in WORDS):
        if changed := _numbers(recorded[part], made.get(part, [])):
            yield Finding(f"table_{table}.json", "differs", f"{part}: {changed}")
    for ending, text in again.items():
        path = folder / f"table_{table}.{ending}"
        if not path.is_file():
            yield Finding(path.name, "differs", "is not there")
        elif (old := path.read_text()) == text:
            yield Finding(path.name, "ok")
        elif lost := list((Counter(_in_rows(old)) - Counter(_in_rows(text))).elements()):
            yield Finding(path.name, "differs", f"numbers that do not come out: {', '.join(lost[:5])}")
        else:
            yield Finding(path.name, "drift", f"today's code words it otherwise, {_first_change(old, text)}")


def _figure(study: Study, collected: Collected, folder: Path, figure: Figure) -> Finding:
    """The numbers beside a figure; what they are read from (predictions, analyses) is checked against its digests."""
    from benchmarks.figures.drawing import NothingToDraw  # matplotlib takes its time
    from benchmarks.figures.render import DRAWINGS

    path, drawing = folder / f"figures/{figure}.csv", DRAWINGS[figure](study, folder.parent)
    drawing.collected = collected
    try:
        again = drawing.data().to_csv(index=False)
    except (BrokenRecord, NothingToDraw) as error:
        return Finding(path.name, "differs", f"cannot be made: {error}")
    if (recorded := path.read_text()) == again:
        return Finding(path.name, "ok")
    old, new = (pd.read_csv(io.StringIO(text)).to_dict("records") for text in (recorded, again))
    changed = _numbers(old, new)
    return Finding(path.name, *(("differs", changed) if changed else ("drift", "today's code words it otherwise")))


def _in_rows(text: str) -> list[str]:
    """The numbers in the rows of a table, of any of its formats but JSON; legends and notes are left out."""
    rows = [line for line in text.splitlines() if line[:1] == "|" or line.endswith(r"\\") or line.count(",") > 9]
    return [number for row in rows for number in re.findall(r"\d[\d.,e+-]*", row)]


def _numbers(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    """The first value that differs between two lists of lines; columns that only one of them has are left out."""
    if len(old) != len(new):
        return f"{len(old)} lines, now {len(new)}"
    for number, (was, now) in enumerate(zip(old, new, strict=True), 1):
        for key in was.keys() & now.keys():
            if not _same(was[key], now[key]):
                return f"line {number}, {key}: {was[key]} is recorded and {now[key]} comes out"
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE) or (math.isnan(a) and math.isnan(b))
    return a == b


def _first_change(old: str, new: str) -> str:
    pairs = enumerate(zip(old.splitlines(), new.splitlines(), strict=False), 1)
    number, (was, now) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    start = max(0, at - 20)
    return f"first in line {number}: {was[start : at + 40]!r} was, {now[start : at + 40]!r} is"
