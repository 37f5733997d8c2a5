"""What a scorer is, and how it reads an answer that says its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from methods.base import ANSWER_MARKER

Draws = tuple[str | None, ...]
MARKED = f"right, and with {ANSWER_MARKER} before the answer and nowhere else"


@dataclass(frozen=True)
class Asked:
    """What a scorer may know of a question. ``steps``: reasoning steps of its solution, where there is one."""

    question: str
    answer: str
    steps: int | None = None


@dataclass(frozen=True)
class Score:
    """``extracted``: the answer found, as text. ``strict``: correct, and in the form asked for. ``draws``: what was
    left to chance, one name per step, None where a step is explained by no draw; empty where nothing is."""

    extracted: str | None
    correct: bool
    strict: bool
    draws: Draws = ()


class Scorer(ABC):
    """``reads_steps``: whether it needs the steps as text, a line each, before the answer. ``strict_means``: what its
    strict score asks for, for people."""

    name: ClassVar[str]
    reads_steps: ClassVar[bool]
    strict_means: ClassVar[str]

    @abstractmethod
    def score(self, text: str, asked: Asked) -> Score:
        """Judge a generated text. What is missing or broken is wrong, never an error."""

    def choices(self, asked: Asked) -> tuple[int, ...]:
        """How many draws each step has at most, in the order of :attr:`Score.draws`."""
        return ()


def said(text: str) -> tuple[list[str], bool]:
    """The lines of a text, the last without its marker, and whether the marker stood there and nowhere else."""
    lines = [line.strip() for line in text.rstrip().split("\n")]
    marked = lines[-1].startswith(ANSWER_MARKER) and text.count(ANSWER_MARKER) == 1
    return [*lines[:-1], lines[-1].removeprefix(ANSWER_MARKER).strip()], marked


def integers(line: str) -> tuple[int, ...] | None:
    """The integers that a line consists of, or None where it holds anything else or nothing."""
    try:
        return tuple(map(int, line.split())) or None
    except ValueError:
        return None


def states(asked: Asked, lines: Sequence[str]) -> list[tuple[int, ...] | None]:
    """The numbers of the question and of each step that was asked for; None where a step is missing or broken."""
    found = [integers(line) for line in lines[: asked.steps]]
    return [integers(asked.question), *found, *[None] * ((asked.steps or 0) - len(found))]
