"""Answers scored as the evaluate stage scores them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.data import TestSet
from benchmarks.scoring import Score, score


def judged(test: TestSet, answers: Sequence[str]) -> list[Score]:
    """The scores of one answer to each question of a test set."""
    return [score(answer, gold) for answer, gold in zip(answers, test.answers, strict=True)]
