"""The table of curricula: every stage against the row's warm start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.records import results
from benchmarks.records.statistics import holm
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study
from benchmarks.tracking import importer
from benchmarks.tracking.store import find_experiments, find_runs, session
from fabricate import EARLIER, collected, contents, fabricate, let_r_die, study
from test_tables import cells

DASH = "–"  # noqa: RUF001
SHARES = {"cot_sft": (0.9, 0.9), "coconut": (0.8, 0.8)}
KEEPING = {"training": {"keep_stages": True}}
COCONUT = "Training data: equation · Coconut"


def made(rows: list[dict[str, Any]], **changes: Any) -> Study:
    return study(rows=rows, evaluation={"tests": ["alpha", "beta"]}, timing=None, **changes)


def curricula(**changes: Any) -> Study:
    return made([{"id": "cot_sft", "method": "cot_sft"}, {"id": "coconut", "method": "coconut", **KEEPING}], **changes)


def rendered(ours: Study, folder: Path) -> dict[str, str]:
    results.collect(ours, folder)
    return contents(ours, folder, Table.stages)


def test_stages_stand_below_what_they_start_from(tmp_path: Path) -> None:
    ours = curricula()
    fabricate(ours, tmp_path, SHARES)
    files = rendered(ours, tmp_path)
    start, first, second, last = (
        cells(files["md"], title, COCONUT) for title in ("CoT-SFT (its start)", "stage 1", "stage 2", "stage 3")
    )
    assert [line[0] for line in (start, first, second, last)] == [DASH, "0.50", "1.00", "1.50"]
    assert start[2:4] == [DASH, DASH] and float(start[1]) == pytest.approx(90, abs=6)
    for line, share in zip((first, second, last), (*EARLIER, 1.0), strict=True):
        assert float(line[1]) == pytest.approx(80 * share, abs=8)
        assert float(line[2]) == pytest.approx(float(line[1]) - float(start[1]), abs=0.011)
    assert first[3] == second[3] == "&lt;0.001"
    lines = json.loads(files["json"])["lines"]
    own = [line for line in lines if (line["block"], line["test"]) == ("equation", "alpha")]
    assert own[0]["difference"] is None and len(own) == 4
    tests = json.loads(files["json"])["paired_tests"]
    assert {(test["row"], test["moment"]) for test in tests} == {("coconut", moment) for moment in (1, 2, 3)}
    assert [line["p_holm"] for line in own[1:]] == holm([line["p_value"] for line in own[1:]])
    assert own[1]["p_holm"] > own[1]["p_value"]
    assert "generalise to other questions for these trained models" in files["md"]
    assert "CoT-SFT |" not in files["md"], "a row that keeps no stage has no section"


def test_several_trainings_have_a_spread_and_a_missing_one_a_note(tmp_path: Path) -> None:
    ours = curricula(seeds=[0, 1, 2])
    fabricate(ours, tmp_path, SHARES)
    text = rendered(ours, tmp_path)["md"]
    assert "±" in cells(text, "stage 1", COCONUT)[1] and "± is the standard deviation over training seeds" in text
    (tmp_path / "fake/runs/equation/coconut/s2/evaluate.json").unlink()
    text = rendered(ours, tmp_path)["md"]
    shown = cells(text, "stage 1", COCONUT)
    assert shown[1].endswith("<sup>1</sup>") and shown[3] == DASH and "equation/coconut/s2: no evaluate.json" in text
    assert "Two rows are tested only if both have at least 3 trainings" in text


def test_without_its_start_a_row_stands_against_its_first_stage(tmp_path: Path) -> None:
    ours = made([{"id": "icot_si", "method": "icot_si", **KEEPING}])
    fabricate(ours, tmp_path, {"icot_si": (0.8, 0.8)})
    text, place = rendered(ours, tmp_path)["md"], "Training data: equation · iCoT-SI"
    assert cells(text, "stage 1", place)[2:4] == [DASH, DASH] and "its start" not in text
    assert float(cells(text, "stage 3", place)[2]) > 40


def test_what_has_not_run_says_so(tmp_path: Path) -> None:
    """If the start is missing, stages are not compared with another stage instead."""
    ours = curricula()
    fabricate(ours, tmp_path, SHARES)
    for block, row in (("text", "coconut"), ("equation", "cot_sft")):
        (tmp_path / f"fake/runs/{block}/{row}/s0/evaluate.json").unlink()
    text = rendered(ours, tmp_path)["md"]
    assert cells(text, "Coconut", "Training data: text · Coconut")[1].startswith("not run<sup>")
    assert cells(text, "CoT-SFT (its start)", COCONUT)[1].startswith("not run<sup>")
    first, last = (cells(text, title, COCONUT) for title in ("stage 1", "stage 3"))
    assert float(last[1]) > float(first[1]) > 0 and first[2:4] == last[2:4] == [DASH, DASH]
    assert "text/coconut/s0: no evaluate.json" in text and "equation/cot_sft/s0: no evaluate.json" in text


def test_a_warning_stands_at_the_final_weights(tmp_path: Path) -> None:
    ours = made([{"id": "marcos", "method": "marcos", **KEEPING}])
    fabricate(ours, tmp_path, {})
    let_r_die(tmp_path / "fake/runs/equation/marcos/s0")
    text = rendered(ours, tmp_path)["md"]
    assert "***Training data: equation · MarCos (R dead)***" in text and "R is dead: no dimension" in text
    assert cells(text, "stage 3<sup>1</sup>", "Training data: equation · MarCos (R dead)")


def test_a_study_that_keeps_nothing_says_how_to(tmp_path: Path) -> None:
    plain = made([{"id": "cot_sft", "method": "cot_sft"}])
    fabricate(plain, tmp_path, SHARES)
    assert "set `keep_stages: true` in its `training`" in rendered(plain, tmp_path)["md"]


def test_a_block_without_a_test_has_dashes(tmp_path: Path) -> None:
    data = {"train": "corpus"}
    blocks = [
        {"id": "text", "title": "T", "data": data, "tests": ["beta"]},
        {"id": "equation", "title": "E", "data": data},
    ]
    ours = curricula(blocks=blocks)
    fabricate(ours, tmp_path, {})
    shown = cells(rendered(ours, tmp_path)["md"], "stage 1", "T · Coconut")
    assert shown[1:4] == [DASH] * 3 and DASH not in shown[4:]


def test_mlflow_has_accuracies_at_the_steps_that_stages_end_with(tmp_path: Path) -> None:
    ours = curricula()
    collected(ours, tmp_path, SHARES)
    importer.track(ours, tmp_path)
    with session(tmp_path) as client:
        (run,) = find_runs(client, find_experiments(client), "tags.run = 'text/coconut/s0'")
        logged = client.get_metric_history(run.info.run_id, "accuracy_by_stage/beta")
    found = [(metric.step, metric.value) for metric in logged]
    assert [step for step, _ in found] == [100, 200, 300]
    assert [value for _, value in found] == pytest.approx([0.16, 0.48, 0.8], abs=0.08)
