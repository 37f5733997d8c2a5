"""How far numbers can be trusted: spreads, intervals, and paired tests between rows over the same questions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

PERMUTATIONS = 9_999
RESAMPLES = 2_000  # of the bootstrap
SEED = 0  # of what is drawn: a table is a function of its records
ALPHA = 0.05
CONFIDENCE = 0.95  # of intervals
FEWEST = 10  # questions or answers: a share of fewer says nothing
TIMES_DIFFER = 1.75  # at most, of 94 times of `quick` and `small_3b` that an idle machine measured twice (half: 1.2)


@dataclass(frozen=True)
class PairedTest:
    """``difference``: mean correctness of the first minus the second over ``n`` shared questions; two-sided."""

    n: int
    difference: float
    p_value: float
    kind: Literal["mcnemar", "permutation"]


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation, or None where fewer than two values leave it undefined."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def correctness(predictions: Sequence[pd.DataFrame]) -> pd.Series:
    """Mean correctness of each question over decoding seeds and over the frames (training seeds), by id."""
    joined = pd.concat(predictions)
    return pd.Series(joined["correct"].astype(float).groupby(joined["id"]).mean())


def paired_test(a: pd.Series, b: pd.Series) -> PairedTest:
    """Whether two rows differ on the questions they share.

    Exact McNemar test where each question is right or wrong; where correctness is a mean over seeds, a sign-flip
    permutation test of the mean difference.
    """
    a, b = a.align(b, join="inner")
    if not len(a):
        raise ValueError("the two rows share no question: compare runs that were evaluated on the same test set")
    difference = (a - b).to_numpy()
    changed = difference[difference != 0]  # a sign flip of 0 changes nothing
    if np.isin([a, b], (0.0, 1.0)).all():
        wins = int((changed > 0).sum())
        p_value = stats.binomtest(wins, len(changed)).pvalue if len(changed) else 1.0
        return PairedTest(len(a), float(difference.mean()), float(p_value), "mcnemar")
    p_value = _sign_flip(changed) if len(changed) > 1 else 1.0
    return PairedTest(len(a), float(difference.mean()), p_value, "permutation")


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
    """P-values adjusted for their number (Holm, Scandinavian Journal of Statistics 1979)."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def compare_rows(rows: Mapping[str, pd.Series]) -> pd.DataFrame:
    """All pairs of rows tested over the same questions: columns a, b, n, difference, p_value, p_holm, kind."""
    pairs = list(itertools.combinations(rows, 2))
    tests = [paired_test(rows[a], rows[b]) for a, b in pairs]
    adjusted = holm([test.p_value for test in tests])
    lines = [
        {"a": a, "b": b, **vars(test), "p_holm": p} for (a, b), test, p in zip(pairs, tests, adjusted, strict=True)
    ]
    return pd.DataFrame(lines, columns=["a", "b", "n", "difference", "p_value", "p_holm", "kind"])


def marks(rows: Mapping[str, pd.Series], pairs: pd.DataFrame) -> dict[str, str]:
    """``best`` for the best row where the tests separate it from every other, else ``tie`` for it and all those that
    they do not separate from it.

    All pairs are corrected for, because the best row is chosen on the same questions. One row alone has no mark.
    """
    if len(rows) < 2:
        return {}
    best = max(rows, key=lambda row: rows[row].mean())
    own = pairs[(pairs["a"] == best) | (pairs["b"] == best)]
    level = own[own["p_holm"] >= ALPHA]
    tied = set(level["a"]) | set(level["b"])
    return dict.fromkeys(tied, "tie") if tied else {best: "best"}


def interval(correct: pd.Series) -> tuple[float, float]:
    """Confidence interval of accuracy over questions: what another draw of questions could have given.

    Wilson's where each question is right or wrong, else a percentile bootstrap of questions.
    """
    values = correct.to_numpy(dtype=float)
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
