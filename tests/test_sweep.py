"""The sweep of sizes: every method, on one axis at a time; what does not fit is named; the figure has all numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benchmarks.files import read_json
from benchmarks.timing import sweep
from commands import invoke, study_file
from methods.codi import CODI
from methods.registry import available
from small import small_study

AXES = {"batch": (2, 4), "question": (6,), "thoughts": (3,), "width": (1, 2)}
METHODS = {name: available()[name] for name in ("codi", "cot_sft", "marcos")}  # to save time
BASE = sweep.Size(batch=2, question=6)


def test_methods_are_measured_on_every_axis_and_what_does_not_fit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "AXES", AXES)
    monkeypatch.setattr(sweep, "BASE", BASE)
    monkeypatch.setattr(sweep, "available", lambda: METHODS)
    forward = CODI.forward

    def full(self: CODI, batch: Any, context: Any) -> Any:
        return forward(self, batch, context) if len(batch["prompt"]) < 4 else torch.empty(10**15)

    monkeypatch.setattr(CODI, "forward", full)
    few = {"id": "equation", "title": "Equation", "data": {"train": "embedded", "validation": 32, "limit": 32}}
    study, folder = small_study([{"id": "cot_sft", "method": "cot_sft"}], blocks=[few]), tmp_path / "growth"
    options = ["--sweep", "--repeats", 1, "--results", tmp_path, "--output", folder]
    invoke("measure", study_file(study, tmp_path), "--name", "here", *options)
    record, data = read_json(folder / "growth.json"), pd.read_csv(folder / "growth.csv")
    assert record["left_out"] == ["CODI: step, batch 4"]
    assert "CODI: step, batch 4" in (folder / "growth.md").read_text(encoding="utf-8")
    costs = ["step_seconds", "step_bytes", "answer_seconds", "answer_bytes"]
    for name, method in METHODS.items():
        own = data.loc[data["method"] == name]
        assert {*own["axis"]} == {*AXES} - (set() if method.thoughts_option else {"thoughts"})
        fits = own.loc[(name != "codi") | (own["size"] != 4)]
        assert (fits[costs] > 0).all(axis=None)
        if name != "codi":
            batch = own.loc[own["axis"] == "batch"].set_index("size")
            assert batch.loc[4, "step_bytes"] > batch.loc[2, "step_bytes"]
        width = own.loc[own["axis"] == "width"].set_index("size")
        assert width.loc[2, "answer_bytes"] > 1.5 * width.loc[1, "answer_bytes"]
    assert (folder / "growth.png").stat().st_size > 10_000 and (folder / "growth.pdf").is_file()


def test_peak_memory_on_a_cpu_is_that_of_the_tensors_that_exist_at_one_time() -> None:
    held = [torch.ones(1000)]

    def work() -> None:
        one = torch.ones(1_000_000)  # 4 MB
        two = one + 1
        del one
        assert len(two * two)

    assert sweep.peak_bytes(torch.device("cpu"), work, held) == pytest.approx(8_004_000, rel=1e-3)


def test_a_method_says_what_its_thoughts_are_counted_by() -> None:
    """It is one option of its own, which takes all sizes of the sweep."""
    counted = {name: method for name, method in available().items() if method.thoughts_option}
    assert {"marcos", "coconut", "codi", "colar", "sim_cot_codi"} <= counted.keys() < available().keys()
    for method in counted.values():
        sizes = [size.thoughts for size in sweep.sizes_of(method.thoughts_option) if size.thoughts]
        made = [method.Options(**sweep.set_path({}, str(method.thoughts_option), size)) for size in sizes]
        assert len({options.model_dump_json() for options in made}) == len(sweep.AXES["thoughts"])
