"""A rehearsal goes through a whole study with budgets that teach nothing, and says what the real thing takes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import rehearsal
from benchmarks.data import DATASETS, DataError
from benchmarks.files import read_json
from benchmarks.plan.hardware import GPU
from benchmarks.studies.study import load_study, parse_study
from benchmarks.training.live_tracking import VARIABLE
from methods.errors import InputError
from small import small_study

MACHINE = GPU("this one", 64e9, 1e12, 1e12)


def test_a_study_goes_from_data_to_a_report_that_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no")
    monkeypatch.setattr(rehearsal, "this_machine", lambda: MACHINE)
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "coconut", "method": "coconut"}]
    study = small_study(rows, figures=["steps"], seeds=[0, 1], training={"epochs": 8})
    whole = DATASETS["embedded_in_domain"]
    found = rehearsal.rehearse(study, tmp_path, None, "embedded")
    assert not found.failed and found.folder == tmp_path / "rehearsal" / "small.rehearsal"
    assert DATASETS["embedded_in_domain"] is whole, "an excerpt alone while it is rehearsed"
    pages = [*found.folder.glob("table_*.md"), *found.folder.glob("table_*.tex"), found.folder / "figures" / "steps.md"]
    pages += [found.folder / "rehearsal.md", tmp_path / "rehearsal" / "report.html"]
    assert len(pages) == 2 * 3 + 3
    assert all(rehearsal.MARK in page.read_text(encoding="utf-8") for page in pages)
    assert "small.rehearsal: what every row answered" in (found.folder / "questions.html").read_text(encoding="utf-8")
    for run in found.study.runs.values():
        folder = tmp_path / "rehearsal" / run.folder
        assert 10 <= read_json(folder / "train.json")["steps"] <= 40
        tests = read_json(folder / "evaluate.json")["decodings"]["default"]["tests"]
        assert sum(test["n"] for test in tests.values()) == rehearsal.QUESTIONS
    assert [line.split("|")[4].strip() for line in found.table.splitlines()[2:]] == ["yes"] * 4
    assert "4 of 4" not in found.text() and "2 of 2 runs" in found.text(), "one seed is enough"


def test_rows_that_do_not_fit_go_with_all_that_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_at_hand", lambda *_: True)
    content = load_study("paper_0.5b").model_dump(mode="json", exclude_unset=True)
    assert any("marcos" in decoding.get("only", ()) for decoding in content["evaluation"]["decodings"].values())
    content["blocks"].append({**content["blocks"][0], "id": "large", "options": {"marcos": {}, "cot_sft": {}}})
    for row in content["rows"]:
        row["blocks"] = ["large"] if row["method"] == "marcos" else [content["blocks"][0]["id"]]
    study, notes = parse_study(content, "a test"), list[str]()
    plans: list[Any] = []
    for run in study.runs.values():
        memory = SimpleNamespace(weights=4e9 if run.method == "marcos" else 1e9, gradients=0, moments=0)
        plans.append(SimpleNamespace(run=run, epochs=1.0, memory=memory))
    machine = GPU("this one", 2e9, 1e12, 1e12)
    small = rehearsal.rehearsal_study(study, plans, machine, None, "embedded", notes)
    assert "marcos" not in {row.method for row in small.rows} and len(small.rows) > 3
    assert [block.id for block in small.blocks] == [content["blocks"][0]["id"]]
    assert not any("marcos" in (decoding.only or ()) for decoding in small.evaluation.decodings.values())
    assert "left out: marcos" in " ".join(notes)


@pytest.mark.parametrize(
    ("data", "tests"),
    [
        ({"train": "embedded_in_domain"}, ["embedded_reworded"]),
        ({"train": "embedded"}, ["embedded"]),
        ({"train": "embedded", "validation_set": "embedded"}, ["embedded_reworded"]),
    ],
)
def test_splits_that_there_are_none_of_are_named(data: dict[str, str], tests: list[str], tmp_path: Path) -> None:
    content = load_study("smoke").model_dump(mode="json", exclude_unset=True) | {"figures": [], "tables": ["main"]}
    content["blocks"] = [{"id": "equation", "title": "Equation", "data": data}]
    content["evaluation"]["tests"] = tests
    study = parse_study(content, "a test")
    with pytest.raises(DataError, match=r"has no (train|test) split; it has: "):
        rehearsal.rehearse(study, tmp_path, None, "embedded")


def test_what_is_not_at_hand_has_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_at_hand", lambda name, split, notes: name in ("gsm8k", "svamp"))
    notes: list[str] = []
    small = rehearsal.rehearsal_study(load_study("paper_pretrained"), [], MACHINE, "qwen2-tiny", "embedded", notes)
    assert small.evaluation.tests == ("gsm8k", "svamp") and len(notes) == 2
    assert all(run.data.train == "embedded" and run.training.lora is None for run in small.runs.values())
    assert all(run.backbone.name == "qwen2-tiny" and not run.backbone.pretrained for run in small.runs.values())
    assert {run.training.batch_size for run in small.runs.values()} == {2}
    assert {(run.engine.kind, run.engine.compile, run.timing) for run in small.runs.values()} == {
        ("process", False, None)
    }
    monkeypatch.setattr(rehearsal, "_at_hand", lambda *_: False)
    with pytest.raises(InputError, match="none of its test sets is at hand"):
        rehearsal.rehearsal_study(load_study("paper_pretrained"), [], MACHINE, None, "embedded", [])


def test_whatever_a_new_method_raises_the_rehearsal_goes_on(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    found = rehearsal.Rehearsal(load_study("smoke"), tmp_path)
    with rehearsal._noted(found, "equation/mine/s0"):
        raise ZeroDivisionError("division by zero")
    assert found.failed == {"equation/mine/s0": "ZeroDivisionError: division by zero"}
    assert "Traceback" in caplog.text
