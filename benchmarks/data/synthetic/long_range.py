"""Long-range copy (paper, appendix A): all steps but the last say five random numbers, the last repeats those of one
earlier step.

The paper's question is not published. Here it is five digits that say nothing about the steps: they make questions
differ, and so what a model draws for them.
"""

from __future__ import annotations

from benchmarks.data.draw import Draw
from benchmarks.data.synthetic.problem import Problem, digits, words

COUNT = 5  # numbers a step says


def problem(draw: Draw, steps: int) -> Problem:
    question = words(digits(draw, COUNT))
    said = tuple(words(digits(draw, COUNT)) for _ in range(steps - 1))
    return Problem(question, said, draw.of(said), family=question)
