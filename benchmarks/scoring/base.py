"""The interface of scorers, and how they read an answer that includes its steps."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from methods.base import ANSWER_MARKER

MARKER = re.compile(rf"{ANSWER_MARKER}|###|Answer:|The answer is:", re.IGNORECASE)  # as models write it
Draws = tuple[str | None, ...]
MARKED = f"right, and with {ANSWER_MARKER} before the answer and nowhere else"


@dataclass(frozen=True)
class Reference:
    """The facts about a question that a scorer may use.
    ``steps``: the number of reasoning steps in its solution, if it has one."""

    question: str
    answer: str
    steps: int | None = None


@dataclass(frozen=True)
class Score:
    """The score of one answer.

    ``extracted``: the answer that was found, as text. ``strict``: correct, and in the requested form. ``draws``: the
    random choice at each step, by name; None for a step that no draw explains; empty if the task leaves nothing to
    chance.
    """

    extracted: str | None
    correct: bool
    strict: bool
    draws: Draws = ()


class Scorer(ABC):
    """The scorer of one kind of task.

    ``reads_steps``: whether it needs the steps as text before the answer, one line each, and the question that they
    begin from. ``reads_question``: whether it needs the question without them. ``strict_means``: what its strict score
    requires, in words. ``version``: raised by every edit that may score an answer otherwise; records name
    it, so that `marcos-bench verify` can tell scores of an older version.
    """

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    reads_steps: ClassVar[bool]
    reads_question: ClassVar[bool] = False
    strict_means: ClassVar[str]

    @abstractmethod
    def score(self, text: str, asked: Reference) -> Score:
        """Judge a generated text. Missing or malformed parts make it wrong and never raise an error."""

    def vote(self, extracted: str) -> Hashable:
        """Return what an extracted answer counts as in a vote: the same for answers that are the same."""
        return extracted

    def choices(self, asked: Reference) -> tuple[int, ...]:
        """Return the maximum number of possible draws at each step, in the order of :attr:`Score.draws`."""
        return ()


def split_answer(text: str) -> tuple[list[str], bool]:
    """Return the lines of a text, the last one without its marker, and whether the marker is there and nowhere else."""
    lines = [line.strip() for line in text.rstrip().split("\n")]
    marked = lines[-1].startswith(ANSWER_MARKER) and text.count(ANSWER_MARKER) == 1
    return [*lines[:-1], lines[-1].removeprefix(ANSWER_MARKER).strip()], marked


def behind_marker(text: str) -> tuple[str, bool]:
    """Return what stands behind the last marker of a text, in any of its forms, and True; without one, the whole text
    and False."""
    *before, tail = MARKER.split(text)
    return tail, bool(before)


def integers(line: str) -> tuple[int, ...] | None:
    """Return the integers that a line consists of, or None if it is empty or contains anything else."""
    try:
        return tuple(map(int, line.split())) or None
    except ValueError:
        return None


def states(asked: Reference, lines: Sequence[str]) -> list[tuple[int, ...] | None]:
    """Return the numbers of the question and of each step that was asked for, with None for
    a missing or malformed step."""
    found = [integers(line) for line in lines[: asked.steps]]
    return [integers(asked.question), *found, *[None] * ((asked.steps or 0) - len(found))]
