"""The answer extractor that scores all methods on word problems, whose answers are numbers."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from benchmarks.scoring.base import Asked, Score, Scorer, behind_marker

MINUS = "-\N{MINUS SIGN}\N{EN DASH}"  # characters that models write as a minus sign
NUMBER = re.compile(rf"[{MINUS}]?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
PLAIN = str.maketrans(dict.fromkeys(MINUS, "-") | dict.fromkeys(",$"))
TOLERANCE = 1e-4  # for gold answers that are not integers; relative if they are larger than 1


class Number(Scorer):
    """An answer is correct if it equals the gold answer, within :data:`TOLERANCE` if that is not an integer."""

    name = "number"
    reads_steps = False
    strict_means = (
        "right, and written exactly as the gold number ($ and commas aside); without a marker the last number counts"
    )

    def score(self, text: str, asked: Asked) -> Score:
        """Judge a generated text. If it has no number, it is wrong."""
        extracted = extract(text)
        if extracted is None:
            return Score(None, correct=False, strict=False)
        plain = asked.answer.strip().replace(",", "")
        return Score(extracted, correct=_equal(extracted, plain), strict=extracted == plain)


def extract(text: str) -> str | None:
    """Return the first number after the last marker, or the last number if there is no marker. It has no commas and no
    ``$``, and its minus sign is a hyphen."""
    tail, marked = behind_marker(text)
    found = NUMBER.findall(tail)
    if not found:
        return None
    number = found[0] if marked else found[-1]
    return number.translate(PLAIN)


def _equal(found: str, gold: str) -> bool:
    """Return whether a number equals the gold one. A gold text that is not a finite number equals none."""
    try:
        value, target = Decimal(found), Decimal(gold)
    except InvalidOperation:
        return False
    if not target.is_finite():
        return False
    if target == target.to_integral_value():
        return value == target
    return abs(float(value) - float(target)) <= TOLERANCE * max(1.0, abs(float(target)))


SCORERS = (Number(),)
