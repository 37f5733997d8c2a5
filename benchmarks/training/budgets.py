"""How long a run trains: the budget of a method's curriculum, and the optimizer steps of its stages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.data import Corpus
from benchmarks.studies.specs import TrainingSpec
from methods.base import Budget, Stage


def steps_of(stage: Stage, steps_per_epoch: int) -> int:
    return max(1, round(stage.epochs * steps_per_epoch))


def budget_of(training: TrainingSpec, corpus: Corpus, rows: int | None = None) -> Budget:
    """Return the budget of a run on a corpus, or on ``rows`` rows like those of the corpus."""
    count, chains = rows or len(corpus), corpus.chain_lengths.tolist()
    return budget_for(training, count, float(corpus.lengths.sum()) * (count / len(corpus)), chains)


def budget_for(training: TrainingSpec, rows: int, tokens: float, chains: Sequence[int]) -> Budget:
    """Return the budget of a run on ``rows`` rows. ``tokens`` is the total length of question, steps and answer over
    all rows, which a token budget is measured in. ``chains`` holds the length of each row's steps (or of a sample of
    them), in tokens, line ends included."""
    epochs = training.epochs or (training.tokens or 0) / tokens
    return Budget(epochs, math.ceil(rows / training.batch_size), tuple(chains))
