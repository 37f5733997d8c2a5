"""The targets y_1, ..., y_K of a training example: K - 1 groups of its reasoning steps, and its answer, always last.

So K counts the answer: K = 3 is two groups and the answer, as in the published code. The paper's text divides "the
original steps" into K = 3 groups and does not mention the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from methods.base import Example, Vocabulary
from methods.marcos.options import Padding
from methods.random_keys import key


def group_steps(steps: Sequence[Sequence[int]], groups: int, empty_first: bool = False) -> list[list[Sequence[int]]]:
    """Split steps into contiguous groups of about equal size. With fewer steps than groups, the empty groups come last,
    just before the answer, or first; without groups (K = 1), only the answer is spoken.

    The published code moves the answer of a short chain to an earlier step, if no line ends before its marker.
    """
    if groups and len(steps) > groups:
        bounds = [round(i * len(steps) / groups) for i in range(groups + 1)]
        return [list(steps[start:end]) for start, end in pairwise(bounds)]
    filled, empty = [[step] for step in steps[:groups]], [[] for _ in range(groups - len(steps))]
    return [*empty, *filled] if empty_first else [*filled, *empty]


def speaking_start(vocabulary: Vocabulary) -> list[int]:
    """Return the token that speaking starts from: a single one, even if the tokenizer makes two of a newline.

    Not in the paper: that it is a newline, as in the published code.
    """
    return vocabulary.newline[-1:]


def has_text(lengths: Tensor) -> Tensor:
    """Return which targets are non-empty, given their numbers of tokens: an empty one has only the token that speaking
    starts from."""
    return lengths > 1


def has_answer_marker(example: str, share: float) -> bool:
    """Return whether the answer of an example, given by its id, has the marker before it. A ``share`` of all has."""
    return key("answer marker", example) < share * 2.0**63


def step_targets(
    example: Example,
    steps: int,
    vocabulary: Vocabulary,
    limit: int,
    marked: float = 1.0,
    padding: Padding = "empty",
) -> list[list[int]]:
    """Return y_1, ..., y_K as token ids: the token that speaking starts from, the group's tokens, and end-of-text
    unless the group is empty. ``padding`` is what empty groups have, and where they are: see
    :class:`methods.marcos.options.MarCosOptions`.

    A group longer than ``limit`` tokens is cut there, and still ends with end-of-text, as in the published code: the
    limit excludes end-of-text. Speaking is therefore trained for up to ``limit`` + 1 places, while one-shot decoding
    has ``limit``: a text that fills them all is complete without an end-of-text. A share ``marked`` of all examples has
    the marker before the answer.
    """
    groups = group_steps(example.steps, steps - 1, empty_first=padding == "left")
    separator = vocabulary.encode(" ") if any(len(group) > 1 for group in groups) else []
    start = speaking_start(vocabulary)
    rows = []
    for group in groups:
        tokens: list[int] = []
        for i, step in enumerate(group):
            tokens += [*separator, *step] if i else step
        rows.append([*start, *tokens[:limit], *([vocabulary.eos] if tokens else [])])
    marker = vocabulary.answer_marker if has_answer_marker(example.id, marked) else []
    answer = [*start, *[*marker, *example.answer][:limit], vocabulary.eos]
    if padding == "answer":
        rows = [row if len(row) > len(start) else answer for row in rows]
    return [*rows, answer]
