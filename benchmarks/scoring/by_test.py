"""Which scorer a test set has: its card names it."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.data import DataError, get_dataset
from benchmarks.scoring import SCORERS, Scorer


def scorer_of(test: str) -> Scorer:
    """What the answers to a test set are scored by."""
    return SCORERS[get_dataset(test).card.scorer]


def scorers_of(tests: Iterable[str]) -> dict[str, Scorer]:
    """The scorers of test sets that are asked together: either all of them read the steps, or none does."""
    scorers = {name: scorer_of(name) for name in tests}
    if len({scorer.reads_steps for scorer in scorers.values()}) > 1:
        raise DataError(
            f"of the tests {', '.join(scorers)} some are scored by their steps and some are not: give each kind a "
            "block of its own (`tests` of the block)"
        )
    return scorers


def reads_steps(tests: Iterable[str]) -> bool:
    """Whether the steps of an answer must be said so that test sets that are asked together can be scored."""
    return any(scorer.reads_steps for scorer in scorers_of(tests).values())
