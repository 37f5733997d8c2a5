"""The figure of sweeps, from fabricated records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.accuracy import StepsFigure, SweepsFigure
from benchmarks.figures.base import NothingToDraw
from benchmarks.figures.render import render
from benchmarks.records import results
from benchmarks.studies.specs import Figure
from benchmarks.studies.study import Study
from fabricate import collected, let_r_die, study

BASE = {"deep": 4, "shallow": 8, "tau": 1}


def row(id: str, **options: Any) -> dict[str, Any]:
    return {"id": id, "method": "marcos", "title": id, "options": BASE | options}


ROWS = [
    row("marcos"),
    row("deep_0", deep=0),
    row("deep_8", deep=8),
    row("shallow_16", shallow=16),
    row("tau_2", tau=2),
    row("both", deep=8, tau=2),
    row("causal", attention="causal"),
    row("wo_r", randomness=False),
    {"id": "cot", "method": "cot_sft"},
]
ONE = [{"id": "equation", "title": "Equation", "data": {"train": "corpus"}}]


def made(**changes: Any) -> Study:
    tests = {"tests": ["alpha", "beta", "gamma"], "decodings": {"default": {"seeds": 2}}}
    return study(**{"rows": ROWS, "evaluation": tests, "timing": None} | changes)


def drawing(made: Study, folder: Path) -> SweepsFigure:
    collected(made, folder, {})
    return SweepsFigure(results.load_collected(made, folder))


def test_a_point_is_a_row_that_differs_in_one_number(tmp_path: Path) -> None:
    data = drawing(made(blocks=ONE), tmp_path).data()
    found = {option: group["value"].unique().tolist() for option, group in data.groupby("option")}
    assert found == {"deep": [0, 4, 8], "shallow": [8, 16], "tau": [1, 2]}
    assert set(data.loc[data["default"], "row"]) == {"marcos"}
    assert not {"both", "causal", "wo_r", "cot"} & set(data["row"])
    assert all(line["low"] <= line["accuracy"] <= line["high"] for line in data.to_dict("records"))


def test_a_row_that_is_trained_otherwise_is_no_point(tmp_path: Path) -> None:
    rows = [
        *ROWS[:2],
        row("longer", deep=8) | {"training": {"epochs": 2}},
        row("llama", deep=16) | {"backbone": {"name": "llama-tiny"}},
        row("spelt_out", deep=2) | {"training": {"epochs": 1}, "backbone": {"name": "qwen2-tiny"}},
    ]
    data = drawing(made(blocks=ONE, rows=rows), tmp_path).data()
    assert data["row"].unique().tolist() == ["deep_0", "spelt_out", "marcos"]


def test_points_are_at_the_values_that_were_trained(tmp_path: Path) -> None:
    """A block's options come before a row's, so that these rows differ in one number there and in two elsewhere."""
    blocks = [*ONE, ONE[0] | {"id": "text", "options": {"marcos": {"deep": 6}}}]
    data = drawing(made(blocks=blocks, rows=[ROWS[0], row("both", deep=8, tau=2)]), tmp_path).data()
    assert set(data["block"]) == {"text"} and set(data["option"]) == {"tau"}
    assert data.groupby("row")["value"].unique().to_dict() == {"marcos": [1], "both": [2]}


@pytest.mark.parametrize("blocks", [ONE, [*ONE, {"id": "text", "title": "Text", "data": {"train": "corpus"}}]])
def test_six_panels_of_two_rows(tmp_path: Path, blocks: list[dict[str, Any]]) -> None:
    """There is one row per block. With a single block, one row has the first test set and the other the rest."""
    figure = drawing(made(blocks=blocks), tmp_path)
    canvas = Canvas(layout="constrained")
    figure.draw(canvas, figure.data())
    assert len(canvas.axes) == 6
    lines = [len(axes.containers) for axes in canvas.axes]
    assert lines == ([1, 1, 1, 2, 2, 2] if len(blocks) == 1 else [3] * 6)
    assert [axes.get_xlabel() for axes in canvas.axes[3:]] == ["Deep neurons T", "Shallow neurons S", "Length of R, τ"]
    assert [tick.get_text() for tick in canvas.axes[3].get_xticklabels()] == ["0", "4", "8"]


def test_panels_of_a_column_share_an_axis(tmp_path: Path) -> None:
    ours = made(blocks=[*ONE, ONE[0] | {"id": "text", "title": "Text"}])
    drawing(ours, tmp_path)
    (tmp_path / "fake/runs/equation/deep_0/s0/evaluate.json").unlink()
    results.collect(ours, tmp_path)
    figure, canvas = SweepsFigure(results.load_collected(ours, tmp_path)), Canvas(layout="constrained")
    figure.draw(canvas, figure.data())
    upper, lower = (canvas.axes[at].containers[0][0].get_xdata() for at in (0, 3))
    assert upper.tolist() == [1, 2] and lower.tolist() == [0, 1, 2]
    assert [tick.get_text() for tick in canvas.axes[3].get_xticklabels()] == ["0", "4", "8"]


def test_files_and_caption(tmp_path: Path) -> None:
    ours = made(blocks=ONE)
    drawing(ours, tmp_path)
    (tmp_path / "fake/runs/equation/tau_2/s0/evaluate.json").unlink()
    results.collect(ours, tmp_path)
    paths = {path.suffix: path for path in render(ours, tmp_path, Figure.sweeps)}
    assert paths[".png"].read_bytes().startswith(b"\x89PNG") and paths[".pdf"].read_bytes().startswith(b"%PDF")
    assert len(pd.read_csv(paths[".csv"])) == 18
    assert "Not drawn, as there is no accuracy: tau_2." in paths[".md"].read_text(encoding="utf-8")
    assert "Hollow" not in paths[".md"].read_text(encoding="utf-8")


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_bars_cover_other_trainings_where_there_are_several(tmp_path: Path, seeds: list[int]) -> None:
    ours = made(blocks=ONE, seeds=seeds)
    drawing(ours, tmp_path)
    several = len(seeds) > 1
    for kind in (SweepsFigure, StepsFigure):
        figure = kind(results.load_collected(ours, tmp_path))
        text = " ".join(" ".join(figure.caption(figure.data())).split())
        assert ("95 % interval over questions and trainings." in text) == several
        assert ("they do not cover" in text) == (kind is SweepsFigure and not several)


def test_a_point_whose_r_is_dead_is_hollow(tmp_path: Path) -> None:
    ours = made(blocks=ONE)
    drawing(ours, tmp_path)
    let_r_die(tmp_path / "fake/runs/equation/shallow_16/s0")
    results.collect(ours, tmp_path)
    figure, canvas = SweepsFigure(results.load_collected(ours, tmp_path)), Canvas(layout="constrained")
    data = figure.data()
    assert set(data.loc[data["dead"], "row"]) == {"shallow_16"}
    assert data["dead"].to_numpy().sum() == 3  # one per test set
    figure.draw(canvas, data)
    hollow = [line for axes in canvas.axes for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [count for line in hollow if (count := np.size(line.get_xdata()))] == [1, 1, 1]
    assert any("without R: shallow_16 (Equation)." in " ".join(text.split()) for text in figure.caption(data))


def test_a_study_without_sweeps_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NothingToDraw, match=r"differs from its first row, 'marcos', in one number"):
        drawing(made(rows=[ROWS[0], ROWS[-1]]), tmp_path).data()
