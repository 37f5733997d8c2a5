"""Uncertainty of the numbers: spreads, confidence intervals, and paired tests between rows over the same questions.

The correctness of a row's answers is a frame with one line per question and one column per training. With one training,
tests and intervals generalise to other questions for these weights. With several, they generalise to other questions
and other training seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

PERMUTATIONS = 9_999
RESAMPLES = 2_000  # of the bootstrap
SEED = 0  # of permutations and resamples, so that a table is a function of its records
ALPHA = 0.05
CONFIDENCE = 0.95  # of intervals
FEWEST = 10  # questions or answers: a share of fewer is not meaningful
FEWEST_TRAININGS = 3  # per row: with fewer, the variation between trainings is too poorly known for any test
# No ratio between two measurements of the same time was larger: the largest was 2.1, and 1.73 among 94 times of
# `stories` and `small_3b` that were measured twice on an idle machine (half of them differed by at most 1.2)
TIMES_DIFFER = 2.2
Kind = Literal["mcnemar", "permutation", "trainings", "untested", "no shared question"]
PAIR = ["a", "b", "n", "difference", "p_value", "p_holm", "kind"]  # columns of a test of two rows


@dataclass(frozen=True)
class PairedTest:
    """A two-sided paired test of two rows. ``difference`` is the mean correctness of the first minus that of the second
    over ``n`` shared questions, and NaN without any; ``p_value`` is NaN if it cannot be tested (see
    :func:`testable`)."""

    n: int
    difference: float
    p_value: float
    kind: Kind


@dataclass(frozen=True)
class Uncertainty:
    """The variance of a mean over questions and trainings, and its degrees of freedom (Welch and Satterthwaite). The
    variances of the sources are added as if they were independent: variation that is due to both questions and seeds
    counts twice, so the variance errs on the large side."""

    variance: float
    freedom: float

    @classmethod
    def of(cls, *sources: tuple[float, int]) -> Uncertainty:
        """Combine variances of means, each given with the number of values that it comes from."""
        total = sum(variance for variance, _ in sources)
        freedom = total**2 / sum(variance**2 / (count - 1) for variance, count in sources) if total else np.inf
        return cls(total, freedom)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.variance))


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def correctness(predictions: pd.DataFrame, by: str = "same_as") -> pd.DataFrame:
    """Return each question's mean correctness over decoding seeds, with one column per training (``training_seed``;
    without that column there is one). Duplicate questions (same value in the column ``same_as``, which older
    predictions lack) count as one, since tests would treat them as independent otherwise."""
    frame = predictions.assign(training_seed=predictions.get("training_seed", 0), correct=predictions["correct"] * 1.0)
    return frame.pivot_table("correct", by if by in frame else "id", "training_seed")


def testable(a: int, b: int) -> bool:
    """Return whether rows with ``a`` and ``b`` trainings can be tested: one each (over questions), or at least
    ``FEWEST_TRAININGS`` each. With fewer, Welch's test finds differences that are due to chance too often, all the more
    if the rows' variances are unequal."""
    return a == b == 1 or min(a, b) >= FEWEST_TRAININGS


def paired_test(a: pd.DataFrame, b: pd.DataFrame) -> PairedTest:
    """Test whether two rows differ on the questions that they share. With one training each, this is an exact McNemar
    test if each question is right or wrong, and a sign-flip permutation test of the mean difference if correctness is a
    mean over decoding seeds. With at least three trainings each, it is a t test of the mean difference, whose variance
    covers the questions and the trainings of both rows. Others are not tested, nor are rows that share no question."""
    a, b, difference = _paired(a, b)
    if not len(difference):
        return PairedTest(0, np.nan, np.nan, "no shared question")
    kind, p_value = _test(a, b, difference)
    return PairedTest(len(a), float(difference.mean()), float(p_value), kind)


def _test(a: pd.DataFrame, b: pd.DataFrame, difference: np.ndarray) -> tuple[Kind, float]:
    """Return the kind of test of two rows on the questions that they share, and its p-value. If nothing varies between
    several trainings, the questions alone are left to test."""
    changed = difference[difference != 0]  # a sign flip of 0 changes nothing
    by_signs = float(stats.binomtest(int((changed > 0).sum()), len(changed)).pvalue) if len(changed) else 1.0
    if not testable(a.shape[1], b.shape[1]):
        return "untested", np.nan
    if a.shape[1] > 1:
        found = _uncertainty(difference, a, b)
        if not found.variance:
            return "trainings", by_signs
        return "trainings", 2 * float(stats.t.sf(abs(difference.mean()) / found.deviation, found.freedom))
    if np.isin([a, b], (0.0, 1.0)).all():
        return "mcnemar", by_signs
    return "permutation", _sign_flip(changed) if len(changed) > 1 else 1.0


def difference_interval(a: pd.DataFrame, b: pd.DataFrame) -> tuple[float, float]:
    """Return the confidence interval of the difference that :func:`paired_test` tests, or NaN if it tests none: with
    several trainings that of the t test, with one each Wald's after adding four pseudo-questions of weight 1/2, on
    which the rows are right or wrong in all combinations (Agresti and Min, Statistics in Medicine, 2005). So is that of
    several if nothing varies, since the t test's would have no width."""
    a, b, difference = _paired(a, b)
    if not len(difference) or not testable(a.shape[1], b.shape[1]):
        return np.nan, np.nan
    if a.shape[1] > 1 and (found := _uncertainty(difference, a, b)).variance:
        centre = float(difference.mean())
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, found.freedom)) * found.deviation
    else:
        count = len(difference) + 2
        centre = float(difference.sum()) / count
        variance = (float(difference @ difference) + 1) / count - centre**2
        reach = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * float(np.sqrt(variance / count))
    return max(centre - reach, -1.0), min(centre + reach, 1.0)


def _paired(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Return both rows on the questions that they share, and the difference of their mean correctness on each."""
    shared = a.index.intersection(b.index)
    a, b = a.loc[shared], b.loc[shared]
    return a, b, (a.mean(axis=1) - b.mean(axis=1)).to_numpy()


def _uncertainty(difference: np.ndarray, a: pd.DataFrame, b: pd.DataFrame) -> Uncertainty:
    """Return the uncertainty of the mean difference of two rows with several trainings each."""
    return Uncertainty.of(_over_questions(difference), _over_trainings(a), _over_trainings(b))


def _over_questions(values: np.ndarray) -> tuple[float, int]:
    """Return the variance of a mean that is due to the questions, and the number of questions."""
    return (float(values.var(ddof=1)) / len(values), len(values)) if len(values) > 1 else (0.0, 2)


def _over_trainings(correct: pd.DataFrame) -> tuple[float, int]:
    """Return the variance of a mean that is due to the trainings, and the number of trainings."""
    count = correct.shape[1]
    return float(correct.mean().to_numpy().var(ddof=1)) / count, count


def _sign_flip(differences: np.ndarray) -> float:
    """Return the two-sided p-value of the mean under random signs. Means over a few seeds take few distinct values, so
    the signs of all questions whose difference has the same size are drawn at once: the number of positive ones is
    binomial. This is the one-sample test of ``scipy.stats.permutation_test``, a hundred times faster."""
    sizes, counts = np.unique(np.abs(differences).round(9), return_counts=True)
    positive = np.random.default_rng(SEED).binomial(counts, 0.5, size=(PERMUTATIONS, len(sizes)))
    null = (2 * positive - counts) @ sizes
    # The tolerance is for rounding: both sums have the same terms, in another order
    extreme = np.abs(null) >= abs(differences.sum()) - 1e-6
    return float((1 + extreme.sum()) / (1 + PERMUTATIONS))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction (Scandinavian Journal of Statistics, 1979). NaN, the p-value of an
    untested difference, stays NaN and does not count."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")[: np.isfinite(p).sum()]  # NaNs sort last
    stepped = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def family(pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> list[dict[str, Any]]:
    """Test pairs of rows: the fields of :class:`PairedTest`, and ``p_holm``, which is corrected for all of them."""
    tests = [paired_test(a, b) for a, b in pairs]
    adjusted = holm([test.p_value for test in tests])
    return [vars(test) | {"p_holm": p} for test, p in zip(tests, adjusted, strict=True)]


def compare_rows(rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Test all pairs of rows over the same questions: a frame with the columns :data:`PAIR`."""
    pairs = list(itertools.combinations(rows, 2))
    tests = family([(rows[a], rows[b]) for a, b in pairs])
    lines = [{"a": a, "b": b, **test} for (a, b), test in zip(pairs, tests, strict=True)]
    return pd.DataFrame(lines, columns=PAIR)


def marks(rows: Mapping[str, pd.DataFrame], pairs: pd.DataFrame) -> dict[str, str]:
    """Return the marks of the rows: ``best`` for the most accurate one if the tests separate it from every other row,
    else ``tie`` for it and all rows that they do not separate from it. The tests are corrected for all pairs, because
    the best row is chosen on the same questions, but for those that a study plans (`summary.py`). A single row has no
    mark. A row that is not tested against the best has none either, and then no row is ``best``."""
    if len(rows) < 2:
        return {}
    best = max(rows, key=lambda row: accuracy(rows[row]))
    with_best = pairs[(pairs["a"] == best) | (pairs["b"] == best)]
    level = with_best[with_best["p_holm"] >= ALPHA]
    tied = set(level["a"]) | set(level["b"])
    if tied or any(map(np.isnan, with_best["p_holm"].tolist())):
        return dict.fromkeys(tied, "tie")
    return {best: "best"}


def accuracy(correct: pd.DataFrame) -> float:
    """Return the mean correctness over questions and trainings."""
    return float(correct.to_numpy().mean())


def interval(correct: pd.DataFrame) -> tuple[float, float]:
    """Return the confidence interval of the accuracy over other questions and, with several trainings, other trainings:
    Wilson's for one training in which each question is right or wrong, otherwise :func:`mean_interval`. Wilson's, too,
    if all answers are right or all are wrong: others would have no width."""
    share = accuracy(correct)
    if share in (0.0, 1.0) or (correct.shape[1] == 1 and np.isin(correct, (0.0, 1.0)).all()):
        right = round(share * len(correct))
        bounds = stats.binomtest(right, len(correct)).proportion_ci(CONFIDENCE, method="wilson")
        return float(bounds.low), float(bounds.high)
    low, high = mean_interval(correct)
    return float(np.fmax(low, 0.0)), float(np.fmin(high, 1.0))  # all shares are possible if one question was asked


def mean_interval(values: pd.DataFrame) -> tuple[float, float]:
    """Return the confidence interval of a mean over other questions (lines) and, with several trainings (columns),
    other trainings: a percentile bootstrap over questions with one training, else that of the t distribution. Two
    trainings have one degree of freedom: with the larger number of Welch's formula, it would cover the mean too
    rarely."""
    by_question = values.mean(axis=1).to_numpy()
    if (count := values.shape[1]) > 1:
        found, mean = Uncertainty.of(_over_questions(by_question), _over_trainings(values)), accuracy(values)
        freedom = found.freedom if count >= FEWEST_TRAININGS else count - 1
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * found.deviation
        return mean - reach, mean + reach
    if len(by_question) < 2:
        return np.nan, np.nan  # a single question says nothing about others
    result = stats.bootstrap(
        (by_question,),
        np.mean,
        confidence_level=CONFIDENCE,
        method="percentile",
        n_resamples=RESAMPLES,
        batch=1_000,
        rng=np.random.default_rng(SEED),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
