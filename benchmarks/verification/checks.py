"""Check recorded results by computing scores, means, tables and numbers of figures again from the predictions.

Checkpoints are not needed. Numbers that do not depend on predictions (times, losses) are only compared with their
copies.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from benchmarks.archive import unpacked
from benchmarks.data.sets import DATASETS
from benchmarks.files import BrokenRecord, MissingKey, read_json
from benchmarks.records.provenance import kernels_of, outdated_scorers
from benchmarks.records.results import StudyRecords, read_collected, to_frame
from benchmarks.records.schema import EvaluateRecord, Record, parsed
from benchmarks.scoring.scorers import scorer_of
from benchmarks.studies.paths import COLLECTED, SPEC, Paths
from benchmarks.studies.runs import RunSpec, TaskName, settings_digest
from benchmarks.studies.specs import Figure, Table
from benchmarks.studies.study import Study
from benchmarks.tables.render import rendered
from benchmarks.verification.rescoring import changed_value, wrong_answers
from methods.registry import get_method

NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*")
SPAN = re.compile(r"\\multicolumn\{\d+\}")
WORDS = ("legend", "notes")  # parts of a table that are compared in the rendered text


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    * ``ok``: no difference was found.
    * ``drift``: all numbers are the same, but today's code or study presents them differently or has more of them.
    * ``differs``: something is missing, broken or has other numbers.
    * ``not made``: a run or table has no results here, which is neither right nor wrong.
    * ``note``: nothing is wrong, and readers should know.
    """

    place: str
    kind: Literal["ok", "drift", "differs", "not made", "note"]
    text: str = ""


def verify(study: Study, folder: Path) -> list[Finding]:
    """Return all findings on the results of ``study`` in ``folder``, packed or as the workflow writes them. The last
    part of its path is the study's name. Raise :class:`BrokenRecord` if it has no collected results of the study."""
    folder = folder.resolve()
    # Runs of other studies have their results in a folder beside this one
    with unpacked(folder.parent, [study.name, *study.shared]) as results:
        if not (results / study.name / COLLECTED).is_file():
            raise BrokenRecord(
                f"{folder} holds no collected results of {study.name}: name the folder of a study, in which "
                f"`{study.command('collect', folder.parent)}` has left {COLLECTED}"
            )
        findings = [finding for run in study.sources.values() for finding in _run(run, Paths(results, run))]
        return findings + list(_made(study, results))


def report(findings: list[Finding]) -> str:
    """Return a text with one line per finding, and their counts."""
    counts = Counter(finding.kind for finding in findings)
    kinds = max(map(len, counts))
    lines = [
        f"{finding.kind:{kinds}}  {finding.place}{': ' if finding.text else ''}{finding.text}" for finding in findings
    ]
    lines.append(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if changed := sum(finding.kind == "drift" and finding.place.endswith(SPEC) for finding in findings):
        lines.append(
            f"{changed} runs have other settings in today's study, which alone may change what is made of several runs "
            "(sums along warm starts, tables); pass the study as it was with --study"
        )
    return "\n".join(lines)


# ---- runs


def _run(spec: RunSpec, paths: Paths) -> Iterator[Finding]:
    """The specification of a run against the study, each record against its specification, scores against answers."""
    if not any(paths.record(task).exists() for task in spec.tasks):  # in a collection that has some, they differ
        yield Finding(spec.id, "not made")
        return
    try:
        recorded = read_json(paths.run / SPEC)
    except BrokenRecord as error:
        yield Finding(f"{spec.id} {SPEC}", "differs", str(error))
        return
    held = _completed(recorded) | {"starts_at": spec.starts_at}  # a place is no setting
    changed = (
        [] if _made_as_asked(spec, recorded, paths) else sorted(changed_settings(held, spec.model_dump(mode="json")))
    )
    kind = "drift" if changed else "ok"
    yield Finding(f"{spec.id} {SPEC}", kind, f"the study has changed: {'; '.join(changed)}" if changed else "")
    for task in spec.tasks:
        place = f"{spec.id} {task}.json"
        try:
            record = parsed(paths.record(task), task)
        except BrokenRecord as error:
            yield Finding(place, "differs", str(error))
            continue
        problems, older = list(_origin(record, task, recorded, spec)), []
        if isinstance(record, EvaluateRecord):
            problems += wrong_answers(record.model_dump(), paths, spec.data.form)
            older = outdated_scorers(record.scorers)
        if older:
            text = f"scored by another version of the scorer than today's ({', '.join(older)})"
            problems.append(f"{text}: `marcos-bench rescore` scores the answers again")
        kind = "ok" if not problems else "drift" if older and len(problems) == 1 else "differs"
        yield Finding(place, kind, "; ".join(problems))


def _made_as_asked(spec: RunSpec, recorded: dict[str, Any], paths: Paths) -> bool:
    """Return whether a run was trained as it is specified today, and all its records were made so: what was written
    when training began may ask for other answers than were given since."""
    with suppress(BrokenRecord):
        trained = settings_digest(recorded, "train") == spec.digest("train")
        return trained and all(parsed(paths.record(task), task).digest == spec.digest(task) for task in spec.tasks)
    return False


def _completed(recorded: dict[str, Any]) -> dict[str, Any]:
    """Add the defaults of settings that were introduced later to a recorded specification; return one that is no longer
    valid unchanged."""
    try:
        spec = RunSpec.model_validate(recorded)
        options = get_method(spec.method).Options.model_validate(spec.options)
    except ValueError:
        return recorded
    return spec.model_copy(update={"options": options.model_dump(mode="json")}).model_dump(mode="json")


def _origin(record: Record, task: TaskName, recorded: dict[str, Any], today: RunSpec) -> Iterator[str]:
    """Compare a record's digest with the recorded specification, which is that of training, or with today's if the
    training is the same: later tasks may have been run with today's."""
    try:
        expected = {settings_digest(recorded, task)}
        if settings_digest(recorded, "train") == today.digest("train"):
            expected.add(today.digest(task))
    except MissingKey as error:
        yield f"cannot be compared with {SPEC}, which lacks {error.key!r}"
        return
    if record.digest not in expected:
        yield f"was made from another specification than {SPEC}: digest {record.digest}"


def changed_settings(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Yield the differences of two nested settings."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{place} was {json.dumps(old)}, is {json.dumps(new)}"
        return
    for key in old.keys() | new.keys():
        where = f"{place}.{key}".lstrip(".")
        if key in old and key in new:
            yield from changed_settings(old[key], new[key], where)
        else:
            yield f"{where} {'is gone' if key in old else f'is new ({json.dumps(new[key])})'}"


# ---- results made from the records


def _made(study: Study, results: Path) -> Iterator[Finding]:
    """Check the collection and the tables and figures made from it; nothing can be made from one that lacks parts of
    the study."""
    try:
        records = read_collected(study, results)
    except BrokenRecord as error:
        yield Finding(COLLECTED, "differs", f"{error}; nothing made of it is checked")
        return
    if missing := list(_missing(records)):
        fix = "run `collect` again, or name the study as it was (--study)"
        text = f"lacks what the study has today ({'; '.join(missing)}): {fix}; nothing made of it is checked"
        yield Finding(COLLECTED, "differs", text)
        return
    problems = _collection(records)
    yield Finding(COLLECTED, "differs" if problems else "ok", "; ".join(problems))
    yield from _data_versions(records)
    yield from _kernels(records)
    yield from _published(records)
    yield _csv(records.folder / "frame.csv", to_frame(records).to_csv(index=False))
    for table in Table:  # all of them: that of claims may exist although the study does not name it
        if (records.folder / f"table_{table}.json").is_file():
            yield from _table(records, table)
        elif table in study.tables:
            yield Finding(f"table_{table}", "not made")
    for figure in Figure:
        if (records.folder / f"figures/{figure}.csv").is_file():
            yield _figure(records, figure)


def _missing(records: StudyRecords) -> Iterator[str]:
    """Yield the runs that were not collected, and what the records of the others lack for the study's evaluation."""
    for id, spec in records.study.runs.items():
        if id not in records.runs:
            yield id
            continue
        held = records.runs[id]
        gaps = [record.missing(spec.evaluation) for record in (held.evaluate, held.time) if record]
        yield from (f"{id}: {what}" for what in gaps if what)


def _data_versions(records: StudyRecords) -> Iterator[Finding]:
    """Yield the data sets that have had another version since a block's data were prepared."""
    for block, data in records.data.items():
        for name, held in data.get("cards", {}).items():
            today = DATASETS[name].card if name in DATASETS else None
            if today and held["version"] != today.version:
                text = f"made from version {held['version']} of {name}, which is at version {today.version} now: "
                yield Finding(f"data of {block}", "drift", f"{text}results of a new run may differ. {today.notes}")


def _kernels(records: StudyRecords) -> Iterator[Finding]:
    """Note if CPUs computed the runs with different kernels: rounding then moves rows as another seed does."""
    runs: dict[str, list[str]] = {}
    for id, run in records.runs.items():
        for text in kernels_of(run):
            runs.setdefault(text, []).append(id)
    if len(runs) > 1:
        text = "; ".join(f"{kernels}: {', '.join(ids)}" for kernels, ids in runs.items())
        yield Finding("kernels", "note", f"the runs used different kernels, which round differently ({text})")


def _published(records: StudyRecords) -> Iterator[Finding]:
    """Yield the outputs that the study names and another version of their scorer judged."""
    for one in records.published:
        if one.scorer.version != scorer_of(one.test).version:
            text = f"{one.file} was scored by another version of the scorer than today's: `collect` scores it again"
            yield Finding(f"{one.title}, {one.test}", "drift", text)


def _collection(records: StudyRecords) -> list[str]:
    """Compare the collected records with those of the runs, and look for a record of each block's data, without which
    tables print test sets by other names. A missing or broken record has its own finding, and counts as None here, as
    in the collection."""
    wrong = []
    for id, source in records.study.sources.items():
        for task in source.tasks:
            found = None
            with suppress(BrokenRecord):
                found = parsed(records.paths(id).record(task), task)
            if found != records.runs[id].tasks.get(task):
                wrong.append(f"{id} {task}")
    problems = [f"other records than the runs' own: {', '.join(wrong)}"] if wrong else []
    trained = {source.block for id, source in records.study.sources.items() if records.runs[id].train}
    for block, record in records.data.items():
        if block in trained and "problem" in record:
            problems.append(f"data of {block}: {record['problem']}")
    return problems


def _csv(path: Path, again: str) -> Finding:
    """Compare a CSV file with the one made today. The last digits of numbers may differ between machines."""
    try:
        recorded = path.read_text(encoding="utf-8")
        if recorded == again:
            return Finding(path.name, "ok")
        old, new = (pd.read_csv(io.StringIO(text)) for text in (recorded, again))
    except FileNotFoundError:
        return Finding(path.name, "differs", "is missing")
    except ValueError as error:  # from pandas, or the file is not UTF-8
        return Finding(path.name, "differs", f"is not a readable table ({error}): delete it and make it again")
    if changed := changed_value(old.to_dict("records"), new.to_dict("records")):
        return Finding(path.name, "differs", changed)
    if list(old) == list(new):
        return Finding(path.name, "ok")
    return Finding(path.name, "drift", "columns have changed; all shared numbers are the same")


def _table(records: StudyRecords, table: Table) -> Iterator[Finding]:
    """Check a table. Only numbers decide: a text that differs but has the same numbers is a drift in wording."""
    try:
        again = rendered(records, table)
    except BrokenRecord as error:
        yield Finding(f"table_{table}", "differs", f"cannot be made: {error}")
        return
    recorded, made = {}, json.loads(again["json"])
    try:
        recorded = read_json(records.folder / f"table_{table}.json")
    except BrokenRecord as error:
        yield Finding(f"table_{table}.json", "differs", str(error))
    for part in (name for name, lines in recorded.items() if isinstance(lines, list) and name not in WORDS):
        if changed := changed_value(recorded[part], made.get(part, [])):
            yield Finding(f"table_{table}.json", "differs", f"{part}: {changed}")
    for ending, text in again.items():
        path = records.folder / f"table_{table}.{ending}"
        if ending == "csv":
            yield _csv(path, text)
        elif not path.is_file():
            yield Finding(path.name, "differs", "is missing")
        elif (old := path.read_text(encoding="utf-8", errors="replace")) == text:
            yield Finding(path.name, "ok")
        elif lost := lost_row(old, text):
            yield Finding(
                path.name, "differs", f"a row whose numbers cannot be reproduced: {' '.join(lost.split())[:100]}"
            )
        else:
            yield Finding(path.name, "drift", f"only text has changed or was added, {first_change(old, text)}")


def lost_row(old: str, new: str) -> str:
    """Return the first row of a table (Markdown or LaTeX) whose numbers the new version lacks, or an empty text. Rows,
    and the numbers of a row, must be in the same order; the new version may have more of both. Legends and notes are
    ignored."""
    left = iter(_rows(new))
    for row in _rows(old):
        for other in left:
            numbers = iter(NUMBER.findall(other))
            if all(number in numbers for number in NUMBER.findall(row)):
                break
        else:
            return row
    return ""


def _rows(text: str) -> list[str]:
    """Return the rows of a table that have numbers. How many columns a heading spans is none."""
    lines = (SPAN.sub("", line) for line in text.splitlines())
    return [line for line in lines if (line[:1] == "|" or line.endswith(r"\\")) and NUMBER.search(line)]


def first_change(old: str, new: str) -> str:
    """Describe the first line that differs between two texts, around the difference."""
    pairs = enumerate(zip_longest(old.splitlines(), new.splitlines(), fillvalue=""), 1)
    number, (was, now) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    start = max(0, at - 20)
    return f"first in line {number}: was {was[start : at + 40]!r}, now {now[start : at + 40]!r}"


def _figure(records: StudyRecords, figure: Figure) -> Finding:
    """Check the numbers of a figure. The predictions and analyses behind them are checked against their digests."""
    from benchmarks.figures.base import NothingToDraw  # imported late: matplotlib is slow to load
    from benchmarks.figures.render import FIGURE_BUILDERS

    path = records.folder / f"figures/{figure}.csv"
    try:
        again = FIGURE_BUILDERS[figure](records).data().to_csv(index=False)
    except (BrokenRecord, NothingToDraw) as error:
        return Finding(path.name, "differs", f"cannot be made: {error}")
    return _csv(path, again)
