"""Random Summation (paper, level 1): every step adds one drawn digit to all numbers, and does not say which."""

from __future__ import annotations

from benchmarks.data.draw import Draw
from benchmarks.data.synthetic.problem import Problem, addition, digits, words


def problem(draw: Draw, pairs: int, steps: int) -> Problem:
    """``2 pairs`` digits, ``steps - 1`` sequences, then the sum of the first two numbers."""
    numbers = digits(draw, 2 * pairs)
    question, said = words(numbers), []
    for _ in range(steps - 1):
        addend = draw.below(10)
        numbers = [number + addend for number in numbers]
        said.append(words(numbers))
    return Problem(question, tuple(said), addition(numbers), family=question)
