"""How a solution becomes K targets: K-1 groups of reasoning steps, and the answer, always last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from methods.base import Example, Vocabulary
from methods.marcos.options import MarCosOptions
from methods.random_keys import key


def group(steps: Sequence[Sequence[int]], groups: int) -> list[list[Sequence[int]]]:
    """Split steps into contiguous groups of about equal size. With fewer steps than groups, the empty groups come last,
    just before the answer; without groups (K = 1), only the answer is said.

    The published code moves the answer of a short chain to an earlier step, if no line ends before its marker.
    """
    if groups and len(steps) > groups:
        bounds = [round(i * len(steps) / groups) for i in range(groups + 1)]
        return [list(steps[start:end]) for start, end in pairwise(bounds)]
    return [[step] for step in steps[:groups]] + [[] for _ in range(groups - len(steps))]


def start(vocabulary: Vocabulary) -> list[int]:
    """Return the token that speaking starts from: a single one, even if the tokenizer makes two of a newline."""
    return vocabulary.newline[-1:]


def targets(example: Example, steps: int, vocabulary: Vocabulary, limit: int, marked: float = 1.0) -> list[list[int]]:
    """Return K target rows: one token of a newline, the group's tokens, and end-of-text unless the group is empty.

    A group longer than ``limit`` tokens is cut there, and still ends with end-of-text, as in the published code. A
    share ``marked`` of all examples, drawn by their ids, has the marker before the answer.
    """
    parts = group(example.steps, steps - 1)
    blank = vocabulary.encode(" ") if any(len(part) > 1 for part in parts) else []
    rows = []
    for part in parts:
        joined = [token for i, step in enumerate(part) for token in (*(blank if i else ()), *step)]
        rows.append([*start(vocabulary), *joined[:limit], *([vocabulary.eos] if joined else [])])
    marker = vocabulary.answer_marker if key("answer marker", example.id) < marked * 2.0**63 else ()
    answer = [*marker, *example.answer]
    return [*rows, [*start(vocabulary), *answer[:limit], vocabulary.eos]]


def paths(
    questions: Sequence[Sequence[int]], split: Sequence[Sequence[Sequence[int]]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Join each question and its K targets into one row, without the end-of-text of a target, which is only said.
    Return the rows, and for each row how many of its tokens have been read at the end of each step."""
    rows, lengths = [], []
    for question, steps in zip(questions, split, strict=True):
        row, ends = [*question], []
        for step in steps:
            row += step[: len(step) - (len(step) > 1)]
            ends.append(len(row))
        rows.append(row)
        lengths.append(ends)
    return rows, lengths


def positions(options: MarCosOptions, question: int, written: Tensor, read: Tensor) -> int:
    """Return the number of positions that the four transformers process in one training pass, given the number of
    ``question`` tokens, the mask of ``written`` targets (K B, M), of which only rows that say something are spoken, and
    the number of tokens that f has ``read`` of each row (K B,), or by the end of each step (B, K)."""
    neurons = options.deep + options.shallow + (options.tau if options.randomness else 0)
    thinking = options.steps * question + len(written) * neurons
    lengths = written.sum(1)
    spoken = int((lengths[lengths > 1] - 1 + options.shallow).sum())
    encoded = int((read if read.dim() == 1 else read[:, -1]).sum()) if options.randomness else 0
    return question + thinking + spoken + encoded
