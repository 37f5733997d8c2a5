"""How long a run trains: the budget of a method's curriculum, and the optimizer steps of its stages."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.data import Corpus
from benchmarks.studies.specs import TrainingSpec
from methods.base import Budget, Method, Stage
from methods.errors import InputError

UNSPENT = 0.99  # share of a budget; a curriculum that spends less is warned of

log = logging.getLogger(__name__)


def curriculum(method: Method, budget: Budget) -> list[Stage]:
    """Return the stages of a method. Raise InputError if they spend more than the budget, which would make comparisons
    unfair, one keeps an optimizer that does not have all that it trains, or the last one does not say by which losses
    weights are selected. Stages that train on cached features, in which the frozen model runs once, do not count."""
    stages = method.stages(budget)
    spent = ", ".join(f"{stage.name}: {stage.epochs:g}" for stage in stages)
    if not stages or any(stage.epochs <= 0 for stage in stages):
        raise InputError(f"{method.name}: `stages` returns {spent or 'none'}: every stage needs some epochs")
    if math.fsum(stage.epochs for stage in stages if not stage.cached) > budget.epochs * (1 + 1e-6):
        raise InputError(
            f"{method.name}: `stages` spends more than its budget of {budget.epochs:g} epochs ({spent}): make them "
            "shares of it"
        )
    if math.fsum(stage.epochs for stage in stages) < budget.epochs * UNSPENT:
        log.warning(
            "%s spends %s of its %g epochs, and other rows all of theirs: give its stages all, if rows are compared",
            method.name,
            spent,
            budget.epochs,
        )
    names = [name for name, _ in method.named_parameters()]
    for before, after in pairwise(stages):
        if after.keep_optimizer and any(after.trains(name) and not before.trains(name) for name in names):
            raise InputError(
                f"{method.name}: stage {after.name!r} keeps the optimizer of {before.name!r}, which trains less: leave "
                "out `keep_optimizer`, or train the same"
            )
    for stage in stages:
        if isinstance(name := stage.select_on, str):  # which would be read letter by letter
            raise InputError(
                f"{method.name}: stage {stage.name!r} has `select_on={name!r}`: write the tuple ({name!r},)"
            )
    if not stages[-1].select_on:
        raise InputError(
            f"{method.name}: its last stage, {stages[-1].name!r}, names no loss in `select_on`: by these the weights "
            "are selected that the run ends with"
        )
    return stages


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
