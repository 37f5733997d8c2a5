"""The scorers of the synthetic tasks, which judge every step of an answer.

* Random Summation and Random Pairing: every step must follow from the one before it by some draw, and the last equation
  must add the first two numbers of the last step.
* Parallel 24: every equation of every path must be true and use numbers that are still available, and the last path
  must use all four numbers once and end in 24. Numbers are natural, as in all paths of the task's data: a path with a
  negative or fractional result is wrong. If the last path is all that is asked, it alone is judged.
* Long-range copy: the five numbers of the answer must be those of one earlier step.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from itertools import pairwise

from benchmarks.scoring.base import MARKED, Reference, Score, Scorer, integers, split_answer, states

Numbers = tuple[int, ...]
# Longer numbers are wrong in any case, and Python refuses to read those of thousands of digits
ADDITION = re.compile(r"(-?\d{1,18}) ?\+ ?(-?\d{1,18}) ?= ?(-?\d{1,18})")
EQUATION = re.compile(r"(\d{1,18}) ?([-+*/]) ?(\d{1,18}) ?= ?(\d{1,18})")
GOAL, OPERATIONS = 24, 3  # of Parallel 24
COPIED = 5  # numbers in a step of long-range copy
WIDTH = 4  # steps per bin in the paper's figure of long-range copy


class Sequences(Scorer):
    """Judges the steps of an answer and the equation at its end."""

    reads_steps = True
    strict_means = MARKED

    @abstractmethod
    def explain(self, before: Numbers, after: Numbers) -> str | None:
        """Return the draw that turns one sequence into the other, or None if there is none."""

    def score(self, text: str, asked: Reference) -> Score:
        lines, marked = split_answer(text)
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

    def choices(self, asked: Reference) -> tuple[int, ...]:
        return (10,) * (asked.steps or 0)


class Pairing(Sequences):
    """The draw is a partition of the positions into ordered pairs, such as ``0,5 1,7 4,2 ...``, with the pairs sorted.
    If equal numbers allow several partitions, it is the first one found."""

    name = "pairing"

    def explain(self, before: Numbers, after: Numbers) -> str | None:
        if len(before) != len(after):
            return None
        found = _partition(before, after, tuple(range(len(before))))
        return None if found is None else " ".join(f"{a},{b}" for a, b in sorted(found))

    def choices(self, asked: Reference) -> tuple[int, ...]:
        count = len(integers(asked.question) or ())
        return (math.factorial(count) // math.factorial(count // 2),) * (asked.steps or 0)


def _partition(before: Numbers, after: Numbers, free: Numbers) -> tuple[tuple[int, int], ...] | None:
    """Return the first partition of the free positions into ordered pairs that explains ``after``, or None: a pair's
    first position gets the sum of its numbers, the second their difference. Of positions with the same numbers one is
    tried: a degenerate answer has many, and their partitions are too many to try."""
    if not free:
        return ()
    one, tried = free[0], set[tuple[int, int]]()
    for other in free[1:]:
        numbers = before[other], after[other]
        for first, second in ((one, other), (other, one)):
            total, difference = before[first] + before[second], before[first] - before[second]
            if numbers in tried or (after[first], after[second]) != (total, difference):
                continue
            tried.add(numbers)
            rest = tuple(position for position in free[1:] if position != other)
            if (found := _partition(before, after, rest)) is not None:
                return ((first, second), *found)
    return None


class Parallel24(Scorer):
    """A draw is a path, named by the positions of its operands: ``3-1`` subtracts the second number of the question
    from the fourth. Results get the positions from 4 on."""

    name = "parallel24"
    reads_steps = True
    strict_means = f"{MARKED}, and with k equations in step k"

    def score(self, text: str, asked: Reference) -> Score:
        lines, marked = split_answer(text)
        numbers = integers(asked.question) or ()
        paths = [walk(line, numbers) for line in lines[: (asked.steps or 0) + 1]]
        paths += [None] * ((asked.steps or 0) + 1 - len(paths))
        draws = tuple(None if path is None else path[0] for path in paths)
        last = paths[-1]
        correct = len(lines) == len(paths) and None not in draws and last is not None and last[1] == [GOAL]
        formed = all(line.count("=") == count for line, count in zip(lines, _operations(asked), strict=False))
        return Score(lines[-1] or None, correct, correct and formed and marked, draws)

    def choices(self, asked: Reference) -> tuple[int, ...]:
        """Return an upper bound: not every difference is a natural number, and not every quotient is whole."""
        numbers = len(integers(asked.question) or ())
        kinds = [6 * math.comb(numbers - done, 2) for done in range(numbers - 1)]  # +, * and both orders of - and /
        return tuple(math.prod(kinds[:count]) for count in _operations(asked))


def _operations(asked: Reference) -> range:
    """Return the number of operations in each path of Parallel 24."""
    return range(OPERATIONS - (asked.steps or 0), OPERATIONS + 1)


class LastPath(Parallel24):
    """Parallel 24 without the paths before the last."""

    name = "last_path"
    reads_steps = False
    reads_question = True
    strict_means = f"{MARKED}, and with three equations"


def walk(line: str, numbers: tuple[int, ...]) -> tuple[str, list[int]] | None:
    """Return a path, named by the positions of its operands, and the values that it leaves;
    None if it breaks a rule."""
    left, moves = dict(enumerate(numbers)), list[str]()  # values by position
    for equation in filter(None, (part.strip() for part in line.split("."))):
        match = EQUATION.fullmatch(equation)
        if match is None:
            return None
        a, sign, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
        first = next((place for place, value in left.items() if value == a), None)
        second = next((place for place, value in left.items() if value == b and place != first), None)
        if first is None or second is None or not _true(a, sign, b, result):
            return None
        # swapping the operands of a sum or a product makes no other path
        operands = sorted((first, second)) if sign in "+*" else (first, second)
        moves.append(f"{operands[0]}{sign}{operands[1]}")
        del left[first], left[second]
        left[len(numbers) + len(moves) - 1] = result
    return (" ".join(moves), list(left.values())) if moves else None


def _true(a: int, sign: str, b: int, result: int) -> bool:
    if sign == "/":
        return b != 0 and a == b * result
    return {"+": a + b, "-": a - b, "*": a * b}[sign] == result


class Copying(Scorer):
    """The draw is the number of the step that was copied, counted from 1;
    if several steps are equal, the first of them."""

    name = "copy"
    reads_steps = True
    strict_means = MARKED

    def score(self, text: str, asked: Reference) -> Score:
        lines, marked = split_answer(text)
        steps = states(asked, lines)[1:]
        answer = integers(lines[-1])
        complete = len(lines) == len(steps) + 1 and all(step is not None and len(step) == COPIED for step in steps)
        copied = steps.index(answer) + 1 if complete and answer in steps else None
        correct = copied is not None
        return Score(lines[-1] or None, correct, correct and marked, (str(copied) if correct else None,))

    def choices(self, asked: Reference) -> tuple[int, ...]:
        return (asked.steps or 1,)


def bins(choices: int) -> list[range]:
    """Return ranges of steps that are counted together: as wide as in the paper if that
    fills four bins, else one step each."""
    width = WIDTH if choices + 1 >= 4 * WIDTH else 1
    return [range(first, min(first + width, choices + 1)) for first in range(1, choices + 1, width)]


def repeats(text: str) -> float:
    """Return the share of an answer's steps (all lines but the last) that repeat an earlier one."""
    steps = split_answer(text)[0][:-1]
    return 1 - len(set(steps)) / len(steps) if steps else 0.0


SCORERS = (Summation(), Pairing(), Parallel24(), LastPath(), Copying())
