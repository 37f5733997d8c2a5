"""Patterns of latents, the digits of Random Summation, and votes, on fabricated numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest

from benchmarks.analysis.dimensions import (
    Encoding,
    consistent_after,
    correlation_graph,
    correlations,
    digits_of,
    drawn_digits,
    encoding,
    explained_variance,
    is_summation,
    largest_clique,
    levels_of,
    most_frequent,
    patterns,
    steer,
)
from benchmarks.analysis.interventions import clique_effects, effects
from benchmarks.analysis.majority_vote import calibration_error, majority, protocols, reliability, votes
from benchmarks.analysis.records import Analysis
from benchmarks.analysis.responses import Responses, TrainedModel
from benchmarks.data import TestSet
from benchmarks.scoring import SCORERS, Reference
from benchmarks.studies.specs import AnalysisSpec
from methods.base import Example
from methods.generation import Decoding, Intervention


def planted(count: int = 400, size: int = 50) -> np.ndarray:
    """Return samples in which dimensions 3, 8 and 20 go together, as do 5 and 6. 40 is always active, 49 never."""
    draw = np.random.default_rng(1)
    values = np.where(draw.random((count, size)) < 0.1, 0.3, 0.0)
    for dims in ([3, 8, 20], [5, 6]):
        values[:, dims] = np.where(draw.random((count, 1)) < 0.5, 0.6, 0.0) + 0.01 * draw.random((count, len(dims)))
    values[:, 40], values[:, 49] = 1.0, 0.0
    return values


def test_patterns_find_what_was_planted() -> None:
    found = patterns(planted(), AnalysisSpec(frequent_at_least=8))
    assert found.frequent[0] == 40 and {3, 8, 20, 5, 6} <= set(found.frequent) and len(found.frequent) == 8
    assert found.frequency[40] == 1 and found.frequency[49] == 0
    assert found.clique == [3, 8, 20]
    correlation = correlations(planted(), found.frequent)
    np.testing.assert_allclose(correlation, correlation.T)
    assert (correlation[0, 1:] == 0).all()  # a constant dimension correlates with nothing


def test_correlations_are_pearsons() -> None:
    values = np.random.default_rng(0).random((100, 5))
    np.testing.assert_allclose(correlations(values, [4, 1, 0]), np.corrcoef(values[:, [4, 1, 0]].T))


def test_share_and_least_number_of_frequent_dimensions() -> None:
    frequency = np.array([0.0, 0.5, 0.2, 0.9])
    assert most_frequent(frequency, 0.5, 1) == [3, 1]
    assert most_frequent(frequency, 0.01, 10) == [3, 1, 2]  # never one that is not active


def test_the_more_frequent_of_two_cliques() -> None:
    correlation = np.eye(4)
    correlation[0, 1] = correlation[1, 0] = correlation[2, 3] = correlation[3, 2] = 0.95
    graph = correlation_graph(correlation, [7, 5, 2, 9], above=0.9)
    assert sorted(map(sorted, graph.edges)) == [[2, 9], [5, 7]]
    frequency = np.zeros(10)
    frequency[[2, 9]] = 0.4
    assert largest_clique(graph, frequency) == [2, 9]
    assert largest_clique(correlation_graph(np.eye(2), [1, 2], 0.9), frequency) == [2]


@pytest.mark.parametrize(
    ("responses", "follows_from_step_1"),
    [
        (["0 0", "14 16", "#### 14 + 16 = 30"], False),  # fourteen is not a digit
        (["12 14", "14 16", "#### 14 + 16 = 30"], True),
        (["12 14", "14 17", "#### 14 + 17 = 31"], False),
        (["12 14", "14 16", "#### 14 + 16 = 31"], False),
        (["12 14", "", "#### 12 + 14 = 26"], False),
    ],
)
def test_what_follows_from_a_step(responses: list[str], follows_from_step_1: bool) -> None:
    assert consistent_after(responses, 1) is follows_from_step_1
    assert consistent_after(["nonsense", *responses[1:]], 2) is (
        responses[2] != "#### 14 + 16 = 31" and responses[1] != ""
    )


def summation(count: int) -> tuple[TestSet, Responses, np.ndarray]:
    """Return faultless answers to Random Summation by a model whose dimension 2 d + 1 encodes digit d."""
    draw = np.random.default_rng(0)
    digits, questions, responses, latents = draw.integers(0, 10, (count, 2)), [], [], np.zeros((count, 3, 24))
    for row, (first, second) in enumerate(digits):
        numbers = draw.integers(0, 10, 4)
        steps = [numbers + first, numbers + first + second]
        questions.append(" ".join(map(str, numbers)))
        a, b = steps[1][:2]
        responses.append([*(" ".join(map(str, step)) for step in steps), f"#### {a} + {b} = {a + b}"])
        for step, digit in enumerate(digits[row]):
            latents[row, step, 2 * digit + 1] = 0.8
    latents[:, :, 0] = 2.0  # always active, so it encodes nothing
    test = TestSet(
        "rs_n2_k3",
        [str(i) for i in range(count)],
        questions,
        [[0]] * count,
        ["1"] * count,
        [2] * count,
        [False] * count,
    )
    return test, Responses(responses, np.zeros(count), {"R": latents}), digits


def test_one_to_one_encoding_is_found() -> None:
    test, responses, digits = summation(200)
    assert is_summation(test)
    np.testing.assert_array_equal(drawn_digits(test, responses), digits)
    found = encoding(responses.trace["R"], digits, active_above=0.1)
    assert found.dims == [2 * digit + 1 for digit in range(10)] and found.agreement == [1.0] * 10
    assert found.values == pytest.approx([0.8] * 10)


def test_digits_are_read_off_the_examples_own_steps() -> None:
    test, responses, digits = summation(20)
    examples = [Example("", [at], [[at, 1], [at, 2]], [at, 3]) for at in range(20)]
    asked = [Reference(text, "", 2) for text in test.texts]
    spoken: dict[tuple[int, ...], str] = {}
    for at, steps in enumerate(responses.steps):
        spoken |= {(at, step): line for step, line in enumerate(steps, start=1)}
    np.testing.assert_array_equal(digits_of(examples, asked, lambda ids: spoken[tuple(ids)]), digits)


def test_digits_that_were_never_drawn_have_no_dimension() -> None:
    _, responses, digits = summation(200)
    found = encoding(responses.trace["R"], np.where(digits < 3, digits, -1), 0.1)
    assert found.dims[:3] == [1, 3, 5] and set(found.dims[3:]) == {None} == set(found.agreement[3:])
    nothing = encoding(responses.trace["R"], np.full_like(digits, -1), 0.1)
    assert set(nothing.dims) == {None} == set(nothing.agreement)


def test_a_dimension_that_is_not_active_or_seldom_the_largest_is_no_digits_own() -> None:
    _, responses, digits = summation(200)
    latents = responses.trace["R"]
    latents[:, :, 2 * 4 + 1] *= 0.1  # digit 4: too weak, although it is the largest
    sevens = np.argwhere(digits == 7)
    for row, step in sevens[: len(sevens) * 3 // 4]:  # digit 7: mostly encoded like an 8
        latents[row, step, [15, 17]] = 0.7, 0.75
    found = encoding(latents, digits, active_above=0.1)
    assert [digit for digit, dim in enumerate(found.dims) if dim is None] == [4, 7]
    assert [digit for digit, value in enumerate(found.values) if value is None] == [4, 7]
    assert found.agreement[4] == 1 and found.agreement[7] == pytest.approx(0.25, abs=0.03)


def test_what_explains_r_is_told_from_what_does_not() -> None:
    _, responses, digits = summation(200)
    latents = responses.trace["R"]
    chance = np.random.default_rng(1).integers(0, 30, digits.shape)
    assert explained_variance(latents, digits) == pytest.approx([1.0, 1.0])
    assert explained_variance(latents, chance) == pytest.approx([0.0, 0.0], abs=0.05)
    assert explained_variance(np.ones_like(latents), digits) == [None, None]
    # Every sample has a group of its own
    assert explained_variance(latents[:2], digits[:2] + np.arange(2)[:, None] * 10) == [None, None]


def test_levels_are_the_rounded_means_of_the_numbers_that_steps_write() -> None:
    spoken: dict[tuple[int, ...], str] = {(1,): "3 4", (2,): "10 9 8"}
    example = Example("", [0], [[1], [2]], [0])
    np.testing.assert_array_equal(levels_of([example], lambda ids: spoken[tuple(ids)]), [[4, 9]])


class Obeying:
    """Adds the digit of the active dimension in step 1, but always 3 in step 2, whatever is set there."""

    def __init__(self) -> None:
        self.given: list[tuple[Intervention, ...]] = []

    decoding = Decoding()

    def generate(self, questions: list[list[int]], decoding: Decoding) -> Responses:
        self.given.append(decoding.interventions)
        (dim,) = next(one.dims for one in decoding.interventions if one.value)
        first = (dim - 1) // 2 if decoding.interventions[0].step == 1 else 0
        steps = [
            f"{1 + first} {2 + first}",
            f"{4 + first} {5 + first}",
            f"#### {4 + first} + {5 + first} = {9 + 2 * first}",
        ]
        return Responses([steps] * len(questions), np.zeros(len(questions)), {})


def test_steering_sets_one_dimension_or_a_whole_code_in_one_step() -> None:
    """Digit 6 has no dimension of its own, and digit 9 was never drawn."""
    test = TestSet("rs_n2_k3", ["a"], ["1 2"], [[0]], ["1"], [2], [False])
    dims = [2 * digit + 1 if digit not in (6, 9) else None for digit in range(10)]
    matrix = np.zeros((10, 24))
    matrix[range(10), range(1, 20, 2)] = 0.7
    matrix[2, 8], matrix[9] = 0.1, np.nan
    encoded = Encoding(matrix, dims, [None if dim is None else 0.8 for dim in dims], [1.0] * 10)
    model = Obeying()
    frame = steer(cast(TrainedModel, model), test, encoded, steps=3)
    rest = tuple(dim for dim in range(24) if dim != 5)
    of_code = tuple(dim for dim in rest if dim != 8)
    for first, step in ((4, 1), (21, 2)):
        assert model.given[first] == (Intervention(rest, 0.0, step), Intervention((5,), 0.8, step))
        whole = Intervention(of_code, 0.0, step), Intervention((5,), 0.7, step), Intervention((8,), 0.1, step)
        assert model.given[first + 1] == whole
    by_dimension, by_code = (frame.loc[frame["by"] == by] for by in ("dimension", "code"))
    assert list(by_dimension["digit"]) == [0, 1, 2, 3, 4, 5, 7, 8] * 2 and list(by_code["digit"]) == [*range(9)] * 2
    for steered in (by_dimension, by_code):
        assert all(steered.loc[steered["step"] == 1, "obeyed"]) and all(steered["followed"])
        assert list(steered.loc[(steered["step"] == 2) & steered["obeyed"], "digit"]) == [3]


def test_effects_are_against_what_is_said_unsteered() -> None:
    columns = ["setting", "tokens", "marked", "correct"]
    frame = pd.DataFrame([("", 10, True, True), ("", 20, True, False), ("3 = 1", 45, False, False)], columns=columns)
    first, second = effects(frame).to_dict("records")
    assert first == {"setting": "", "n": 2, "tokens": 15.0, "longer": 0.0, "marked": 1.0, "correct": 0.5}
    assert second["longer"] == 2.0 and second["marked"] == 0
    silent = effects(frame.assign(tokens=[0, 0, 45])).to_dict("records")
    assert np.isnan(silent[1]["longer"]), "a model that says nothing has no length to compare with"


def test_effects_of_the_clique_are_by_the_value_that_it_is_set_to() -> None:
    columns = ["setting", "dims", "value", "tokens", "marked", "correct"]
    lines = [
        ("", None, None, 10, True, True),
        ("3, 8 = 0", "3,8", 0.0, 20, True, False),
        ("3, 8 = 1e-07", "3,8", 1e-7, 5, False, True),
        ("3 = 1", "3", 1.0, 50, False, False),
    ]
    frame = pd.DataFrame(lines, columns=columns)
    analysis = SimpleNamespace(record=SimpleNamespace(clique=[3, 8]), frame=lambda name: frame)
    found = clique_effects(cast(Analysis, analysis))
    assert found["setting"].tolist() == ["", "3, 8 = 0", "3, 8 = 1e-07"]
    assert np.isnan(found["value"].iloc[0]) and found["value"].tolist()[1:] == [0.0, 1e-7]
    assert found["longer"].tolist() == [0.0, 1.0, -0.5]


def test_majority_and_its_votes() -> None:
    assert majority(["1", "2", "2", None], SCORERS["number"].vote) == (1, 0.5)
    assert majority(["1", "2"], SCORERS["number"].vote) == (0, 0.5)  # the first of a tie
    assert majority([None, None], SCORERS["number"].vote) == (0, 0.0)
    assert majority(["7", "5", "5.0", "5.00", "7"], SCORERS["number"].vote) == (1, 0.6)  # by value
    assert majority(["2", "1000", "2", "1e3", "1000.0"], SCORERS["number"].vote) == (1, 0.6)
    assert majority(["1", ".5", "1", "0.5", "0.50"], SCORERS["number"].vote) == (1, 0.6)
    assert majority(["yes", "no", "yes"], SCORERS["number"].vote) == (0, 2 / 3)


def samples() -> pd.DataFrame:
    """Return ten draws of two questions: eight agree on a right answer to one, six on a wrong one to the other."""
    lines = [("t", "a", seed, "7" if seed < 8 else "1", seed < 8) for seed in range(10)]
    lines += [("t", "b", seed, "3" if seed < 6 else "7", seed >= 6) for seed in range(10)]
    lines += [("t", id, -1, "7", True) for id in "ab"]
    return pd.DataFrame(lines, columns=["test", "id", "seed", "extracted", "correct"])


def test_protocols() -> None:
    shares = {name: frame["correct"].mean() for name, frame in protocols(samples()).items()}
    assert shares == {"mean": 1.0, "1 sample": 0.6, "majority of 5": 0.75, "majority of 10": 0.5}


def test_votes_take_whole_groups_only() -> None:
    assert len(votes(samples(), 4)) == 4  # two groups per question, with two draws left over


def test_calibration_error_weighs_bins() -> None:
    bins = reliability(samples())
    assert list(bins["n"]) == [1, 1] and list(bins["share"]) == [0.6, 0.8] and list(bins["accuracy"]) == [0.0, 1.0]
    assert calibration_error(bins) == pytest.approx((0.6 + 0.2) / 2)
