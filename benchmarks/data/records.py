"""Rows and records of data sets (questions, reasoning steps and answers), and the rules that make texts comparable."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from methods.errors import InputError

MARK = re.compile(r"<<[^<>]*>>")  # the calculator marks of GSM8K, as in <<48/2=24>>
NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class DataError(InputError):
    """Raised when input cannot be used. The message names the file, the line and what to do."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One row as published, before a form of steps is chosen. ``solution`` is the reasoning without the answer."""

    key: str
    question: str
    solution: str
    answer: str
    place: str = ""  # file and line, for error messages


@dataclass(frozen=True, slots=True)
class Record:
    """One problem: its question, its reasoning steps (empty if the source has none) and its answer."""

    id: str
    question: str
    steps: tuple[str, ...]
    answer: str


def equations(solution: str) -> tuple[str, ...]:
    """Return the calculator marks of a solution, each as one step."""
    return tuple(MARK.findall(solution))


def sentences(solution: str) -> tuple[str, ...]:
    """Return the sentences of a solution, without its calculator marks. A step ends at a line break, or at a period
    before a blank, so a decimal point does not end one."""
    plain = MARK.sub("", solution)
    return tuple(part.strip() for part in re.split(r"(?<=\.)\s+|\n+", plain) if part.strip())


def lines(solution: str) -> tuple[str, ...]:
    """Return the lines of a solution, each as one step."""
    return tuple(solution.splitlines())


def is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None


def number_text(text: str) -> str:
    """Return a number in the form that answers have: no commas, and no ``.0`` behind an integral value."""
    plain = text.strip().replace(",", "")
    return re.sub(r"\.0*$", "", plain) if is_number(plain) else plain


def normalise(question: str) -> str:
    """Reduce a question to what makes two questions the same. Letter case, punctuation, thousands separators, the
    ``.0`` of integral numbers and blanks (tokenised text writes "did n't") are dropped. Blanks between numbers stay."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", question.casefold())
    text = re.sub(r"(\d)\.0+(?!\d)", r"\1", text)
    words = " ".join(re.sub(r"[^\w.]|\.(?!\d)", " ", text).split())
    return re.sub(r"(?<!\d) | (?!\d)", "", words)


def question_hash(question: str) -> str:
    """Return the SHA-256 of the normalised question.
    It decides what is validation data, whatever the order of the rows."""
    return hashlib.sha256(normalise(question).encode()).hexdigest()


def digest(rows: Iterable[Raw]) -> str:
    """Return the SHA-256 of questions, solutions and answers in order.
    It is the same for the same rows from another source."""
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps([row.question, row.solution, row.answer], ensure_ascii=False).encode() + b"\n")
    return total.hexdigest()
