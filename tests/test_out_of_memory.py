"""A GPU with full memory: the message names what was at work and the fix, and earlier measurements are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.files import read_json
from benchmarks.studies.micro_batches import rows_per_pass
from commands import invoke, study_file
from methods.coconut import Coconut
from methods.cot_sft import CoTSFT
from small import small_study

SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.00 GiB is "
    "free. Including non-PyTorch memory, this process has 138.81 GiB in use."
)
ROWS = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "coconut", "method": "coconut"}]


def full(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError(SAID)


def call(folder: Path, command: str, *options: str, **settings: Any) -> str:
    """Run a command that must fail on its input, and return its output on one line."""
    path = study_file(small_study(ROWS, **settings), folder)
    return invoke(command, path, *options, "--results", folder, code=2).output.replace("\n", " ")


def test_a_pass_has_no_more_rows_than_a_batch() -> None:
    assert [rows_per_pass(16, 1, micro) for micro in (512, 8, None)] == [16, 8, 16]


def test_training_names_its_passes(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"engine": {"micro_batch": 8}}
    monkeypatch.setattr(CoTSFT, "forward", full)
    said = call(results, "train", "equation/cot_sft/s0", **settings)
    assert "error: small: training equation/cot_sft/s0: CUDA out of memory. Tried to allocate 2.00 GiB. A " in said
    assert "at most 8 rows: lower `engine.micro_batch`" in said and "`marcos-bench plan`" in said


def test_a_model_that_does_not_fit_is_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoTSFT, "to", full)
    assert "error: small: training equation/cot_sft/s0: CUDA out of" in call(results, "train", "equation/cot_sft/s0")


def test_answers_name_their_batch(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoTSFT, "generate", full)
    said = call(results, "measure", "--name", "here", timing={"batch_size": 12})
    assert "error: answering 12 questions at once, the longest of" in said and "`timing` its own" in said


def test_what_was_measured_before_is_kept(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is written as soon as its parts exist. A complete record stays until another one is complete."""
    measured = ("measure", "--name", "here", "--timed", "2", "--repeats", "1")
    with monkeypatch.context() as patch:
        patch.setattr(Coconut, "forward", full)
        assert "training equation/coconut/s0" in call(results, *measured, timing={"questions": 8})
    folder = results / "measured/here"
    whole, part = (read_json(folder / f"runs/small/equation/{row}.json") for row in ("cot_sft", "coconut"))
    assert whole["train"] and whole["tests"].keys() == part["tests"].keys() != set()
    assert part["train"] is None and part["environment"]["finished"]
    table = read_json(folder / "table_small.json")["lines"]
    assert [line.get("step_seconds") is not None for line in table] == [True, False]
    assert all(line["embedded_in_domain_question_ms"] > 0 for line in table)
    assert "| Coconut" in (folder / "table_small.md").read_text(encoding="utf-8")
    monkeypatch.setattr(CoTSFT, "forward", full)
    assert "training equation/cot_sft/s0" in call(results, *measured, timing={"questions": 8})
    assert read_json(folder / "runs/small/equation/cot_sft.json") == whole
