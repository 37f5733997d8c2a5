"""Scorers of Random Summation and Random Pairing: every step must follow from the one before it by some draw, and the
last equation must add the first two numbers of the last step."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise

from benchmarks.scoring.base import MARKED, Asked, Score, Scorer, integers, said, states

Numbers = tuple[int, ...]
# Longer numbers are wrong in any case, and Python refuses to read those of thousands of digits
ADDITION = re.compile(r"(-?\d{1,18}) ?\+ ?(-?\d{1,18}) ?= ?(-?\d{1,18})")


class Sequences(Scorer):
    """Judges the steps of an answer and the equation at its end."""

    reads_steps = True
    strict_means = MARKED

    @abstractmethod
    def explain(self, before: Numbers, after: Numbers) -> str | None:
        """Return the draw that turns one sequence into the other, or None if there is none."""

    def score(self, text: str, asked: Asked) -> Score:
        lines, marked = said(text)
        found = states(asked, lines)
        draws = tuple(self.explain(a, b) if a and b else None for a, b in pairwise(found))
        complete = len(lines) == len(found) and None not in draws
        correct = complete and _adds(lines[-1], found[-1])
        return Score(lines[-1] or None, correct, correct and marked, draws)


def _adds(equation: str, numbers: Numbers | None) -> bool:
    """Return whether an equation is true and adds the first two numbers."""
    match = ADDITION.fullmatch(equation)
    if match is None or numbers is None:
        return False
    a, b, total = map(int, match.groups())
    return (a, b) == numbers[:2] and a + b == total


class Summation(Sequences):
    """The draw is the digit that was added to every number."""

    name = "summation"

    def explain(self, before: Numbers, after: Numbers) -> str | None:
        added = {b - a for a, b in zip(before, after, strict=False)}
        digit = added.pop() if len(before) == len(after) and len(added) == 1 else -1
        return str(digit) if 0 <= digit <= 9 else None

    def choices(self, asked: Asked) -> tuple[int, ...]:
        return (10,) * (asked.steps or 0)


class Pairing(Sequences):
    """The draw is a partition of the positions into ordered pairs, such as ``0,5 1,7 4,2 ...``, with the pairs sorted.
    If equal numbers allow several partitions, it is the first one found."""

    name = "pairing"

    def explain(self, before: Numbers, after: Numbers) -> str | None:
        if len(before) != len(after):
            return None
        found = next(_partitions(before, after, tuple(range(len(before)))), None)
        return None if found is None else " ".join(f"{a},{b}" for a, b in sorted(found))

    def choices(self, asked: Asked) -> tuple[int, ...]:
        count = len(integers(asked.question) or ())
        return (math.factorial(count) // math.factorial(count // 2),) * (asked.steps or 0)


def _partitions(before: Numbers, after: Numbers, free: Numbers) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield all partitions of the free positions into ordered pairs that explain ``after``: a pair's first position
    gets the sum of its numbers, the second their difference."""
    if not free:
        yield ()
        return
    one = free[0]
    for other in free[1:]:
        rest = tuple(position for position in free[1:] if position != other)
        for first, second in ((one, other), (other, one)):
            total, difference = before[first] + before[second], before[first] - before[second]
            if (after[first], after[second]) == (total, difference):
                yield from (((first, second), *pairs) for pairs in _partitions(before, after, rest))


SCORERS = (Summation(), Pairing())
