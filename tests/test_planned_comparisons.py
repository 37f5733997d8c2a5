"""Comparisons that a study names in advance: their own correction, and all other pairs as looked up afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.records import results
from benchmarks.records.statistics import holm
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study
from fabricate import collected, contents, fabricate, study
from test_tables import cells

PLAN: dict[str, Any] = {"against": {"oracle": ["cot", "marcos"]}, "ranking": ["marcos", "cot"]}
PLANNED = [("cot", "oracle"), ("marcos", "oracle"), ("marcos", "cot")]
OTHERS = [("cot", "marcos_wo_r"), ("marcos", "marcos_wo_r"), ("marcos_wo_r", "oracle")]
SHARES = {"cot": (0.54, 0.5), "marcos": (0.65, 0.5), "marcos_wo_r": (0.54, 0.5), "oracle": (1.0, 1.0)}
BETA = "Training data: equation · Beta_set"


def made(plan: dict[str, Any] | None = PLAN, **changes: Any) -> Study:
    planned = {"comparisons": plan, "tables": ["main", "comparisons"]} if plan else {}
    return study(**planned, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    collected(made(), path, SHARES)
    return path


def found_in(files: dict[str, str], part: str, block: str = "equation", test: str = "alpha") -> list[dict[str, Any]]:
    return [one for one in json.loads(files["json"])[part] if (one["block"], one["test"]) == (block, test)]


def test_planned_pairs_are_in_the_blocks_that_have_both_rows() -> None:
    rows = [row.model_dump() for row in study().rows]
    rows[0]["blocks"] = ["text"]
    ours = made(rows=rows)
    assert ours.planned(ours.block("text")) == tuple(PLANNED)
    assert ours.planned(ours.block("equation")) == (("marcos", "oracle"),)


def test_a_plan_is_no_setting_of_runs() -> None:
    assert made().runs == study().runs
    assert "comparisons" not in study().model_dump_json(), "studies without a plan are as they were"


def test_planned_pairs_are_corrected_for_each_other_and_all_others_for_all(folder: Path) -> None:
    lines = found_in(contents(made(), folder, Table.comparisons), "lines")
    planned, others = ([line for line in lines if line["planned"] == asked] for asked in (True, False))
    assert [(line["a"], line["b"]) for line in planned] == PLANNED
    assert [(line["a"], line["b"]) for line in others] == OTHERS, "controls come last, so that they are the other side"
    assert [line["p_holm"] for line in planned] == holm([line["p_value"] for line in planned])
    everything = holm([line["p_value"] for line in lines])
    assert [line["p_holm"] for line in others] == everything[len(PLANNED) :]
    assert planned[-1]["p_holm"] < everything[len(PLANNED) - 1], "what is planned is easier to separate"
    assert all(line["low"] < line["difference"] < line["high"] for line in lines)


def test_the_table_has_a_section_for_each_family_and_says_what_was_looked_up(folder: Path) -> None:
    text = contents(made(), folder, Table.comparisons)["md"]
    planned, _, others = text.partition("## Looked up afterwards: all other pairs of rows")
    n, difference, interval, p, p_holm, separated = cells(planned, "MarCos minus CoT-SFT", BETA)
    assert (n, separated) == ("200", "no") and float(p) <= float(p_holm)
    low, high = map(float, interval.split(" to "))
    assert low < float(difference) < high
    assert cells(planned, "MarCos minus Gold answers", BETA)[-1] == "yes"
    assert len(cells(others, "MarCos minus w/o R", BETA)) == 6
    assert "minus w/o R" not in planned and "MarCos minus CoT-SFT" not in others
    assert "Agresti and Min" in text


def test_marks_and_comparisons_with_controls_are_by_the_plan(folder: Path) -> None:
    """On Alpha, MarCos is separated from CoT-SFT where that was planned, and not where all pairs are looked through."""
    planned, plain = contents(made(), folder), contents(made(None), folder)
    compared = found_in(contents(made(), folder, Table.comparisons), "lines", "text")
    by_pair = {frozenset((line["a"], line["b"])): line["p_holm"] for line in compared}
    for pair in found_in(planned, "paired_tests", "text"):
        assert pair["p_holm"] == by_pair[frozenset((pair["a"], pair["b"]))]
    for line in found_in(planned, "against_controls", "text"):
        assert line["p_holm"] == by_pair[frozenset((line["row"], line["control"]))]
    alone = next(
        pair for pair in found_in(plain, "paired_tests", "text") if (pair["a"], pair["b"]) == ("cot", "marcos")
    )
    assert by_pair[frozenset(("cot", "marcos"))] < alone["p_holm"]
    assert "all other pairs were looked up afterwards" in planned["md"]
    assert "correction for all pairs of ranked rows" in plain["md"] and "afterwards" not in plain["md"]


def test_over_training_seeds_the_comparison_is_about_other_seeds_too(tmp_path: Path) -> None:
    several = made(seeds=[0, 1, 2])
    fabricate(several, tmp_path, SHARES)
    (tmp_path / "fake/runs/text/cot/s1/evaluate.json").unlink()
    for seed in range(3):
        (tmp_path / f"fake/runs/equation/cot/s{seed}/evaluate.json").unlink()
    results.collect(several, tmp_path)
    files = contents(several, tmp_path, Table.comparisons)
    lines = found_in(files, "lines", "text")
    assert {line["kind"] for line in lines if "cot" not in (line["a"], line["b"])} == {"trainings"}
    text = files["md"]
    few = cells(text, "CoT-SFT minus Gold answers<sup>1</sup>", "Training data: text · Beta_set")
    assert few[0] == "200" and set(few[2:]) == {"–"}, "two trainings are no test"  # noqa: RUF001
    assert cells(text, "CoT-SFT minus Gold answers<sup>2</sup>", BETA)[0] == "not run<sup>2</sup>"
    assert "text/cot/s1: no evaluate.json" in text and "of the t distribution, over questions" in text
