"""The command line: what its commands print and write beyond the functions that they call."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import results
from benchmarks.cli import app
from fabricate import fabricate, study
from methods.registry import available


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_methods_are_described_by_whole_sentences() -> None:
    text = output("methods")
    assert len(text.splitlines()) == len(available())
    for cls in available().values():
        about = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
        assert about.endswith(".") and about in text, cls


def test_a_study_is_shown_by_its_first_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tracking.attach_table", lambda *_: None)
    made, path = study(tables=["decoding", "main"]), tmp_path / "study.yaml"
    path.write_text(made.model_dump_json(exclude_unset=True))
    fabricate(made, tmp_path)
    results.collect(made, tmp_path)
    assert "A fabricated study: decodings" in output("table", str(path), "--results", str(tmp_path))
    assert {file.name for file in (tmp_path / "fake").glob("table_*.md")} == {"table_decoding.md"}
    assert "Training FLOPs" in output("table", str(path), "--results", str(tmp_path), "--table", "main")


def test_the_median_of_an_even_number_of_times_is_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"tests": {"alpha": {"answer_only": {"seconds": [3.0, 1.0, 2.0, 8.0], "n": 7}}}}
    monkeypatch.setattr("benchmarks.devices.pin_for", lambda *_: None)
    monkeypatch.setattr("benchmarks.timing.time_run", lambda *_: times)
    assert "alpha (answer_only): 2.50 s for 7 questions" in output("time", "smoke", "equation/marcos/s0")
