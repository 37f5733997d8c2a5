"""Scores answers in the same way as the evaluate stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.data import TestSet
from benchmarks.scoring import Asked, Score
from benchmarks.scoring.by_test import scorer_of

if TYPE_CHECKING:
    from benchmarks.analysis.saying import Said


def judged(test: TestSet, texts: Sequence[str]) -> list[Score]:
    """Return the scores of one text per question of a test set: its answer, or all lines if the scorer reads steps."""
    scorer = scorer_of(test.name)
    asked = (Asked(*of) for of in zip(test.texts, test.answers, test.n_steps, strict=True))
    return [scorer.score(text, one) for text, one in zip(texts, asked, strict=True)]


def readable(test: TestSet, said: Said) -> list[str]:
    """Return what was said in the form that the test set's scorer reads."""
    if scorer_of(test.name).reads_steps:
        return ["\n".join(steps) for steps in said.steps]
    return said.answers
