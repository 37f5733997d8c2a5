"""Which test questions also appear in the training data: two questions are the same if their normalised texts are
(:func:`benchmarks.data.records.normalise`). Scores are given with and without these questions."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.data.records import Record, normalise


def questions(records: Sequence[Record]) -> set[str]:
    """Return the distinct questions, normalised."""
    return {normalise(record.question) for record in records}


def overlap_flags(tests: Sequence[Record], known: set[str]) -> list[bool]:
    """Return for each test record whether its normalised question is in ``known``."""
    return [normalise(record.question) in known for record in tests]


def exclude_questions(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Return the records whose questions none of the others has."""
    flags = overlap_flags(records, questions(others))
    return [record for record, known in zip(records, flags, strict=True) if not known]
