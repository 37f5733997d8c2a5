"""Loads records of a data set in a form of reasoning steps, splits off validation data, and finds questions that data
sets share: those whose normalised texts are the same (:func:`benchmarks.data.records.normalise`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.data.cards import refusal
from benchmarks.data.records import (
    DataError,
    Raw,
    Record,
    equations,
    lines,
    normalise,
    question_hash,
    sentences,
)
from benchmarks.data.sets import DATASETS
from benchmarks.data.sources import DataSet, Generated
from benchmarks.studies.specs import DataSpec, Form
from methods.errors import suggestion

STEPS = {"equation": equations, "text": sentences, "lines": lines}


def get_dataset(name: str) -> DataSet | Generated:
    """Return a registered data set, or raise a :class:`DataError` that suggests the nearest
    name and lists all names."""
    if name not in DATASETS:
        near = suggestion(name, DATASETS)
        raise DataError(f"no data set is named {name!r}{near} (known: {', '.join(sorted(DATASETS))})")
    return DATASETS[name]


def dataset_with(name: str, form: Form, split: str) -> DataSet | Generated:
    """Return a data set that has the split and the form, or raise a :class:`DataError` that says which it has."""
    dataset = get_dataset(name)
    card = dataset.card
    if split not in card.counts:
        raise DataError(f"data set {name!r} has no {split} split; it has: {', '.join(card.counts)}")
    if form not in card.forms:
        raise DataError(f"data set {name!r} has no steps as {form}; it has: {', '.join(card.forms)}")
    return dataset


def load_rows(name: str, form: Form, split: str) -> list[Raw]:
    """Return all published rows of a split."""
    return dataset_with(name, form, split).rows(split)


def to_records(name: str, form: Form, split: str, rows: Sequence[Raw]) -> list[Record]:
    """Convert rows to records with steps in the given form. Training rows that teach nothing in this form (no question,
    no step where the card promises some, or an answer that cannot be scored, see :func:`unscorable_rows`) are left out;
    test rows never are. Raise :class:`DataError` if no training row is left."""
    records = [Record(f"{name}-{split}-{r.key}", r.question, STEPS[form](r.solution), r.answer) for r in rows]
    if split != "train":
        return records
    card = get_dataset(name).card
    stepwise = [record for record in records if record.question and (record.steps or card.stepless)]
    if records and not stepwise:
        raise DataError(
            f"no row of {name} ({split}) has a question and steps as {form}: train on another `form` (the card has: "
            f"{', '.join(card.forms)}), or correct how the data set converts its rows"
        )
    return [record for record in stepwise if not refusal(card.scorer, record.answer)]


def unscorable_rows(name: str, rows: Sequence[Raw]) -> list[dict[str, str]]:
    """Return the training rows whose answers cannot be scored: where each is published, its answer, and why not."""
    card = get_dataset(name).card
    found = ((row, refusal(card.scorer, row.answer)) for row in rows)
    return [{"place": Path(row.place).name, "answer": row.answer, "why": why} for row, why in found if why]


def load_records(name: str, form: Form, split: str) -> list[Record]:
    """Load the records of a data set's split, from the folder that MARCOS_BENCH_DATA names, or else from the hub."""
    return to_records(name, form, split, load_rows(name, form, split))


def validation_rows(data: DataSpec) -> int:
    """Return how many rows a block validates on, at least."""
    if data.validation_set:
        return get_dataset(data.validation_set).card.counts["test"]
    return data.validation


def split_validation(records: Sequence[Record], count: int) -> tuple[list[Record], list[Record]]:
    """Split records into training and validation records. Those with the ``count`` smallest question hashes are
    validation data, whatever the order of the rows; where questions differ in symbols alone, which their hashes leave
    out, the symbols decide. Copies of a question stay on one side, so validation may get more than ``count``."""
    hashes = [question_hash(record.question) for record in records]
    if count >= len(set(hashes)) and count >= (distinct := len(questions(records))):
        raise DataError(f"{count} validation rows cannot be split off {distinct} distinct questions; ask fewer")
    last = sorted(hashes)[count - 1]  # the symbols decide among those with this one alone
    pairs = zip(records, hashes, strict=True)
    keys = [(key, normalise(record.question) if key == last else "") for record, key in pairs]
    threshold = sorted(keys)[count - 1]
    pairs = list(zip(records, keys, strict=True))
    train = [record for record, key in pairs if key > threshold]
    return train, [record for record, key in pairs if key <= threshold]


def questions(records: Sequence[Record]) -> set[str]:
    """Return the distinct questions, normalised."""
    return {normalise(record.question) for record in records}


def overlap_flags(tests: Sequence[Record], known: set[str]) -> list[bool]:
    """Return for each test record whether its normalised question is in ``known``."""
    return [normalise(record.question) in known for record in tests]


def exclude_questions(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Return the records whose questions none of the others has."""
    known = questions(others)
    return [record for record in records if normalise(record.question) not in known]
