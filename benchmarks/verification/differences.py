"""Describe where two versions of the same settings, lines or texts differ."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*")
SPAN = re.compile(r"\\multicolumn\{\d+\}")
CLOSE = 1e-9  # smaller differences come from sums in another order


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


def changed_value(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    """Describe the first value that differs between two lists of lines, or return an empty text. Columns that only one
    of them has are ignored."""
    if len(old) != len(new):
        return f"{len(old)} lines, now {len(new)}"
    for number, (was, now) in enumerate(zip(old, new, strict=True), 1):
        for key, value in was.items():
            if key in now and not _same(value, now[key]):
                return f"line {number}, {key}: recorded {value}, recomputed {now[key]}"
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE) or (math.isnan(a) and math.isnan(b))
    return a == b


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
    pairs = enumerate(zip(old.splitlines(), new.splitlines(), strict=False), 1)
    number, (was, now) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    start = max(0, at - 20)
    return f"first in line {number}: was {was[start : at + 40]!r}, now {now[start : at + 40]!r}"
