"""How far numbers can be trusted: spreads, intervals, and paired tests between rows over the same questions.

A row's answers are a frame: a line per question, a column per training. With one training, tests and intervals are
about other questions for these weights. With several, they are about other questions and other training seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from methods.errors import InputError

PERMUTATIONS = 9_999
RESAMPLES = 2_000  # of the bootstrap
SEED = 0  # of what is drawn: a table is a function of its records
ALPHA = 0.05
CONFIDENCE = 0.95  # of intervals
FEWEST = 10  # questions or answers: a share of fewer says nothing
FEWEST_TRAININGS = 3  # of a row: fewer say too little of how far its trainings differ, whatever a test makes of them
TIMES_DIFFER = 1.75  # at most, of 94 times of `quick` and `small_3b` that an idle machine measured twice (half: 1.2)


@dataclass(frozen=True)
class PairedTest:
    """``difference``: mean correctness of the first minus the second over ``n`` shared questions; two-sided.
    ``p_value``: NaN where nothing tests the difference (see :func:`testable`)."""

    n: int
    difference: float
    p_value: float
    kind: Literal["mcnemar", "permutation", "trainings", "untested"]


@dataclass(frozen=True)
class Uncertainty:
    """The variance of a mean over questions and trainings, and its degrees of freedom (Welch and Satterthwaite). Its
    sources are added as if they were independent: what the draw of questions and the seeds both vary counts twice, so
    that the variance is rather too large than too small."""

    variance: float
    freedom: float

    @classmethod
    def of(cls, *sources: tuple[float, int]) -> Uncertainty:
        """Of variances of means, each with the number of values behind it."""
        total = sum(variance for variance, _ in sources)
        freedom = total**2 / sum(variance**2 / (count - 1) for variance, count in sources) if total else np.inf
        return cls(total, freedom)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.variance))


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation, or None where fewer than two values leave it undefined."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def correctness(predictions: pd.DataFrame, by: str = "same_as") -> pd.DataFrame:
    """Mean correctness over decoding seeds of each question in each training: one, or those of the column
    ``training_seed``. Questions that are the same (column ``same_as``, which older predictions lack) are one question:
    as several they would count as independent."""
    frame = predictions.assign(training_seed=predictions.get("training_seed", 0), correct=predictions["correct"] * 1.0)
    return frame.pivot_table("correct", by if by in frame else "id", "training_seed")


def testable(a: int, b: int) -> bool:
    """Whether rows of so many trainings can be tested against each other: one of each, over questions, or enough of
    both. With less, Welch's test calls luck a difference too often, the more so the less alike they vary."""
    return a == b == 1 or min(a, b) >= FEWEST_TRAININGS


def paired_test(a: pd.DataFrame, b: pd.DataFrame) -> PairedTest:
    """Whether two rows differ on the questions they share.

    With one training each: an exact McNemar test where each question is right or wrong; where correctness is a mean
    over decoding seeds, a sign-flip permutation test of the mean difference. With at least three of each: a t test of
    the mean difference, which varies with the questions and with the trainings of either row. Otherwise none.
    """
    shared = a.index.intersection(b.index)
    if not len(shared):
        raise InputError("the two rows share no question: compare runs that were evaluated on the same test set")
    a, b = a.loc[shared], b.loc[shared]
    difference = (a.mean(axis=1) - b.mean(axis=1)).to_numpy()
    if not testable(a.shape[1], b.shape[1]):
        return PairedTest(len(a), float(difference.mean()), np.nan, "untested")
    if a.shape[1] > 1:
        p_value = _between_trainings(difference, a, b)
        return PairedTest(len(a), float(difference.mean()), p_value, "trainings")
    changed = difference[difference != 0]  # a sign flip of 0 changes nothing
    if np.isin([a, b], (0.0, 1.0)).all():
        wins = int((changed > 0).sum())
        p_value = stats.binomtest(wins, len(changed)).pvalue if len(changed) else 1.0
        return PairedTest(len(a), float(difference.mean()), float(p_value), "mcnemar")
    p_value = _sign_flip(changed) if len(changed) > 1 else 1.0
    return PairedTest(len(a), float(difference.mean()), p_value, "permutation")


def _between_trainings(difference: np.ndarray, a: pd.DataFrame, b: pd.DataFrame) -> float:
    """The p-value of rows of several trainings each."""
    found = Uncertainty.of(_questions(difference), _trainings(a), _trainings(b))
    if not found.variance:
        return float(difference.mean() == 0)
    return float(2 * stats.t.sf(abs(difference.mean()) / found.deviation, found.freedom))


def _questions(values: np.ndarray) -> tuple[float, int]:
    """The variance that questions give to a mean over them, and how many there are."""
    return (float(values.var(ddof=1)) / len(values), len(values)) if len(values) > 1 else (0.0, 2)


def _trainings(correct: pd.DataFrame) -> tuple[float, int]:
    """The variance that trainings give to a mean over them, and how many there are."""
    count = correct.shape[1]
    return float(correct.mean().to_numpy().var(ddof=1)) / count, count


def _sign_flip(differences: np.ndarray) -> float:
    """Two-sided p-value of the mean under random signs.

    Means over a few seeds take few values, so signs are drawn for all questions of one size at once: how many of them
    are positive is binomial. It is the test of ``scipy.stats.permutation_test`` on one sample, a hundred times faster.
    """
    sizes, counts = np.unique(np.abs(differences).round(9), return_counts=True)
    positive = np.random.default_rng(SEED).binomial(counts, 0.5, size=(PERMUTATIONS, len(sizes)))
    null = (2 * positive - counts) @ sizes
    extreme = np.abs(null) >= abs(differences.sum()) - 1e-6  # sums of the same sizes, in another order
    return float((1 + extreme.sum()) / (1 + PERMUTATIONS))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm, Scandinavian Journal of Statistics 1979). NaN, of what nothing tests,
    stays, and does not count."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")[: np.isfinite(p).sum()]  # NaN come last
    stepped = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def compare_rows(rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """All pairs of rows tested over the same questions: columns a, b, n, difference, p_value, p_holm, kind."""
    pairs = list(itertools.combinations(rows, 2))
    tests = [paired_test(rows[a], rows[b]) for a, b in pairs]
    adjusted = holm([test.p_value for test in tests])
    lines = [
        {"a": a, "b": b, **vars(test), "p_holm": p} for (a, b), test, p in zip(pairs, tests, adjusted, strict=True)
    ]
    return pd.DataFrame(lines, columns=["a", "b", "n", "difference", "p_value", "p_holm", "kind"])


def marks(rows: Mapping[str, pd.DataFrame], pairs: pd.DataFrame) -> dict[str, str]:
    """``best`` for the best row where the tests separate it from every other, else ``tie`` for it and all those that
    they do not separate from it.

    All pairs are corrected for, because the best row is chosen on the same questions. One row alone has no mark, nor
    has one that is not tested against the best; then none is ``best``.
    """
    if len(rows) < 2:
        return {}
    best = max(rows, key=lambda row: accuracy(rows[row]))
    own = pairs[(pairs["a"] == best) | (pairs["b"] == best)]
    level = own[own["p_holm"] >= ALPHA]
    tied = set(level["a"]) | set(level["b"])
    if tied or any(map(np.isnan, own["p_holm"].tolist())):
        return dict.fromkeys(tied, "tie")
    return {best: "best"}


def accuracy(correct: pd.DataFrame) -> float:
    """The mean over questions and trainings."""
    return float(correct.to_numpy().mean())


def interval(correct: pd.DataFrame) -> tuple[float, float]:
    """Confidence interval of accuracy: what another draw of questions, and other trainings where there are several,
    could have given.

    With one training, Wilson's where each question is right or wrong, else a percentile bootstrap of questions. With
    several, of the t distribution; two have one degree of freedom, as what more Welch would give them holds too seldom.
    """
    values = correct.mean(axis=1).to_numpy()
    if (count := correct.shape[1]) > 1:
        found, mean = Uncertainty.of(_questions(values), _trainings(correct)), accuracy(correct)
        freedom = found.freedom if count >= FEWEST_TRAININGS else count - 1
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * found.deviation
        return max(mean - reach, 0.0), min(mean + reach, 1.0)
    if np.isin(values, (0.0, 1.0)).all():
        bounds = stats.binomtest(int(values.sum()), len(values)).proportion_ci(CONFIDENCE, method="wilson")
        return float(bounds.low), float(bounds.high)
    result = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        method="percentile",
        n_resamples=RESAMPLES,
        batch=1_000,
        rng=np.random.default_rng(SEED),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
