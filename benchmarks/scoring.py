"""The one answer extractor that all methods are scored with."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MARKER = re.compile(r"####|###|Answer:|The answer is:", re.IGNORECASE)
NUMBER = re.compile(r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
TOLERANCE = 1e-4  # relative to the gold answer where that is larger than 1


@dataclass(frozen=True)
class Score:
    """``extracted``: the number found, as text. ``correct``: equal to the gold answer within :data:`TOLERANCE`.
    ``strict``: the same string, when commas are dropped."""

    extracted: str | None
    correct: bool
    strict: bool


def extract(text: str) -> str | None:
    """The first number after the last marker, or the last number where there is no marker; no commas, no ``$``."""
    tail = MARKER.split(text)
    found = NUMBER.findall(tail[-1])
    if not found:
        return None
    number = found[0] if len(tail) > 1 else found[-1]
    return number.replace(",", "").replace("$", "")


def score(text: str, gold: str) -> Score:
    """Compare a generated text with the gold answer. What is missing or not finite is wrong."""
    extracted = extract(text)
    if extracted is None:
        return Score(None, correct=False, strict=False)
    plain = gold.strip().replace(",", "")
    value, target = _number(extracted), _number(plain)
    close = abs(value - target) <= TOLERANCE * max(1.0, abs(target)) if math.isfinite(value - target) else False
    return Score(extracted, correct=close, strict=extracted == plain)


def _number(text: str) -> float:
    """The value of a number, NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan
