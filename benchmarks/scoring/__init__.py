"""How answers are scored: each data set's card names one of these scorers."""

from benchmarks.scoring.base import Asked, Score, Scorer
from benchmarks.scoring.copying import Copying
from benchmarks.scoring.number import Number
from benchmarks.scoring.parallel24 import Parallel24
from benchmarks.scoring.sequences import Pairing, Summation

SCORERS: dict[str, Scorer] = {
    scorer.name: scorer for scorer in (Number(), Summation(), Pairing(), Parallel24(), Copying())
}

__all__ = ["SCORERS", "Asked", "Score", "Scorer"]
