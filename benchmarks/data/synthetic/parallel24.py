"""Parallel 24 (paper, level 3): the game of 24, in which each step may start over from the four numbers.

Step k says a path of k operations; the last, of three, uses all four numbers and gives 24. The paper's own paths are
not published: here the operations of those before the last are drawn one by one, dead ends included, as in its example,
and the last path is drawn from all solutions. All numbers are natural; the larger operand stands first.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

from benchmarks.data.draw import Draw
from benchmarks.data.synthetic.problem import Problem, words
from methods.errors import InputError

COUNT, LARGEST, GOAL = 4, 13, 24

Path = tuple[str, ...]


def problem(draw: Draw, steps: int) -> Problem:
    """Four numbers that admit 24, in any order; ``steps`` is 3, the operations that use them up."""
    if steps != COUNT - 1:
        raise InputError(f"{COUNT} numbers are used up in {COUNT - 1} steps, not in {steps}")
    while True:
        numbers = [1 + draw.below(LARGEST) for _ in range(COUNT)]
        hand = tuple(sorted(numbers))
        if solved := solutions(hand):
            said = tuple(written(attempt(draw, hand, length)) for length in range(1, steps))
            return Problem(words(numbers), said, written(draw.of(solved)), family=words(hand))


def attempt(draw: Draw, hand: tuple[int, ...], length: int) -> Path:
    """A path of so many operations, each drawn from those that there are."""
    path: Path = ()
    for _ in range(length):
        equation, hand = draw.of(operations(hand))
        path = (*path, equation)
    return path


def written(path: Path) -> str:
    """The equations of a path as a line."""
    return " . ".join(path)


@cache
def solutions(hand: tuple[int, ...]) -> tuple[Path, ...]:
    """All paths that use up the sorted numbers and end in 24."""
    if len(hand) == 1:
        return ((),) if hand == (GOAL,) else ()
    return tuple((equation, *path) for equation, left in operations(hand) for path in solutions(left))


@cache
def operations(hand: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """All distinct operations on two of the sorted numbers: the equation, and the sorted numbers after it."""
    found: dict[str, tuple[int, ...]] = {}
    for low, high in combinations(range(len(hand)), 2):
        a, b = hand[high], hand[low]  # a >= b
        rest = [n for i, n in enumerate(hand) if i not in (low, high)]
        for sign, value in results(a, b).items():
            found[f"{a} {sign} {b} = {value}"] = tuple(sorted([*rest, value]))
    return tuple(found.items())


def results(a: int, b: int) -> dict[str, int]:
    """What the signs make of a and b, where that is a natural number."""
    values = {"+": a + b, "-": a - b, "*": a * b}
    return values | {"/": a // b} if b and a % b == 0 else values
