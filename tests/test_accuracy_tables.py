"""Tables of accuracy alone (ablations, non-autoregressive decoding, pretrained checkpoints), and the table of 3B."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.records import results
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study
from fabricate import collected, contents, fabricate, study
from test_tables import cells, header

DASH = "–"  # noqa: RUF001
PAPER_TESTS = ["gsm8k", "svamp_paper4138", "multiarith"]
EQUATION = [{"id": "equation", "title": "Equation", "data": {"train": "corpus"}}]
ABLATION = [
    {"id": "marcos", "method": "marcos", "title": "MarCos"},
    {"id": "marcos_causal", "method": "marcos", "title": "causal", "indent": True, "options": {"attention": "causal"}},
    {"id": "marcos_xavier", "method": "marcos", "title": "Xavier", "options": {"thinking_init": "xavier"}},
]
SHARES = {"marcos": (0.8, 0.5, 0.3), "marcos_causal": (0.5, 0.5, 0.3), "marcos_xavier": (0.8, 0.5, 0.3)}


def made(tests: list[str], rows: list[dict[str, Any]], **changes: Any) -> Study:
    evaluation = {"tests": tests, "decodings": {"default": {"seeds": 2}}}
    return study(**{"rows": rows, "evaluation": evaluation, "blocks": EQUATION, "timing": None} | changes)


def table(made: Study, folder: Path, which: Table, shares: dict[str, tuple[float, ...]] | None = None) -> str:
    collected(made, folder, shares or {})
    return contents(made, folder, which)["md"]


def test_ablations_stand_against_the_first_row_and_beside_the_papers_numbers(tmp_path: Path) -> None:
    text = table(made(PAPER_TESTS, ABLATION, paper="ablation"), tmp_path, Table.ablation, SHARES)
    assert header(text)[1:6] == [f"gsm8k {name}" for name in ("Acc (%)", "Δ", "p", "Paper (%)", "Paper Δ")]
    first, causal, xavier = (cells(text, title, "Equation") for title in ("MarCos", "causal", "Xavier"))
    assert first[1:5] == [DASH, DASH, "24.11", DASH]
    assert float(causal[1]) < -20 and causal[2] == "&lt;0.001" and causal[3:5] == ["22.74", "-1.37"]
    assert xavier[3:5] == [DASH, DASH]  # the paper prints no number for initialisation
    assert float(xavier[0].split(" ")[0].strip("*")) - float(first[0].split(" ")[0].strip("*")) == pytest.approx(
        float(xavier[1]), abs=0.011
    )
    assert "For reference" not in text


def test_a_test_that_is_not_for_a_block_has_dashes(tmp_path: Path) -> None:
    blocks = [{**EQUATION[0], "tests": ["gsm8k"]}, {**EQUATION[0], "id": "text", "title": "Text"}]
    for paper, columns in (("ablation", 5), (None, 3)):
        study = made(PAPER_TESTS, ABLATION, blocks=blocks, paper=paper)
        text = table(study, tmp_path / str(paper), Table.ablation)
        shown = cells(text, "causal", "Equation")
        assert DASH not in shown[:3] and shown[columns:] == [DASH] * 2 * columns


def test_in_another_setting_the_papers_numbers_stand_apart(tmp_path: Path) -> None:
    text = table(made(["alpha", "beta"], ABLATION), tmp_path, Table.ablation)
    main, reference = text.split("## For reference")
    assert "24.11" not in main and "not this study's" in reference.splitlines()[0]
    # Headings are short, and explained in the legend
    assert "SVAMP (4,138) Acc (%)" in reference and "3,138 training rows" in main
    assert "corrected for all pairs of rows. p is corrected for the comparisons with the first row alone" in main
    assert cells(reference, "MarCos")[:2] == ["24.11", DASH] and cells(reference, "causal")[:2] == ["22.74", "-1.37"]
    assert cells(reference, "Xavier") == [DASH] * 6


def test_tests_are_corrected_for_the_rows_of_their_section(tmp_path: Path) -> None:
    ours = made(["alpha", "beta"], ABLATION)
    collected(ours, tmp_path)
    tests = json.loads(contents(ours, tmp_path, Table.ablation)["json"])["paired_tests"]
    assert [(test["row"], test["against"]) for test in tests if test["test"] == "alpha"] == [
        ("marcos_causal", "marcos"),
        ("marcos_xavier", "marcos"),
    ]
    assert all(test["p_value"] <= test["p_holm"] <= min(1, 2 * test["p_value"]) + 1e-9 for test in tests)


def test_rows_that_have_not_run_say_so(tmp_path: Path) -> None:
    ours = made(["alpha", "beta"], ABLATION)
    fabricate(ours, tmp_path)
    (tmp_path / "fake/runs/equation/marcos/s0/evaluate.json").unlink()
    results.collect(ours, tmp_path)
    text = contents(ours, tmp_path, Table.ablation)["md"]
    assert cells(text, "MarCos")[0].startswith("not run<sup>")
    assert cells(text, "causal")[1:3] == [DASH, DASH]


def test_speaking_at_once_shows_passes_and_the_papers_row_that_speaks_in_order(tmp_path: Path) -> None:
    at_once = {"speaking": "one_shot"}
    rows = [ABLATION[0], {"id": "marcos_one_shot", "method": "marcos", "title": "at once", "options": at_once}]
    text = table(made(PAPER_TESTS, rows, paper="one_shot"), tmp_path, Table.nar)
    assert cells(text, "MarCos")[3] == "24.11 ± 0.97"  # from the main table
    assert cells(text, "at once")[3:5] == ["14.25", "-9.86"]
    costs = text.split("## What an answer takes")[1]
    assert cells(costs, "at once", "Equation · gsm8k") == ["0.25", "4.0"]


def test_checkpoints_have_a_block_each(tmp_path: Path) -> None:
    blocks = [{"id": "qwen2.5-0.5b", "title": "Backbone: Qwen2.5-0.5B", "data": {"train": "corpus"}}]
    rows = [
        {"id": "cot_sft", "method": "cot_sft"},
        {"id": "marcos_wo_r", "method": "marcos", "options": {"randomness": False}},
    ]
    text = table(made(PAPER_TESTS, rows, blocks=blocks, paper="pretrained"), tmp_path, Table.pretrained)
    assert cells(text, "MarCos")[3:5] == ["43.8", "+2.2"]  # as printed, with one decimal
    assert "Backbone: Qwen2.5-0.5B: from qwen2-tiny from scratch." in text


def test_3b_says_what_each_row_is_built_of(tmp_path: Path) -> None:
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}]
    big = {"name": "qwen2-tiny", "overrides": {"hidden_size": 128}}
    ours = made(PAPER_TESTS, rows, backbone=big, paper="main_3b", timing={"repeats": 3})
    text = table(ours, tmp_path, Table.scale)
    assert cells(text, "paper", "Equation")[0] == "1.23 ± 0.00"
    sizes = text.split("## Backbone of each row")[1]
    assert cells(sizes, "CoT-SFT") == ["qwen2-tiny (hidden_size 128)", "0.24M"]


def test_3b_has_the_rows_of_a_block_that_lacks_the_first_test(tmp_path: Path) -> None:
    blocks = [EQUATION[0], {**EQUATION[0], "id": "late", "title": "Late", "tests": ["multiarith"]}]
    ours = made(PAPER_TESTS, [{"id": "marcos", "method": "marcos"}], blocks=blocks)
    sizes = table(ours, tmp_path, Table.scale).split("## Backbone of each row")[1]
    assert cells(sizes, "MarCos", "Late") == ["qwen2-tiny", "0.24M"]
