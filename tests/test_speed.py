"""The benchmark of batching and caching: both ways give the same answers, and the batched one is much faster."""

from __future__ import annotations

from pathlib import Path

from benchmarks.files import read_json
from benchmarks.timing.speed import options_in
from commands import invoke, study_file
from methods.registry import available
from small import MARCOS, small_study

ROWS = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos", "options": MARCOS}]


def test_measures_every_method_and_both_ways_say_the_same(tmp_path: Path) -> None:
    few = {"id": "equation", "title": "Equation", "data": {"train": "embedded", "validation": 32, "limit": 32}}
    path, output = study_file(small_study(ROWS, blocks=[few]), tmp_path), tmp_path / "speed.json"
    size = ["--repeats", 1, "--questions", 1000]
    run = invoke("measure", path, "--batching", "--results", tmp_path, "--output", output, *size)
    record = read_json(output)
    assert record["questions"] == 32, "all that there are"
    assert record["answers"].keys() == available().keys()
    for method in record["answers"].values():
        assert method["same"] == 1.0
        assert method["batched"] > method["single"] > 0
        assert method["title"] in run.output
    assert record["training"]["coconut"]["ratio"] > 4, "about a fifth of the naive time"
    assert record["training_step"]["layers"] == 2
    assert "70 tokens, 2 layers of width 96." in run.output
    assert record["loop"]["difference"] < 1e-5, "else the two loops did not make the same updates"
    assert record["loop"]["ours"] > 0 and record["loop"]["trainer"] > 0


def test_a_method_is_measured_with_the_options_of_its_first_row_in_the_block_that_is_no_control() -> None:
    data = {"train": "embedded"}
    wide = {"id": "wide", "title": "Wide", "data": data, "options": {"coconut": {"thoughts_per_step": 3}}}
    rows = [
        {"id": "answer_only", "method": "cot_sft", "control": True, "options": {"steps": False}},
        {"id": "elsewhere", "method": "coconut", "blocks": ["other"], "options": {"max_stage": 1}},
        {"id": "coconut", "method": "coconut", "options": {"max_stage": 2}},
        {"id": "cot", "method": "cot_sft"},
    ]
    study = small_study(rows, blocks=[wide, {"id": "other", "title": "Other", "data": data}])
    assert options_in(study, study.block("wide"), "cot_sft") == {"steps": True}
    found = options_in(study, study.block("wide"), "coconut")
    assert (found["max_stage"], found["thoughts_per_step"]) == (2, 3)
    assert options_in(study, study.block("wide"), "codi") == {}
