"""What the synthetic tasks share: a problem with one of its solutions, and numbers as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.data.draw import Draw


@dataclass(frozen=True)
class Problem:
    """A question and one solution. Questions of one ``family`` are the same problem put in other ways (the same four
    numbers in another order), and so are all in training or all in the test."""

    question: str
    steps: tuple[str, ...]
    answer: str
    family: str


def words(numbers: Iterable[int]) -> str:
    """Numbers as a line of words."""
    return " ".join(map(str, numbers))


def digits(draw: Draw, count: int) -> list[int]:
    """Independent uniform one-digit integers."""
    return [draw.below(10) for _ in range(count)]


def addition(numbers: list[int]) -> str:
    """The sum of the first two numbers as an equation."""
    a, b = numbers[:2]
    return f"{a} + {b} = {a + b}"
