"""How a solution becomes K targets: K-1 groups of reasoning steps, and the answer, always last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from methods.base import Example, Vocabulary
from methods.draws import key


def group(steps: Sequence[Sequence[int]], groups: int) -> list[list[Sequence[int]]]:
    """Contiguous, even groups. With fewer steps than groups the empty ones come last, just before the answer.

    Without any group, K = 1, only the answer is said. The published code instead moves a short answer to an earlier
    step.
    """
    if groups and len(steps) > groups:
        bounds = [round(i * len(steps) / groups) for i in range(groups + 1)]
        return [list(steps[start:end]) for start, end in pairwise(bounds)]
    return [[step] for step in steps[:groups]] + [[] for _ in range(groups - len(steps))]


def targets(example: Example, steps: int, vocabulary: Vocabulary, limit: int, marked: float = 1.0) -> list[list[int]]:
    """K target rows: newline (what speaking starts from), the group's tokens, end-of-text unless the group is empty.

    A group longer than ``limit`` tokens is cut there, and ends with end-of-text all the same, as in the published code.
    A share ``marked`` of all examples, drawn by their ids, has the marker before the answer.
    """
    blank = vocabulary.encode(" ")
    rows = []
    for part in group(example.steps, steps - 1):
        joined = [token for i, step in enumerate(part) for token in (*(blank if i else ()), *step)]
        rows.append([*vocabulary.newline, *joined[:limit], *([vocabulary.eos] if joined else [])])
    marker = vocabulary.answer_marker if key("answer marker", example.id) < marked * 2.0**63 else ()
    answer = [*marker, *example.answer]
    return [*rows, [*vocabulary.newline, *answer[:limit], vocabulary.eos]]
