"""How many seeds and questions separate a difference, against simulated rows and their tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.archive import pack
from benchmarks.files import BrokenRecord
from benchmarks.plan.power import QUESTIONS, WANTED, Variances, _table, power, questions_needed, render, seeds_needed
from benchmarks.records import results, statistics
from commands import output
from fabricate import collected, fabricate, study
from methods.errors import InputError

SPREAD, HARD, OWN = 0.03, 0.10, 0.08  # deviations: between trainings, between questions (for both rows, for one)
# Of the rows below; what is left of the variance of right and wrong is of one training on one question
TRUE = Variances(training=SPREAD**2, question=2 * OWN**2, both=0.25 - HARD**2 - OWN**2 - SPREAD**2)


def pair(
    draw: np.random.Generator, seeds: int, questions: int, difference: float, spread: float = SPREAD
) -> list[pd.DataFrame]:
    """Return right and wrong answers of two rows whose trainings differ by ``spread``."""
    hard, rows = draw.normal(0, HARD, (questions, 1)), []
    for mean in (0.5 + difference / 2, 0.5 - difference / 2):
        chance = mean + hard + draw.normal(0, OWN, (questions, 1)) + draw.normal(0, spread, seeds)
        rows.append(pd.DataFrame(draw.random(chance.shape) < chance, dtype=float))
    return rows


def test_variances_are_those_that_rows_are_drawn_from() -> None:
    draw = np.random.default_rng(0)
    drawn = [dict(zip("ab", pair(draw, 5, 400, 0.1), strict=True)) for _ in range(60)]
    seen = [Variances.seen(rows, [("a", "b")]) for rows in drawn]
    for name, true in vars(TRUE).items():
        assert np.mean([getattr(one, name) for one in seen]) == pytest.approx(true, rel=0.25), name
    alike = pd.DataFrame(np.ones((50, 3)))
    nothing = Variances.seen({"a": alike, "b": alike}, [("a", "b")])
    assert nothing == Variances(0.0, 0.0, 0.0) and power(nothing, 0.02, 3, 10) == 1.0


@pytest.mark.parametrize(("seeds", "questions", "difference"), [(3, 300, 0.10), (5, 200, 0.08), (1, 400, 0.10)])
def test_power_is_how_often_simulated_rows_are_separated(seeds: int, questions: int, difference: float) -> None:
    draw = np.random.default_rng(1)
    spread = SPREAD if seeds > 1 else 0.0  # the test of one training each is about these two models
    drawn = [pair(draw, seeds, questions, difference, spread) for _ in range(300)]
    found = np.mean([statistics.paired_test(a, b).p_value < statistics.ALPHA for a, b in drawn])
    expected = power(TRUE, difference, seeds, questions)
    assert 0.4 < expected < 0.95 and found == pytest.approx(expected, abs=0.08)


def test_a_difference_below_the_spread_of_trainings_needs_trainings_and_not_questions() -> None:
    wild = Variances(training=0.1**2, question=0.02, both=0.2)
    assert questions_needed(wild, 0.1, 3) is None and seeds_needed(wild, 0.02, 1_000) is None
    seeds = seeds_needed(wild, 0.1, 1_000)
    assert seeds is not None and power(wild, 0.1, seeds - 1, 1_000) < WANTED <= power(wild, 0.1, seeds, 1_000)


def test_a_larger_difference_never_needs_more_trainings() -> None:
    """Of very large ones, scipy has no probability."""
    alike = Variances(training=0.02**2, question=0.02**2, both=0.1**2)
    needed = [seeds_needed(alike, points, 500) or 0 for points in (0.05, 0.1, 0.2, 0.8)]
    assert needed == sorted(needed, reverse=True) and power(alike, 0.8, 5, 500) == 1.0


def test_the_fewest_questions_are_found() -> None:
    needed = [questions_needed(TRUE, points, 10) or 0 for points in (0.05, 0.1, 0.2)]
    assert needed == sorted(needed, reverse=True)
    fewer = QUESTIONS[QUESTIONS.index(needed[1]) - 1]
    assert power(TRUE, 0.1, 10, fewer) < WANTED <= power(TRUE, 0.1, 10, needed[1])
    assert needed[1] < (questions_needed(TRUE, 0.1, 10, statistics.ALPHA / 36) or 0), "many comparisons take more"


@pytest.mark.parametrize("packed", [False, True])
def test_a_study_is_read_from_its_records(tmp_path: Path, packed: bool) -> None:
    made = study(seeds=[0, 1, 2], comparisons={"pairs": [["marcos", "cot"]]})
    collected(made, tmp_path)
    if packed:
        pack(tmp_path / "fake", tmp_path / "packed/fake")
    text = render(made, tmp_path / "packed" if packed else tmp_path)
    assert text.count("| Difference") == 4, "two blocks, two test sets"
    assert "## Training data: equation · Beta_set" in text and "for the planned comparisons, assuming" in text
    assert text.count("Seen in 3 trainings of 2 rows on 200 questions") == text.count("the family: 1.") == 4
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if " points " in line[:20]]
    assert [line[0] for line in lines[:4]] == ["2 points", "5 points", "10 points", "20 points"]
    models = [int(line[1].replace(",", "")) for line in lines[:4]]
    assert models == sorted(models, reverse=True) and {len(line) for line in lines} == {6}


def test_answers_that_are_all_wrong_tell_nothing() -> None:
    rows = {name: pd.DataFrame(np.zeros((10, 3))) for name in ("a", "b")}
    assert "nothing can be estimated" in _table(Variances.seen(rows, [("a", "b")]), rows, [("a", "b")])


def test_one_training_says_nothing_of_others(tmp_path: Path) -> None:
    fabricate(study(), tmp_path)
    with pytest.raises(BrokenRecord, match="run `marcos-bench collect fake"):
        render(study(), tmp_path)
    results.collect(study(), tmp_path)
    with pytest.raises(InputError, match=r"no two rows with answers of several trainings .* several `seeds`"):
        render(study(), tmp_path)


def test_a_gpu_has_no_part_in_it() -> None:
    assert "--gpu does not go with --power" in output("plan", "smoke", "--power", "--gpu", "H200", code=2)
