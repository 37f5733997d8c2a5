"""Paired tests, corrections, intervals and marks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.records import statistics


def right(count: int, of: int = 100, shift: int = 0) -> pd.DataFrame:
    """Return one training in which ``count`` questions are right, from question ``shift`` on."""
    values = np.zeros((of, 1))
    values[shift : shift + count] = 1.0
    return pd.DataFrame(values, index=[f"q{i}" for i in range(of)])


def test_spread_is_undefined_for_one_value() -> None:
    assert statistics.sample_std([0.5]) is None
    assert statistics.sample_std([0.0, 1.0]) == pytest.approx(2**-0.5)


def test_deterministic_rows_get_the_exact_mcnemar_test() -> None:
    result = statistics.paired_test(right(60), right(40))
    assert (result.kind, result.n, result.difference) == ("mcnemar", 100, pytest.approx(0.2))
    assert result.p_value == pytest.approx(2 * 0.5**20)  # 20 questions changed, all in the same direction
    assert statistics.paired_test(right(60), right(60)).p_value == 1.0


def test_means_over_seeds_get_the_sign_flip_test_that_scipy_has() -> None:
    draw = np.random.default_rng(0)
    a, b = (pd.DataFrame(draw.binomial(5, p, (300, 1)) / 5) for p in (0.50, 0.56))
    result = statistics.paired_test(a, b)
    reference = stats.permutation_test(((a - b)[0].to_numpy(),), np.mean, permutation_type="samples", rng=1)
    assert result.kind == "permutation"
    assert result.p_value == pytest.approx(reference.pvalue, abs=0.02)  # both are sampled
    assert statistics.paired_test(a, b) == result  # seeded
    assert statistics.paired_test(b, a).p_value == pytest.approx(result.p_value, abs=0.01)


def test_questions_are_paired_by_id() -> None:
    a = right(60)
    assert statistics.paired_test(a, a.sample(frac=1, random_state=0)).difference == 0
    others = a.rename(index=lambda name: f"other-{name}")
    assert statistics.paired_test(a, others).kind == "no shared question"
    assert np.isnan(statistics.difference_interval(a, others)).all()


def test_holm_is_monotone_and_bounded() -> None:
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.9, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_a_family_is_corrected_for_all_of_its_pairs() -> None:
    pairs = [(right(60), right(50)), (right(70), right(50)), (right(50), right(50))]
    tests = statistics.family(pairs)
    assert [test["p_value"] for test in tests] == [statistics.paired_test(a, b).p_value for a, b in pairs]
    assert [test["p_holm"] for test in tests] == statistics.holm([test["p_value"] for test in tests])
    assert statistics.family([]) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"a": right(80), "b": right(30), "c": right(20)}, {"a": "best"}),
        ({"a": right(50), "b": right(48), "c": right(10)}, {"a": "tie", "b": "tie"}),
        ({"a": right(50), "b": right(50)}, {"a": "tie", "b": "tie"}),
        ({"a": right(50)}, {}),
    ],
)
def test_marks(rows: dict[str, pd.DataFrame], expected: dict[str, str]) -> None:
    assert statistics.marks(rows, statistics.compare_rows(rows)) == expected


def test_intervals_hold_the_mean_and_have_a_width_at_zero() -> None:
    low, high = statistics.interval(right(0))
    assert low == 0 and 0.03 < high < 0.04  # Wilson: 3.7 % of 100 questions
    values = pd.DataFrame(np.random.default_rng(0).binomial(5, 0.4, (500, 1)) / 5)
    low, high = statistics.interval(values)
    assert low < statistics.accuracy(values) < high
    assert high - low == pytest.approx(2 * 1.96 * values[0].std() / 500**0.5, rel=0.1)
    assert statistics.interval(pd.DataFrame([0.4])) == (0, 1), "one question says nothing about others"
    assert np.isnan(statistics.mean_interval(pd.DataFrame([1.5]))).all(), "infinite bounds would be no JSON"


@pytest.mark.parametrize("share", [0, 100])
def test_trainings_without_an_error_may_err_on_other_questions(share: int) -> None:
    """Intervals are those of one training: neither questions nor trainings vary, and no width would mean certainty."""
    one, three = right(share), pd.concat([right(share)] * 3, axis=1, keys=range(3))
    assert statistics.interval(three) == statistics.interval(one)
    low, high = statistics.difference_interval(three, three.copy())
    assert (low, high) == statistics.difference_interval(one, one.copy()) and low < 0 < high


def test_correctness_is_a_mean_over_decoding_seeds_in_each_training() -> None:
    frame = pd.DataFrame({"id": ["x", "y", "x", "y"], "seed": [0, 0, 1, 1], "correct": [True, False, False, False]})
    assert statistics.correctness(frame)[0].to_dict() == {"x": 0.5, "y": 0.0}
    two = pd.concat([frame.assign(training_seed=3), frame.assign(training_seed=7, correct=True)])
    assert statistics.correctness(two).to_dict() == {3: {"x": 0.5, "y": 0.0}, 7: {"x": 1.0, "y": 1.0}}


def test_questions_that_are_the_same_count_once() -> None:
    """Copies are no additional evidence: the interval of 40 questions that are asked five times is that of 40."""
    once = pd.DataFrame({"id": [f"q{i}" for i in range(40)], "correct": np.arange(40) < 24})
    copies = pd.concat([once.assign(id=once["id"] + f"-{i}", same_as=once["id"]) for i in range(5)])
    alone, grouped, apart = map(statistics.correctness, (once, copies, copies.drop(columns="same_as")))
    assert grouped.to_dict() == alone.to_dict() and len(apart) == 200
    assert statistics.interval(grouped) == statistics.interval(alone) != statistics.interval(apart)
    other = statistics.correctness(once.assign(correct=np.arange(40) < 21))
    assert statistics.paired_test(grouped, other) == statistics.paired_test(alone, other)
    assert statistics.correctness(copies, "id").equals(apart)
    mixed = statistics.correctness(copies.assign(correct=[i < 60 for i in range(200)]))
    assert mixed[0].to_dict()["q0"] == 0.4 and mixed[0].to_dict()["q39"] == 0.2, "the mean of its copies"


# -- several trainings of a row


def trained(draw: np.random.Generator, trainings: int, spread: float = 0.05, questions: int = 400) -> pd.DataFrame:
    """Return a row of trainings whose accuracies differ by ``spread``, over questions of different difficulty."""
    easy, luck = draw.uniform(0.2, 0.8, (questions, 1)), draw.normal(0, spread, trainings)
    return pd.DataFrame(draw.random((questions, trainings)) < np.clip(easy + luck, 0, 1), dtype=float)


def first(row: pd.DataFrame) -> pd.DataFrame:
    """Return a row's first training alone."""
    return row.iloc[:, :1]


@pytest.mark.parametrize(("spreads", "separated"), [((0.05, 0.05), 0.06), ((0.006, 0.131), 0.12)])
def test_trainings_that_differ_by_luck_are_seldom_separated(spreads: tuple[float, float], separated: float) -> None:
    """A test over questions alone would often take such chance differences for real ones."""
    draw = np.random.default_rng(0)
    pairs = [(trained(draw, 3, spreads[0]), trained(draw, 3, spreads[1])) for _ in range(400)]
    found = [statistics.paired_test(a, b) for a, b in pairs]
    assert {test.kind for test in found} == {"trainings"}
    assert np.mean([test.p_value < 0.05 for test in found]) < separated
    alone = [statistics.paired_test(first(a), first(b)) for a, b in pairs]
    assert np.mean([test.p_value < 0.05 for test in alone]) > 0.3


def test_trainings_are_compared_by_the_t_test_that_scipy_has_where_questions_are_all_alike() -> None:
    a, b = (pd.DataFrame([np.array(shares) for _ in range(50)]) for shares in ([0.5, 0.6, 0.4], [0.7, 0.8, 0.9, 0.8]))
    _, reference = stats.ttest_ind(a.loc[0], b.loc[0], equal_var=False)
    found = statistics.paired_test(a, b)
    assert found.p_value == pytest.approx(reference) and found.difference == pytest.approx(-0.3)
    low, high = statistics.interval(a)
    expected = stats.t.interval(0.95, 2, a.loc[0].mean(), stats.sem(a.loc[0]))
    assert (low, high) == pytest.approx(expected)
    same = pd.DataFrame(np.ones((50, 3)))
    assert statistics.paired_test(same, same).p_value == 1.0
    # Nothing varies between trainings: the questions alone are tested, as with one training of each
    for count, p_value in ((1, 1.0), (2, 0.5), (50, 2 * 0.5**50)):
        few = same.iloc[:count]
        assert statistics.paired_test(few, 0 * few).p_value == pytest.approx(p_value)
        assert statistics.paired_test(first(few), 0 * first(few)).p_value == pytest.approx(p_value)


def test_fewer_than_three_trainings_of_a_row_are_no_test_unless_each_has_one() -> None:
    """This holds for any difference, since the variation between the trainings of the smaller row is not known."""
    draw = np.random.default_rng(1)
    a, b = trained(draw, 3), 0 * trained(draw, 3)
    for pair in ((a, first(b)), (first(b), a), (a, b.iloc[:, :2]), (a.iloc[:, :2], b.iloc[:, :2])):
        found = statistics.paired_test(*pair)
        assert found.kind == "untested" and np.isnan(found.p_value) and abs(found.difference) > 0.3
    assert statistics.paired_test(a, b).p_value < 0.05 and statistics.paired_test(first(a), first(b)).kind == "mcnemar"


def test_rows_that_nothing_tests_have_no_mark_and_count_for_no_correction() -> None:
    draw = np.random.default_rng(4)
    a, b, c = trained(draw, 3, 0.01), trained(draw, 3, 0.01), 0 * trained(draw, 3)
    pairs = statistics.compare_rows({"a": a, "b": b, "c": first(c)})
    assert pairs["kind"].tolist() == ["trainings", "untested", "untested"]
    assert pairs["p_holm"].tolist() == pytest.approx([pairs["p_value"].tolist()[0], np.nan, np.nan], nan_ok=True)
    assert statistics.marks({"a": a, "b": b, "c": first(c)}, pairs) == {"a": "tie", "b": "tie"}
    for rows in ({"a": a, "c": first(c)}, {"a": first(a), "b": b, "c": c}, {"a": a, "b": first(c), "c": c}):
        assert statistics.marks(rows, statistics.compare_rows(rows)) == {}
    assert statistics.holm([0.04, np.nan, 0.02]) == pytest.approx([0.04, np.nan, 0.04], nan_ok=True)


def test_intervals_over_trainings_are_wider_than_over_questions() -> None:
    """The intervals also have the coverage that they claim."""
    draw = np.random.default_rng(2)
    rows = [trained(draw, 3) for _ in range(300)]
    for kind in (rows, [row.iloc[:, :2] for row in rows]):
        held = [low <= 0.5 <= high for low, high in map(statistics.interval, kind)]
        assert 0.93 < np.mean(held) <= 1
    low, high = statistics.interval(rows[0])
    inner_low, inner_high = statistics.interval(first(rows[0]))
    assert high - low > inner_high - inner_low


# -- intervals of differences


def test_the_interval_of_a_difference_over_trainings_is_that_of_its_test() -> None:
    draw = np.random.default_rng(5)
    for _ in range(20):
        a, b = trained(draw, 3), trained(draw, 4)
        low, high = statistics.difference_interval(a, b)
        found = statistics.paired_test(a, b)
        assert low < found.difference < high and (low + high) / 2 == pytest.approx(found.difference)
        assert (low <= 0 <= high) == (found.p_value >= statistics.ALPHA)
    assert np.isnan(statistics.difference_interval(a, b.iloc[:, :2])).all(), "no test, no interval"


@pytest.mark.parametrize(("share", "count"), [(0.5, 40), (0.95, 100)])
def test_the_interval_of_a_difference_of_one_training_each_covers_it(share: float, count: int) -> None:
    draw = np.random.default_rng(6)
    held = []
    for _ in range(1_000):
        a, b = (pd.DataFrame(draw.random((count, 1)) < share - less, dtype=float) for less in (0, 0.1))
        low, high = statistics.difference_interval(a, b)
        held.append(low <= 0.1 <= high)
    assert 0.92 < np.mean(held) < 0.98


def test_rows_that_answer_alike_may_differ_on_other_questions() -> None:
    low, high = statistics.difference_interval(right(60), right(60))
    assert low == -high and 0.01 < high < 0.03
