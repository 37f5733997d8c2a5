"""The one answer extractor that all methods are scored with on word problems: the answer is a number."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from benchmarks.scoring.base import Asked, Score, Scorer
from methods.base import ANSWER_MARKER

MARKER = re.compile(rf"{ANSWER_MARKER}|###|Answer:|The answer is:", re.IGNORECASE)
MINUS = "-\N{MINUS SIGN}\N{EN DASH}"  # each is written for it
NUMBER = re.compile(rf"[{MINUS}]?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
PLAIN = str.maketrans(dict.fromkeys(MINUS, "-") | dict.fromkeys(",$"))
TOLERANCE = 1e-4  # of gold answers that are no integers; relative where they are larger than 1


class Number(Scorer):
    """Correct: equal to the gold answer, within :data:`TOLERANCE` where that is no integer."""

    name = "number"
    reads_steps = False
    strict_means = (
        "right, and written exactly as the gold number ($ and commas aside); without a marker the last number counts"
    )

    def score(self, text: str, asked: Asked) -> Score:
        """What is missing is wrong."""
        extracted = extract(text)
        if extracted is None:
            return Score(None, correct=False, strict=False)
        plain = asked.answer.strip().replace(",", "")
        return Score(extracted, correct=_equal(extracted, plain), strict=extracted == plain)


def extract(text: str) -> str | None:
    """The first number after the last marker, or the last number where there is no marker; no commas, no ``$``, and a
    hyphen as its minus."""
    tail = MARKER.split(text)
    found = NUMBER.findall(tail[-1])
    if not found:
        return None
    number = found[0] if len(tail) > 1 else found[-1]
    return number.translate(PLAIN)


def _equal(found: str, gold: str) -> bool:
    """Whether a number is the gold one; no text but a finite number is."""
    try:
        value, target = Decimal(found), Decimal(gold)
    except InvalidOperation:
        return False
    if not target.is_finite():
        return False
    if target == target.to_integral_value():
        return value == target
    return abs(float(value) - float(target)) <= TOLERANCE * max(1.0, abs(float(target)))
