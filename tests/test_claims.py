"""The paper's claims: what its own tables give for them, and where our numbers appear beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.files import read_json, write_json
from benchmarks.paper.claims import Claim, Measure, Place, compared, held, load_claims, printed
from benchmarks.paper.numbers import paper_table, paper_tables
from benchmarks.records import results
from benchmarks.studies.specs import Table
from benchmarks.studies.study import load_study
from benchmarks.tables.render import contents
from conftest import ROOT
from fabricate import fabricate, study

CLAIMS = {claim.id: claim for claim in load_claims()}
CELLS = {"table": "main_0.5b", "block": "equation", "row": "marcos", "against": ["cot_sft", "codi"]}
OURS_ALONE = ("ablation", "marcos_xavier")  # the paper speaks of it, and its table has no such row


def claim(**fields: Any) -> Claim:
    cells = CELLS | {key: fields.pop(key) for key in ("tests", "against") if key in fields}
    return Claim.model_validate({"id": "a", "place": "1", "says": "so", "cells": [cells]} | fields)


def given(numbers: dict[tuple[str, str], float]) -> Any:
    """Return a function to numbers by row and test set."""

    def number(place: Place, measure: Measure) -> float | None:
        return numbers.get((place.row, place.test))

    return number


def test_every_claim_has_cells_that_the_paper_prints_and_one_bound_or_says_why_not() -> None:
    for one in CLAIMS.values():
        bounds = [one.above, one.at_least, one.equals, one.within]
        needed = 0 if one.without else 1
        assert (bool(one.cells), 4 - bounds.count(None)) == (bool(needed), needed), one.id
        for part in one.cells:
            other = part.against_table or part.table
            for table, row in ((part.table, part.row), *((other, row) for row in part.against)):
                assert row in paper_table(table).printed(part.block) or (table, row) == OURS_ALONE, one.id
            assert {*(part.tests or ())} <= paper_table(part.table).tests.keys(), one.id


def test_rows_of_the_papers_tables_have_no_unknown_tests() -> None:
    for table in paper_tables().values():
        for block in table.blocks.values():
            assert all(row.tests.keys() <= table.tests.keys() for row in block.rows)


@pytest.mark.parametrize(
    ("id", "values", "verdict"),
    [
        ("gain_on_text", [4.70], True),
        ("above_best_latent", [8.04], True),
        ("out_of_domain", [1.53, 2.30], True),
        ("over_10_times_3b_text", [10.12, 15.75, 9.86], False),
        ("same_accuracy", [5.31, 0.15, 0.23], True),
        ("deep_on_equations", [2.92, 1.07, 3.79], True),
        ("parallel_thinking", [49.8], True),
        ("no_bottleneck", [-4.3], False),
        ("nar", [-0.56, 4.36, 8.79], True),
        ("rs_to_rp", [41.0], True),
        ("non_trivial", [8.8, 3.2], True),
    ],
)
def test_the_papers_numbers_are_computed_again(id: str, values: list[float], verdict: bool) -> None:
    found = list(compared(CLAIMS[id], printed))
    assert [round(value.number, 2) for value in found] == values
    assert held(CLAIMS[id], found) is verdict


def test_speed_up_of_15_7_is_one_cell_of_twelve() -> None:
    found = list(compared(CLAIMS["up_to_15.7_times"], printed))
    assert held(CLAIMS["up_to_15.7_times"], found) and len(found) == 12
    best = max(found, key=lambda value: value.number)
    assert (best.place.table, best.place.block, best.place.test) == ("main_3b", "text", "svamp_paper4138")
    assert best.number == pytest.approx(537.78 / 34.14)


def test_training_time_is_counted_once_for_all_test_sets() -> None:
    found = list(compared(CLAIMS["trains_faster_than_some"], printed))
    assert [CLAIMS["trains_faster_than_some"].met(value.number) for value in found].count(True) == 2 and len(found) == 5


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"above": 0}, False),
        ({"above": 0, "judge": "most"}, True),
        ({"above": 0, "versus": "best"}, False),
        ({"above": 8, "judge": "some"}, True),
        ({"equals": 9, "judge": "largest"}, True),
        ({"at_least": -2}, True),
        ({"within": 2}, False),
        ({"within": 9}, True),
        ({"above": 1, "measure": "test"}, False),
        ({"above": 0.04, "measure": "test"}, True),
    ],
)
def test_readings(fields: dict[str, Any], verdict: bool) -> None:
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 12.0, ("codi", "gsm8k"): 3.0}
    numbers |= {("marcos", "multiarith"): 10.0, ("cot_sft", "multiarith"): 9.0, ("codi", "multiarith"): 1.0}
    one = claim(tests=["gsm8k", "multiarith"], **fields)
    assert held(one, list(compared(one, given(numbers)))) is verdict


def test_a_rounding_error_decides_nothing() -> None:
    below, above = (100 * 0.29 - 100 * 0.30, 100 * 0.57 - 100 * 0.56)
    assert below < -1 and above < 1
    assert claim(at_least=-1).met(below) and claim(within=1).met(below) and claim(at_least=1).met(above)
    assert [claim(equals=4.7).met(value) for value in (4.69, 4.704, 4.71)] == [False, True, False]


def test_the_list_has_what_the_abstract_and_the_text_say() -> None:
    assert len(CLAIMS) == len(load_claims()) > 35
    said = " ".join(claim.says for claim in load_claims())
    for number in ("10 times", "15.7", "4.70", "8.04", "2.30", "100 %", "44.62", "3.2", "1.8", "10.0"):
        assert number in said


def row(text: str, sentence: str) -> list[str]:
    """Return the cells of the line of a claim: where it is, its cells, the paper's numbers, the verdict, ours."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {sentence}")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_the_papers_numbers_need_no_results(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["table", "smoke", "--table", "claims", "--results", str(tmp_path)])
    assert f"warning: {tmp_path} has no collected results of smoke: these are the paper's" in done.stderr
    assert not [*tmp_path.iterdir()]
    assert done.exit_code == 0 and "How it was made" not in done.stdout
    assert row(done.stdout, "4.70 points above CoT-SFT")[2:] == ["+4.70", "held", "\N{EN DASH}"]
    assert "not held (5 of 6): not text multiarith (-1.53)" in done.stdout
    assert row(done.stdout, "initialisation matters little")[3] == "its table has no such row"


def test_models_of_another_size_say_nothing(tmp_path: Path) -> None:
    small = study(rows=[{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}])
    fabricate(small, tmp_path)
    results.collect(small, tmp_path)
    text = contents(small, tmp_path, Table.claims)["md"]
    ours = [line.strip("|").split("|")[5].strip() for line in text.splitlines()[5:] if line.startswith("| ")]
    assert set(ours) == {"not run at this size", "\N{EN DASH}"} and "qwen2-tiny" not in text


def test_a_study_of_the_papers_own_setting_stands_beside(tmp_path: Path) -> None:
    """Whichever study the table is made for, and with the runs of another study that it shares."""
    small, papers = study(), load_study("paper_0.5b")
    for each in (small, papers):
        shares = {"cot_sft": (0.2, 0.5, 0.5, 0.4), "marcos": (0.8, 0.5, 0.5, 0.1)} if each is papers else {}
        fabricate(each, tmp_path, shares)
        results.collect(each, tmp_path)
    texts = [contents(each, tmp_path, Table.claims)["md"] for each in (small, papers)]
    for text in texts:
        first, second, third = row(text, "above CoT-SFT in most settings")[4].split(" (")[0].split(", ")
        assert float(first) > 40 and float(second) == pytest.approx(0, abs=15) and float(third) < -10
        assert row(text, "4.70 points above CoT-SFT on GSM8K, text")[4] == "not run at this size"
        assert row(text, "more accurate than the other continuous methods")[4].endswith("(12)")
        assert "**Ours, paper_0.5b:** qwen2.5-0.5b" in text
    assert "Departures from the paper" in texts[1] and "Departures from the paper" not in texts[0]


def test_times_of_untrained_models_of_the_papers_size_stand_beside(tmp_path: Path) -> None:
    small = study()
    fabricate(small, tmp_path)
    results.collect(small, tmp_path)
    source = ROOT / "results/reference/h200/runs/paper_0.5b/equation/cot_sft.json"
    record = read_json(source)
    folder = tmp_path / "measured/here/runs/paper_0.5b/equation"
    write_json(folder / "cot_sft.json", record)
    tests = {name: test | {"seconds": [test["seconds"][0] / 4]} for name, test in record["tests"].items()}
    write_json(folder / "marcos.json", record | {"row": "marcos", "tests": tests})
    write_json(tmp_path / "measured/there/runs/paper_0.5b/equation/codi.json", record | {"row": "codi"})
    text = contents(small, tmp_path, Table.claims)["md"]
    assert row(text, "faster than token-based CoT")[4] == "4.00, 4.00, 4.00 times"
    assert row(text, "and in less than some 0.5B models")[4] == "1.00 times", "CODI was timed on another machine"
