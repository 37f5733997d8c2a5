"""Rows that were made elsewhere, for a study's table: of somebody else's results of the same study, or of outputs that
somebody published. Nothing of them is trained, answered or ranked here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.archive import unpacked
from benchmarks.outputs import published_scores
from benchmarks.records.provenance import kernels_of, outdated_scorers, provenance
from benchmarks.records.results import StudyRecords, read_collected, with_starts
from benchmarks.records.schema import RunRecords
from benchmarks.records.summary import COUNTS, KEYS, OWN, summarise
from benchmarks.tables.base import ExternalRows, about_published, published_line, published_rows
from methods.errors import InputError, suggestion

MADE = ("Hardware", "Kernels", "Versions", "Commit")  # what a legend says of others' results
ANSWERED = ["strict", "no_answer", "deduplicated", "forward_passes", "tokens_per_question", "latent_steps"]
KEPT = [name for name in (*KEYS, *OWN, *COUNTS, *ANSWERED) if name != "timed_n"]  # of others' lines: all but times


def read_external_rows(ours: StudyRecords, named: Sequence[str]) -> ExternalRows:
    """Read the rows to show beside those of ``ours``, after the outputs that its study names. Each of ``named`` is
    ``[NAME=]FOLDER``, a folder of results, or that of the study in it, packed or not; or ``[NAME=]FILE@TEST``, a file
    of outputs that :func:`benchmarks.outputs.score` takes. Files of one NAME are one row. Raise :class:`InputError` if
    one of them cannot be read, or has nothing that belongs beside ``ours``."""
    for id, run in ours.runs.items():
        if run.evaluate and (tests := outdated_scorers(run.evaluate.scorers)):
            raise InputError(
                f"{id} was scored by another version of the scorer than today's ({', '.join(tests)}), and what others "
                f"made is not: run `marcos-bench rescore {ours.folder}` first"
            )
    lines, about = [], []
    for text in named:
        name, sign, place = text.partition("=")
        if not sign or Path(text).exists() or Path(text.rpartition("@")[0]).is_file():
            name, place = "", text
        found, notes = _of_folder(ours, name, place) if Path(place).is_dir() else _of_file(ours, name, place)
        lines += found
        about.append(notes)
    own, others = published_rows(ours), ExternalRows.of(lines, about)
    frame = pd.concat([own.lines, others.lines], ignore_index=True)
    twice = frame.loc[frame.duplicated(["source", "block", "row", "test"])]
    if len(twice):
        source, row = twice.iloc[0][["source", "row"]]
        raise InputError(f"two rows are {source}, {row}: give each of --with a name of its own (NAME=...)")
    return ExternalRows(frame, (*own.about, *others.about))


# ---- a folder of results


def _of_folder(ours: StudyRecords, name: str, place: str) -> tuple[list[dict[str, Any]], str]:
    """Return the lines of a folder's rows that answer as the study's own do, and what a legend says of them."""
    study, folder, source = ours.study, Path(place).resolve(), name or place
    home = folder.parent if folder.name == study.name else folder
    if not (home / study.name).is_dir():
        raise InputError(f"{place} has no results of {study.name}: name a folder that has a folder {study.name}")
    if home / study.name == ours.folder.resolve():
        raise InputError(f"{place} holds the results that the table is made from: name somebody else's")
    with unpacked(home, [study.name, *study.shared]) as results:
        theirs = read_collected(study, results)
        unlike = {id: why for id in study.runs if (why := _difference(ours, theirs, id))}
        by_reason: dict[str, list[str]] = {}
        for id, why in unlike.items():
            by_reason.setdefault(why, []).append(id)
        left_out = "; ".join(f"{', '.join(ids)}: {why}" for why, ids in by_reason.items())
        if len(unlike) == len(study.runs):
            raise InputError(f"{place} has no row that belongs beside those of {study.name}: {left_out}")
        runs = {
            id: RunRecords(problems={"evaluate": unlike[id]})
            if id in unlike
            else theirs.runs[id].model_copy(update={"time": None, "problems": {}})
            for id in study.runs
        }
        kept = StudyRecords(study, results, runs, theirs.data)
        lines = summarise(kept, "default").lines
    lines = lines.dropna(subset="accuracy")[KEPT].assign(source=source, mark="").sort_values("control", kind="stable")
    lines["reason"] = f"{source}: " + lines["reason"]
    made = provenance(kept)
    notes = [f"From {source}: {'; '.join(f'{label}: {made[label]}' for label in MADE if label in made)}."]
    mine, other = ({text for run in records.runs.values() for text in kernels_of(run)} for records in (ours, kept))
    if mine and other and mine != other:
        notes.append("Computed with other kernels than ours: rounding differs, as between seeds.")
    if unlike:
        notes.append(f"Left out: {left_out}.")
    return lines.to_dict("records"), " ".join(notes)


def _difference(ours: StudyRecords, theirs: StudyRecords, id: str) -> str | None:
    """Return why others' answers of a run are not those that the study asks for, or None if they are."""
    study, held = ours.study, theirs.runs.get(id, RunRecords())
    if held.evaluate is None:
        return held.problems.get("evaluate", "no answers")
    trained = {link: theirs.runs.get(link, RunRecords()).train for link in with_starts(study, study.runs[id])}
    if not all(record and record.digest == study.sources[link].digest("train") for link, record in trained.items()):
        return "trained with other settings"
    if held.evaluate.digest != study.sources[id].digest("evaluate"):
        return "evaluated with other settings"
    block = study.runs[id].block
    mine, other = (records.data.get(block, {}).get("digests", {}) for records in (ours, theirs))
    if not (mine and other):
        return f"no record of {'their' if mine else 'our'} data"
    if places := sorted(place for place in mine | other if mine.get(place) != other.get(place)):
        return f"other data ({', '.join(places)})"
    if tests := outdated_scorers(held.evaluate.scorers):
        return f"scored by another version of the scorer than today's ({', '.join(tests)}): `marcos-bench rescore`"
    return None


# ---- a file of outputs


def _of_file(ours: StudyRecords, name: str, place: str) -> tuple[list[dict[str, Any]], str]:
    """Return the line of a file of outputs, and what a legend says of it."""
    file, _, test = place.rpartition("@")
    if not Path(file).is_file():
        raise InputError(
            f"{place} is neither a folder nor a file with the test set that it answers: give FOLDER or FILE@TEST, e.g. "
            "gpt2.jsonl@gsm8k"
        )
    if test not in (tests := ours.study.evaluation.tests):
        near = suggestion(test, tests)
        raise InputError(f"{ours.study.name} has no test set {test!r}{near} (its test sets: {', '.join(tests)})")
    scores = published_scores(name, "", test, Path(file), ours.results)
    return [published_line(scores)], about_published(scores)
