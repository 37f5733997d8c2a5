"""Random Pairing (paper, level 2): every step partitions the positions into ordered pairs, and puts the sum of a pair
at its first position and the difference at its second."""

from __future__ import annotations

from benchmarks.data.draw import Draw
from benchmarks.data.synthetic.problem import Problem, addition, digits, words


def problem(draw: Draw, pairs: int, steps: int) -> Problem:
    """``2 pairs`` digits, ``steps - 1`` sequences, then the sum of the first two numbers."""
    numbers = digits(draw, 2 * pairs)
    question, said = words(numbers), []
    for _ in range(steps - 1):
        numbers = paired(numbers, shuffled(draw, 2 * pairs))
        said.append(words(numbers))
    return Problem(question, tuple(said), addition(numbers), family=question)


def shuffled(draw: Draw, count: int) -> list[int]:
    """A uniform permutation of positions (Fisher and Yates)."""
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = draw.below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def paired(numbers: list[int], order: list[int]) -> list[int]:
    """The numbers after a step whose pairs are neighbours in ``order``."""
    after = list(numbers)
    for first, second in zip(order[::2], order[1::2], strict=True):
        after[first] = numbers[first] + numbers[second]
        after[second] = numbers[first] - numbers[second]
    return after
