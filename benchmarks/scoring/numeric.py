"""The answer extractor that scores all methods on word problems, whose answers are numbers as
:mod:`benchmarks.number_grammar` reads them."""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from functools import lru_cache

from benchmarks.number_grammar import Number as Written
from benchmarks.number_grammar import Value, numbers, read, value_of
from benchmarks.scoring.base import Reference, Score, Scorer, behind_marker

TOLERANCE = 1e-4  # for gold answers that are not integers; relative if they are larger than 1


class Number(Scorer):
    """An answer is correct if its value is that of the gold answer, within :data:`TOLERANCE` if that is no integer."""

    name = "number"
    version = "2"
    reads_steps = False
    strict_means = (
        "right, and the whole answer is the gold number, digit by digit (currency, separators of thousands and a final "
        "point aside); without a marker the last line is the answer"
    )

    def score(self, text: str, asked: Reference) -> Score:
        """Judge a generated text. If it has no number, it is wrong."""
        found, gold = _first_of(*behind_marker(text)), read(asked.answer)
        if found is None:
            return Score(None, correct=False, strict=False)
        right = gold is not None and _equal(found.value, gold.value)
        return Score(found.text, right, strict=right and gold is not None and _alone(text) == gold.text)

    def vote(self, extracted: str) -> Hashable:
        """Return the value of an answer, so that 5 and 5.0 are one vote; of an expression, its text."""
        value = value_of(extracted)
        return extracted if value is None else value


@lru_cache(1 << 16)  # answers repeat, although the chains before them do not
def _first_of(tail: str, marked: bool) -> Written | None:
    """Return the first number behind a marker, or the last of a text without one. An expression, which is no number, is
    taken as it is written."""
    found = list(numbers(tail))
    return found[0 if marked else -1] if found else None


def _alone(text: str) -> str | None:
    """Return the number that the whole answer is: the first line behind the marker, or the last line without one."""
    tail, marked = behind_marker(text)
    lines = tail.strip().split("\n")
    found = read(lines[0 if marked else -1])
    return found.text if found else None


def _equal(found: Value | None, gold: Value | None) -> bool:
    if found is None or gold is None:
        return False
    if found == gold or (gold.denominator == 1 if isinstance(gold, Fraction) else gold == gold.to_integral_value()):
        return found == gold
    return abs(float(found) - float(gold)) <= TOLERANCE * max(1.0, abs(float(gold)))


SCORERS = (Number(),)
