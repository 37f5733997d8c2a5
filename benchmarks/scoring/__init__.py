"""Scorers of answers: the card of each data set names one of them."""

from benchmarks.scoring.base import Asked, Score, Scorer
from benchmarks.scoring.copying import Copying
from benchmarks.scoring.number import Number
from benchmarks.scoring.parallel24 import Parallel24
from benchmarks.scoring.sequences import Pairing, Summation

SCORERS: dict[str, Scorer] = {
    scorer.name: scorer for scorer in (Number(), Summation(), Pairing(), Parallel24(), Copying())
}

__all__ = ["SCORERS", "Asked", "Score", "Scorer"]
