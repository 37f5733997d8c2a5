"""Checks recorded results by computing them again from the predictions: scores, means, tables, numbers of figures.

Checkpoints are not needed. What depends on no prediction (times, losses) is only compared with its copies.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from benchmarks.files import BrokenRecord, read_json
from benchmarks.records.results import Collected, read_collected, to_frame
from benchmarks.records.schema import Record, parsed
from benchmarks.studies.paths import Paths
from benchmarks.studies.rendered import Figure, Table
from benchmarks.studies.runs import RunSpec, StageName, settings_digest
from benchmarks.studies.study import Study
from benchmarks.tables.render import rendered
from benchmarks.verification.differences import changed_settings, changed_value, first_change, lost_row
from benchmarks.verification.rescoring import wrong_answers
from methods.registry import get_method

SPEC = "spec.json"
WORDS = ("legend", "notes")  # of a table: its rendered text is compared


@dataclass(frozen=True)
class Finding:
    """``drift``: all numbers are the same, but today's code or study puts them differently or has more to say.
    ``not made``: a run or table that left nothing here, neither right nor wrong."""

    place: str
    kind: Literal["ok", "drift", "differs", "not made"]
    text: str = ""


def verify(study: Study, folder: Path) -> list[Finding]:
    """All findings on the results of ``study`` in ``folder``, whose last part is the study's name."""
    folder = folder.resolve()
    if folder.name != study.name or not (folder / "collect.json").is_file():
        raise BrokenRecord(
            f"{folder} holds no collected results of {study.name}: name the folder of a study, in which "
            f"`marcos-bench collect {study.name}` has left collect.json"
        )
    sources = study.sources.values()  # perhaps of another study, whose results are in a folder beside this one
    findings = [finding for run in sources for finding in _run(run, Paths(folder.parent, run))]
    return findings + list(_made(study, folder))


def report(findings: list[Finding]) -> str:
    """A line for each finding, and a count."""
    counts = Counter(finding.kind for finding in findings)
    kinds = max(map(len, counts))
    lines = [
        f"{finding.kind:{kinds}}  {finding.place}{': ' * bool(finding.text)}{finding.text}" for finding in findings
    ]
    lines.append(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if changed := sum(finding.kind == "drift" and finding.place.endswith(SPEC) for finding in findings):
        lines.append(
            f"{changed} runs are specified otherwise today: what is made of several of them (sums along warm "
            "starts, tables) may differ for that alone; --study takes the study as it was"
        )
    return "\n".join(lines)


# ---- runs


def _run(spec: RunSpec, paths: Paths) -> Iterator[Finding]:
    """The specification of a run against the study, each record against its specification, scores against answers."""
    if not any(paths.record(stage).exists() for stage in spec.stages):  # in a collection that has some, they differ
        yield Finding(spec.id, "not made")
        return
    try:
        recorded = read_json(paths.run / SPEC)
    except BrokenRecord as error:
        yield Finding(f"{spec.id} {SPEC}", "differs", str(error))
        return
    held = _completed(recorded) | {"starts_at": spec.starts_at}  # a place is no setting
    changed = sorted(changed_settings(held, spec.model_dump(mode="json")))
    kind = "drift" if changed else "ok"
    yield Finding(f"{spec.id} {SPEC}", kind, f"the study now says otherwise: {'; '.join(changed)}" * bool(changed))
    for stage in spec.stages:
        place = f"{spec.id} {stage}.json"
        try:
            record = parsed(paths.record(stage), stage)
        except BrokenRecord as error:
            yield Finding(place, "differs", str(error))
            continue
        problems = list(_origin(record, stage, recorded, spec))
        if stage == "evaluate":
            problems += wrong_answers(record.model_dump(), paths, spec.data.form)
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


def _origin(record: Record, stage: StageName, recorded: dict[str, Any], today: RunSpec) -> Iterator[str]:
    """The record's specification against the recorded one; or, as that is of training, today's of the same training."""
    try:
        expected = {settings_digest(recorded, stage)}
        if settings_digest(recorded, "train") == today.digest("train"):
            expected.add(today.digest(stage))
    except KeyError as error:
        yield f"cannot be held against {SPEC}, which lacks {error}"
        return
    if record.digest not in expected:
        yield f"was made from another specification than {SPEC}: digest {record.digest}"


# ---- what is made of the records


def _made(study: Study, folder: Path) -> Iterator[Finding]:
    """The collection, and what is made of it; nothing can be made of one that lacks what the study has."""
    name = "collect.json"
    try:
        collected = read_collected(folder / name)
    except BrokenRecord as error:
        yield Finding(name, "differs", f"{error}; nothing made of it is checked")
        return
    if lacking := list(_lacking(study, collected)):
        mend = "run `collect` again, or name the study as it was (--study)"
        text = f"lacks what the study has today ({'; '.join(lacking)}): {mend}; nothing made of it is checked"
        yield Finding(name, "differs", text)
        return
    yield Finding(name, *_collection(study, collected, folder))
    again = to_frame(study, collected).to_csv(index=False)
    yield _csv(folder / "frame.csv", again)
    for table in Table:  # any of them: that of claims may be there though the study does not name it
        if (folder / f"table_{table}.json").is_file():
            yield from _table(study, collected, folder, table)
        elif table in study.tables:
            yield Finding(f"table_{table}", "not made")
    for figure in Figure:
        if (folder / f"figures/{figure}.csv").is_file():
            yield _figure(study, collected, folder, figure)


def _lacking(study: Study, collected: Collected) -> Iterator[str]:
    """Runs of the study that were not collected, and what it asks of a run that the run's records do not hold."""
    for id, spec in study.runs.items():
        if id not in collected.runs:
            yield id
            continue
        held = collected.runs[id]
        missing = [record.missing(spec.evaluation) for record in (held.evaluate, held.time) if record]
        yield from (f"{id}: {what}" for what in missing if what)


def _collection(study: Study, collected: Collected, folder: Path) -> tuple[Literal["ok", "differs"], str]:
    """The collected records against those of the runs. One that is missing or broken has its own finding: here it is
    none, which is what `collect` holds of it."""
    wrong = []
    for id, source in study.sources.items():
        for stage in source.stages:
            found = None
            with suppress(BrokenRecord):
                found = parsed(Paths(folder.parent, source).record(stage), stage)
            if found != getattr(collected.runs[id], stage):
                wrong.append(f"{id} {stage}")
    return ("differs", f"other records than the runs' own: {', '.join(wrong)}") if wrong else ("ok", "")


def _csv(path: Path, again: str) -> Finding:
    """A file against what comes out today. The last digits of its numbers may be another machine's."""
    try:
        recorded = path.read_text(encoding="utf-8")
        if recorded == again:
            return Finding(path.name, "ok")
        old, new = (pd.read_csv(io.StringIO(text)) for text in (recorded, again))
    except FileNotFoundError:
        return Finding(path.name, "differs", "is not there")
    except ValueError as error:  # of pandas, or no UTF-8
        return Finding(path.name, "differs", f"is no table any more ({error}): delete it and make it again")
    if changed := changed_value(old.to_dict("records"), new.to_dict("records")):
        return Finding(path.name, "differs", changed)
    if list(old) == list(new):
        return Finding(path.name, "ok")
    return Finding(path.name, "drift", "columns have changed; all shared numbers are the same")


def _table(study: Study, collected: Collected, folder: Path, table: Table) -> Iterator[Finding]:
    """Numbers decide: a text with the same numbers that differs is only worded differently today."""
    try:
        again = rendered(study, collected, folder.parent, table)
    except BrokenRecord as error:
        yield Finding(f"table_{table}", "differs", f"cannot be made: {error}")
        return
    yield from _lines(folder / f"table_{table}.json", json.loads(again["json"]))
    for ending, text in again.items():
        path = folder / f"table_{table}.{ending}"
        if ending == "csv":
            yield _csv(path, text)
        elif not path.is_file():
            yield Finding(path.name, "differs", "is not there")
        elif (old := path.read_text(encoding="utf-8", errors="replace")) == text:
            yield Finding(path.name, "ok")
        elif lost := lost_row(old, text):
            yield Finding(path.name, "differs", f"a row whose numbers do not come out: {' '.join(lost.split())[:100]}")
        else:
            yield Finding(path.name, "drift", f"today's code words it otherwise, {first_change(old, text)}")


def _lines(path: Path, made: dict[str, Any]) -> Iterator[Finding]:
    """The numbers of a table."""
    try:
        recorded = read_json(path)
    except BrokenRecord as error:
        yield Finding(path.name, "differs", str(error))
        return
    for part in (name for name, lines in recorded.items() if isinstance(lines, list) and name not in WORDS):
        if changed := changed_value(recorded[part], made.get(part, [])):
            yield Finding(path.name, "differs", f"{part}: {changed}")


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
    return _csv(path, again)
