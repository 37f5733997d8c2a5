"""Paired tests, corrections, intervals and marks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks import statistics


def right(count: int, of: int = 100, shift: int = 0) -> pd.Series:
    """``count`` questions right, from question ``shift`` on."""
    values = np.zeros(of)
    values[shift : shift + count] = 1.0
    return pd.Series(values, index=[f"q{i}" for i in range(of)])


def test_spread_is_undefined_for_one_value() -> None:
    assert statistics.spread([0.5]) is None
    assert statistics.spread([0.0, 1.0]) == pytest.approx(2**-0.5)


def test_deterministic_rows_get_the_exact_mcnemar_test() -> None:
    result = statistics.paired_test(right(60), right(40))
    assert (result.kind, result.n, result.difference) == ("mcnemar", 100, pytest.approx(0.2))
    assert result.p_value == pytest.approx(2 * 0.5**20)  # 20 questions changed, all one way
    assert statistics.paired_test(right(60), right(60)).p_value == 1.0


def test_means_over_seeds_get_the_sign_flip_test_that_scipy_has() -> None:
    draw = np.random.default_rng(0)
    a, b = (pd.Series(draw.binomial(5, p, 300) / 5) for p in (0.50, 0.56))
    result = statistics.paired_test(a, b)
    reference = stats.permutation_test(((a - b).to_numpy(),), np.mean, permutation_type="samples", rng=1)
    assert result.kind == "permutation"
    assert result.p_value == pytest.approx(reference.pvalue, abs=0.02)  # both are drawn
    assert statistics.paired_test(a, b) == result  # seeded
    assert statistics.paired_test(b, a).p_value == pytest.approx(result.p_value, abs=0.01)


def test_questions_are_paired_by_id() -> None:
    a = right(60)
    assert statistics.paired_test(a, a.sample(frac=1, random_state=0)).difference == 0
    with pytest.raises(ValueError, match="share no question"):
        statistics.paired_test(a, a.rename(lambda name: f"other-{name}"))


def test_holm_is_monotone_and_bounded() -> None:
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.9, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"a": right(80), "b": right(30), "c": right(20)}, {"a": "best"}),
        ({"a": right(50), "b": right(48), "c": right(10)}, {"a": "tie", "b": "tie"}),
        ({"a": right(50), "b": right(50)}, {"a": "tie", "b": "tie"}),
        ({"a": right(50)}, {}),
    ],
)
def test_marks(rows: dict[str, pd.Series], expected: dict[str, str]) -> None:
    assert statistics.marks(rows, statistics.compare_rows(rows)) == expected


def test_intervals_hold_the_mean_and_have_a_width_at_zero() -> None:
    low, high = statistics.interval(right(0))
    assert low == 0 and 0.03 < high < 0.04  # Wilson: 3.7 % of 100 questions
    values = pd.Series(np.random.default_rng(0).binomial(5, 0.4, 500) / 5)
    low, high = statistics.interval(values)
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 500**0.5, rel=0.1)


def test_correctness_is_a_mean_over_seeds_and_runs() -> None:
    frame = pd.DataFrame({"id": ["x", "y", "x", "y"], "seed": [0, 0, 1, 1], "correct": [True, False, False, False]})
    assert statistics.correctness([frame]).to_dict() == {"x": 0.5, "y": 0.0}
    assert statistics.correctness([frame, frame.assign(correct=True)]).to_dict() == {"x": 0.75, "y": 0.5}
