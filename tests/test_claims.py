"""The paper's claims: what its own tables give for them, and where our numbers appear beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.files import read_json, write_json
from benchmarks.studies.specs import Table
from benchmarks.studies.study import load_study
from benchmarks.tables.claims import Claim, Numbers, compared, load_claims, papers_numbers
from benchmarks.tables.measured import render_measured
from commands import invoke
from conftest import ROOT
from fabricate import collected, contents, study

CLAIMS = {claim.id: claim for claim in load_claims()}
XAVIER = "ablation equation: marcos_xavier on gsm8k"  # the paper speaks of it, and its table has no such row


def claim(cells: str = "main_0.5b equation: marcos on gsm8k, multiarith against cot_sft, codi", **fields: Any) -> Claim:
    return Claim.model_validate({"id": "a", "place": "1", "says": "so", "cells": [cells]} | fields)


def test_every_claim_has_a_bound_and_cells_that_the_paper_prints_or_says_why_not() -> None:
    for one in CLAIMS.values():
        assert bool(one.cells) is bool(one.bound) is not bool(one.without), one.id
        values = list(compared(one, papers_numbers()))
        assert (None in values) is (one.id == "initialisation"), one.id
    assert XAVIER not in papers_numbers()


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
    found = [value for value in compared(CLAIMS[id], papers_numbers()) if value is not None]
    assert [round(value, 2) for value in found] == values
    assert CLAIMS[id].holds(found) is verdict


def test_speed_up_of_15_7_is_one_cell_of_twelve() -> None:
    found = [value for value in compared(CLAIMS["up_to_15.7_times"], papers_numbers()) if value is not None]
    assert CLAIMS["up_to_15.7_times"].holds(found) and len(found) == 12
    assert max(found) == found[7] == pytest.approx(537.78 / 34.14)  # SVAMP, 3B, text


def test_training_time_is_counted_once_for_all_test_sets() -> None:
    found = [value for value in compared(CLAIMS["trains_faster_than_some"], papers_numbers()) if value is not None]
    assert [*map(CLAIMS["trains_faster_than_some"].met, found)].count(True) == 2 and len(found) == 5


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"bound": "> 0"}, False),
        ({"bound": "> 0", "judge": "most"}, True),
        ({"bound": "> 0", "versus": "best"}, False),
        ({"bound": "> 8", "judge": "some"}, True),
        ({"bound": "= 9", "judge": "some"}, True),
        ({"bound": ">= -2"}, True),
        ({"bound": "within 2"}, False),
        ({"bound": "within 9"}, True),
        ({"bound": "> 1", "measure": "test"}, False),
        ({"bound": "> 0.04", "measure": "test"}, True),
    ],
)
def test_readings(fields: dict[str, Any], verdict: bool) -> None:
    rows = {"marcos": (10.0, 10.0), "cot_sft": (12.0, 9.0), "codi": (3.0, 1.0)}
    numbers: Numbers = {
        f"main_0.5b equation: {row} on {test}": {"accuracy": value, "test": value}
        for row, values in rows.items()
        for test, value in zip(("gsm8k", "multiarith"), values, strict=True)
    }
    one = claim(**fields)
    assert one.holds([value for value in compared(one, numbers) if value is not None]) is verdict


def test_a_rounding_error_decides_nothing() -> None:
    below, above = (100 * 0.29 - 100 * 0.30, 100 * 0.57 - 100 * 0.56)
    assert below < -1 and above < 1
    assert claim(bound=">= -1").met(below) and claim(bound="within 1").met(below) and claim(bound=">= 1").met(above)
    assert [claim(bound="= 4.7").met(value) for value in (4.69, 4.704, 4.71)] == [False, True, False]


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
    done = invoke("table", "smoke", "--table", "claims", "--results", tmp_path)
    assert f"warning: {tmp_path} has no collected results of smoke: these are the paper's" in done.stderr
    assert not [*tmp_path.iterdir()]
    assert "How it was made" not in done.stdout
    assert row(done.stdout, "4.70 points above CoT-SFT")[2:] == ["+4.70", "held", "\N{EN DASH}"]
    assert "+4.70, +1.14, -1.53, +3.80, -0.15, +0.85" in done.stdout and "not held (5 of 6)" in done.stdout
    assert row(done.stdout, "initialisation matters little")[3] == "its table has no such row"


def test_models_of_another_size_say_nothing(tmp_path: Path) -> None:
    small = study(rows=[{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}])
    collected(small, tmp_path)
    text = contents(small, tmp_path, Table.claims)["md"]
    ours = [line.strip("|").split("|")[5].strip() for line in text.splitlines()[5:] if line.startswith("| ")]
    assert set(ours) == {"not run at this size", "\N{EN DASH}"} and "qwen2-tiny" not in text


def test_a_study_of_the_papers_own_setting_stands_beside(tmp_path: Path) -> None:
    """Whichever study the table is made for, and with the runs of another study that it shares."""
    small, papers = study(), load_study("paper_0.5b")
    for each in (small, papers):
        shares = {"cot_sft": (0.2, 0.5, 0.5, 0.4), "marcos": (0.8, 0.5, 0.5, 0.1)} if each is papers else {}
        collected(each, tmp_path, shares)
    texts = [contents(each, tmp_path, Table.claims)["md"] for each in (small, papers)]
    for text in texts:
        *missing, first, second, third = row(text, "above CoT-SFT in most settings")[4].split(", ")[:6]
        assert missing == ["\N{EN DASH}"] * 3
        assert float(first) > 40 and float(second) == pytest.approx(0, abs=15) and float(third) < -10
        assert row(text, "4.70 points above CoT-SFT on GSM8K, text")[4] == "not run at this size"
        assert row(text, "more accurate than the other continuous methods")[4].count(".") == 12
        assert "**Ours, paper_0.5b:** qwen2.5-0.5b" in text
    assert "Departures from the paper" in texts[1] and "Departures from the paper" not in texts[0]


def test_times_of_untrained_models_of_the_papers_size_stand_beside(tmp_path: Path) -> None:
    small = study()
    collected(small, tmp_path)
    source = ROOT / "results/reference/h200/runs/paper_0.5b/equation/cot_sft.json"
    record = read_json(source)
    folder = tmp_path / "measured/here/runs/paper_0.5b/equation"
    write_json(folder / "cot_sft.json", record)
    tests = {name: test | {"seconds": [test["seconds"][0] / 4]} for name, test in record["tests"].items()}
    write_json(folder / "marcos.json", record | {"row": "marcos", "tests": tests})
    write_json(tmp_path / "measured/there/runs/paper_0.5b/equation/codi.json", record | {"row": "codi"})
    for name in ("here", "there"):
        render_measured(load_study("paper_0.5b"), tmp_path / "measured" / name)
    text = contents(small, tmp_path, Table.claims)["md"]
    dash = "\N{EN DASH}"
    assert row(text, "faster than token-based CoT")[4] == f"{3 * f'{dash}, '}4.00, 4.00, 4.00{6 * f', {dash}'} times"
    trains = row(text, "and in less than some 0.5B models")[4]
    assert trains == f"1.00{4 * f', {dash}'} times", "CODI was timed on another machine"


def test_records_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    small = study()
    collected(small, tmp_path)
    write_json(tmp_path / "paper_3b/collect.json", {})
    assert "paper_3b is left out: " in contents(small, tmp_path, Table.claims)["md"]
