"""The one answer extractor that all methods are scored with on word problems: the answer is a number."""

from __future__ import annotations

import math
import re

from benchmarks.scoring.base import Asked, Score, Scorer
from methods.base import ANSWER_MARKER

MARKER = re.compile(rf"{ANSWER_MARKER}|###|Answer:|The answer is:", re.IGNORECASE)
NUMBER = re.compile(r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
TOLERANCE = 1e-4  # relative to the gold answer where that is larger than 1


class Number(Scorer):
    """Correct: equal to the gold answer within :data:`TOLERANCE`. Strict: the same string, when commas are dropped."""

    name = "number"
    reads_steps = False

    def score(self, text: str, asked: Asked) -> Score:
        """What is missing or not finite is wrong."""
        extracted = extract(text)
        if extracted is None:
            return Score(None, correct=False, strict=False)
        plain = asked.answer.strip().replace(",", "")
        value, target = _value(extracted), _value(plain)
        close = abs(value - target) <= TOLERANCE * max(1.0, abs(target)) if math.isfinite(value - target) else False
        return Score(extracted, correct=close, strict=extracted == plain)


def extract(text: str) -> str | None:
    """The first number after the last marker, or the last number where there is no marker; no commas, no ``$``."""
    tail = MARKER.split(text)
    found = NUMBER.findall(tail[-1])
    if not found:
        return None
    number = found[0] if len(tail) > 1 else found[-1]
    return number.replace(",", "").replace("$", "")


def _value(text: str) -> float:
    """The value of a number, NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan
