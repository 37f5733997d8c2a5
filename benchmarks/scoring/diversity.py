"""How varied a model's draws are, for tasks that leave something to chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from pydantic import BaseModel

KINDS = 100  # if there are more choices than this, a record does not count each draw
FEWEST_PAIRS = 30  # pairs of draws for the same question; the agreement of fewer says nothing


class DrawStatistics(BaseModel):
    """The draws of one step over questions and decoding seeds.

    ``n``: how many draws the task's rules explain; ``share``: their share of all answers. ``choices``: how many draws
    are possible. ``entropy``: the entropy of the draws in bits; ``maximum``: the highest entropy possible with that
    many choices and draws. ``agreement``: how often two seeds draw the same for the same question; None if there are
    fewer than :data:`FEWEST_PAIRS` pairs, as with one seed. ``counts``: how often each draw occurs; empty if there are
    more than :data:`KINDS` choices.
    """

    n: int
    share: float
    choices: int
    entropy: float
    maximum: float
    agreement: float | None
    counts: dict[str, int]


def draw_statistics(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the statistics of each step's draws, from the predictions of one test set
    (columns id, seed, draws, choices)."""
    choices = [int(value) for value in frame["choices"].iloc[0]] if len(frame) else []
    return [
        _statistics(frame.assign(draw=frame["draws"].str[i]), count).model_dump() for i, count in enumerate(choices)
    ]


def _statistics(frame: pd.DataFrame, choices: int) -> DrawStatistics:
    drawn = frame.dropna(subset="draw")
    counts = Counter(drawn["draw"])
    return DrawStatistics(
        n=len(drawn),
        share=len(drawn) / len(frame),
        choices=choices,
        entropy=entropy(counts.values()),
        maximum=math.log2(max(1, min(choices, len(drawn)))),
        agreement=_agreement(list(group) for _, group in drawn.groupby("id")["draw"]),
        counts=dict(sorted(counts.items())) if choices <= KINDS else {},
    )


def entropy(counts: Iterable[int]) -> float:
    """Return the entropy of counts in bits, which is 0 if nothing was counted."""
    present = [count for count in counts if count]
    total = sum(present)
    return math.fsum(count / total * math.log2(total / count) for count in present)


def _agreement(groups: Iterable[Sequence[str]]) -> float | None:
    """Return the share of pairs within groups that are equal, or None if there are fewer
    than :data:`FEWEST_PAIRS` pairs."""
    equal = pairs = 0
    for group in groups:
        pairs += math.comb(len(group), 2)
        equal += sum(math.comb(count, 2) for count in Counter(group).values())
    return equal / pairs if pairs >= FEWEST_PAIRS else None
