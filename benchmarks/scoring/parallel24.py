"""The scorer of Parallel 24: every equation of every path must be true and use numbers that are still available, and
the last path must use all four numbers once and end in 24. Numbers are natural, as in all paths of the task's data: a
path with a negative or fractional result is wrong."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from benchmarks.scoring.base import MARKED, Asked, Score, Scorer, integers, said

# Longer numbers are wrong in any case, and Python refuses to read those of thousands of digits
EQUATION = re.compile(r"(\d{1,18}) ?([-+*/]) ?(\d{1,18}) ?= ?(\d{1,18})")
GOAL = 24


class Parallel24(Scorer):
    """A draw is a path, named by the positions of its operands: ``3-1`` subtracts the second number of the question
    from the fourth. Results get the positions from 4 on."""

    name = "parallel24"
    reads_steps = True
    strict_means = f"{MARKED}, and with k equations in step k"

    def score(self, text: str, asked: Asked) -> Score:
        lines, marked = said(text)
        numbers = integers(asked.question) or ()
        paths = [walk(line, numbers) for line in lines[: (asked.steps or 0) + 1]]
        paths += [None] * ((asked.steps or 0) + 1 - len(paths))
        draws = tuple(None if path is None else path[0] for path in paths)
        last = paths[-1]
        correct = len(lines) == len(paths) and None not in draws and last is not None and last[1] == [GOAL]
        formed = all(line.count("=") == step for step, line in enumerate(lines, 1))
        return Score(lines[-1] or None, correct, correct and formed and marked, draws)

    def choices(self, asked: Asked) -> tuple[int, ...]:
        """Return an upper bound: not every difference is a natural number, and not every quotient is whole."""
        count = len(integers(asked.question) or ())
        kinds = [6 * math.comb(count - done, 2) for done in range(count - 1)]  # +, * and both orders of - and /
        return tuple(math.prod(kinds[: step + 1]) for step in range((asked.steps or 0) + 1))


def walk(line: str, numbers: tuple[int, ...]) -> tuple[str, list[int]] | None:
    """Return a path, named by the positions of its operands, and the values that it leaves;
    None if it breaks a rule."""
    places, values = list(range(len(numbers))), list(numbers)
    moves = []
    for equation in filter(None, (part.strip() for part in line.split("."))):
        match = EQUATION.fullmatch(equation)
        if match is None:
            return None
        a, sign, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
        if not _true(a, sign, b, result) or a not in values or b not in values:
            return None
        first = values.index(a)
        later = [i for i, value in enumerate(values) if value == b and i != first]
        if not later:
            return None
        operands = [places[first], places[later[0]]]
        if sign in "+*":
            operands.sort()  # swapping the operands of a sum or a product makes no other path
        moves.append(f"{operands[0]}{sign}{operands[1]}")
        kept = [i for i in range(len(values)) if i not in (first, later[0])]
        places = [*(places[i] for i in kept), len(numbers) + len(moves) - 1]
        values = [*(values[i] for i in kept), result]
    return (" ".join(moves), values) if moves else None


def _true(a: int, sign: str, b: int, result: int) -> bool:
    if sign == "/":
        return b != 0 and Fraction(a, b) == result
    return {"+": a + b, "-": a - b, "*": a * b}[sign] == result


SCORERS = (Parallel24(),)
