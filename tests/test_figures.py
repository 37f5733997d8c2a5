"""Figures drawn from fabricated records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure as Canvas

from benchmarks.analysis.records import analysed
from benchmarks.figures.accuracy import ParetoFigure
from benchmarks.figures.base import GREY, SETTINGS, FigureBuilder, NothingToDraw, log_axis
from benchmarks.figures.copied import CopiedFigure
from benchmarks.figures.latents import CalibrationFigure, EncodingFigure, InterventionFigure, chosen
from benchmarks.figures.render import FIGURE_BUILDERS, render
from benchmarks.files import BrokenRecord, read_json, write_json, write_parquet
from benchmarks.records import results
from benchmarks.records.results import StudyRecords
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import Figure
from benchmarks.studies.study import Study
from fabricate import collected, fabricate, fabricate_analysis, study, update_record
from methods.registry import available

OTHERS = (Figure.copied, Figure.curves, Figure.latents_curve, Figure.sweeps)  # each needs a study of its own
ROWS = [{"id": "cot", "method": "cot_sft"}, {"id": "oracle", "method": "cot_sft", "control": True}]


def with_analyses(made: Study, folder: Path) -> list[Path]:
    """Fabricate a study with the analyses that figures need. Return the records of the analyses."""
    fabricate(made, folder)
    specs = [spec for _, _, spec in analysed(made, every_row=True)]
    for spec in specs:
        fabricate_analysis(spec, folder)
    return [Paths(folder, spec).analysis for spec in specs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the records of a study with an analysis in each block, and one run that was not timed."""
    made, path = study(), tmp_path_factory.mktemp("results")
    with_analyses(made, path)
    (path / "fake/runs/equation/cot/s0/time.json").unlink()
    results.collect(made, path)
    return path


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[Figure, dict[str, Path]]:
    """Render each figure once."""
    rendered = {figure: render(study(), folder, figure) for figure in FIGURE_BUILDERS if figure not in OTHERS}
    return {figure: {path.suffix[1:]: path for path in paths} for figure, paths in rendered.items()}


def test_every_figure_is_written_in_four_files(files: dict[Figure, dict[str, Path]]) -> None:
    assert set(FIGURE_BUILDERS) == set(Figure) == {*files, *OTHERS}
    for figure, paths in files.items():
        assert {path.name for path in paths.values()} == {f"{figure}.{end}" for end in ("png", "pdf", "csv", "md")}
        assert paths["png"].read_bytes().startswith(b"\x89PNG") and paths["pdf"].read_bytes().startswith(b"%PDF")
        assert len(pd.read_csv(paths["csv"]))
        text = paths["md"].read_text(encoding="utf-8")
        assert text.startswith("# A fabricated study") and f"]({figure}.png)" in text
        assert "## How it was made" in text and "  " not in text.split("## How")[0]


def test_same_records_give_the_same_bytes(
    folder: Path, files: dict[Figure, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a user's matplotlibrc sets."""
    monkeypatch.setitem(rcParams, "text.usetex", True)
    monkeypatch.setitem(rcParams, "axes.linewidth", 5.0)
    before = {end: path.read_bytes() for end, path in files[Figure.steps].items()}
    assert {path.suffix[1:]: path.read_bytes() for path in render(study(), folder, Figure.steps)} == before


def test_no_row_beats_one_on_the_front(files: dict[Figure, dict[str, Path]]) -> None:
    frame = pd.read_csv(files[Figure.pareto]["csv"])
    for _, panel in frame.loc[~frame["control"]].groupby(["cost", "test"]):
        for line in panel.to_dict("records"):
            cheaper = panel.loc[(panel["value"] <= line["value"]) & (panel["accuracy"] >= line["accuracy"])]
            better = cheaper.loc[(cheaper["value"] < line["value"]) | (cheaper["accuracy"] > line["accuracy"])]
            assert not (line["front"] and len(better))
        assert any(panel["front"])
    assert not any(frame.loc[frame["control"], "front"])


@pytest.mark.parametrize("costs", [(5.8e9, 1.01e10), (1.2e9, 1.9e9), (3e11, 2e13)])
def test_a_logarithmic_axis_has_several_ticks(costs: tuple[float, float]) -> None:
    """This includes costs within a single decade."""
    axes = Canvas(layout="constrained").subplots()
    axes.plot(costs, [0, 1])
    log_axis(axes, "cost")
    low, high = axes.get_xlim()
    labels = [axes.xaxis.get_major_formatter()(tick) for tick in axes.get_xticks() if low <= tick <= high]
    assert len(labels) >= 3 and not any("e+" in label or "e0" in label for label in labels)


def test_what_cannot_be_drawn_is_named(files: dict[Figure, dict[str, Path]]) -> None:
    assert "Not drawn, as an accuracy or a cost is missing: CoT-SFT (equation)" in files[Figure.pareto]["md"].read_text(
        encoding="utf-8"
    )


def test_curves_of_accuracy_are_those_of_the_logs(tmp_path: Path) -> None:
    asking = study(training={"epochs": 1, "validation_questions": 100}, seeds=[0, 1])
    fabricate(asking, tmp_path)
    marks = [(0.5, 0.25), (1.0, 0.75)]
    for seed in asking.seeds:
        log = tmp_path / f"fake/runs/text/cot/s{seed}/log.jsonl"
        lines = [{"kind": "validation", "stage": "chain", "step": 1, "epoch": e, "accuracy": a} for e, a in marks]
        log.write_text(
            log.read_text(encoding="utf-8") + "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
        )
    results.collect(asking, tmp_path)
    paths = {path.suffix[1:]: path for path in render(asking, tmp_path, Figure.curves)}
    frame, caption = pd.read_csv(paths["csv"]), paths["md"].read_text(encoding="utf-8")
    assert frame[["block", "row", "training_seed", "stage"]].drop_duplicates().to_numpy().tolist() == [
        ["text", "cot", 0, "chain"],
        ["text", "cot", 1, "chain"],
    ]
    assert [*zip(frame["epoch"], frame["accuracy"], strict=True)] == [*marks, *marks]
    assert "Each mark stands for 100 questions or more" in caption and "by 10 points (95 %)" in caption
    assert "Not drawn, as they answered nothing while they trained: MarCos (text), MarCos w/o R (text)" in caption
    log.write_text("{", encoding="utf-8")
    with pytest.raises(BrokenRecord, match=r"log.jsonl, line 1: broken JSON .*train this run again"):
        render(asking, tmp_path, Figure.curves)


def test_without_questions_there_are_no_curves(folder: Path) -> None:
    with pytest.raises(NothingToDraw, match="no run of fake answered questions while it trained: set `validation_"):
        render(study(), folder, Figure.curves)


def test_accuracy_by_steps_covers_all_questions(files: dict[Figure, dict[str, Path]]) -> None:
    frame = pd.read_csv(files[Figure.steps]["csv"])
    assert set(frame["steps"]) == {2} and set(frame["n"]) == {200}
    oracle = frame[frame["row"] == "oracle"]
    assert len(oracle) == 4 and set(oracle["accuracy"]) == {1}
    assert all(frame["low"] <= frame["accuracy"]) and all(frame["accuracy"] <= frame["high"])


def test_the_overview_has_the_numbers_of_the_figures_that_it_sums_up(files: dict[Figure, dict[str, Path]]) -> None:
    drawn, steps, costs = (pd.read_csv(files[name]["csv"]) for name in (Figure.overview, Figure.steps, Figure.pareto))
    assert {*drawn["test"]} == {"alpha"} and {*drawn["block"]} == {"text", "equation"}
    keys = ["block", "row", "accuracy", "low", "high"]
    for panel, whole in (
        ("steps", steps),
        ("time", costs.loc[costs["cost"] == "test_seconds_median"]),
    ):
        expected = whole.loc[whole["test"] == "alpha", keys].sort_values(keys)
        found = drawn.loc[drawn["panel"] == panel, keys].sort_values(keys)
        assert len(found) and found.to_numpy().tolist() == expected.to_numpy().tolist()


def test_accuracy_by_number_of_latents(tmp_path: Path) -> None:
    rows = [
        {"id": "codi", "method": "codi", "options": {"num_latents": 3}},
        {"id": "direct", "method": "cot_sft", "title": "Answer only", "options": {"steps": False}, "control": True},
        {"id": "cot", "method": "cot_sft"},
    ]
    decodings: dict[str, dict[str, Any]] = {"default": {}, "sampled": {"tokens": "sample", "seeds": 1}}
    decodings |= {name: {"options": {"num_latents": n}, "only": ["codi"]} for n, name in ((1, "one"), (8, "eight"))}
    decodings["drawn"] = decodings["one"] | {"tokens": "sample", "seeds": 1}
    made = study(rows=rows, evaluation={"tests": ["alpha", "beta"], "decodings": decodings}, seeds=[0, 1])
    collected(made, tmp_path, {"codi": (0.9, 0.5), "direct": (0.3, 0.3)})
    paths = {path.suffix[1:]: path for path in render(made, tmp_path, Figure.latents_curve)}
    frame, caption = pd.read_csv(paths["csv"]), paths["md"].read_text(encoding="utf-8")
    curve = frame.loc[(frame["block"] == "text") & (frame["test"] == "alpha") & (frame["row"] == "codi")]
    assert [*zip(curve["decoding"], curve["latents"], strict=True)] == [("one", 1), ("default", 3), ("eight", 8)]
    assert curve["accuracy"].between(0.8, 1).all() and curve["varied"].all()
    assert {*frame.loc[frame["row"] == "direct", "decoding"]} == {"default"} and "cot" not in {*frame["row"]}
    assert "one number of latents, or none: CoT-SFT" in caption


def test_a_study_with_one_number_of_latents_has_no_curve(folder: Path) -> None:
    with pytest.raises(NothingToDraw, match="no row of fake answers with several numbers of latents: add decodings"):
        render(study(), folder, Figure.latents_curve)


def test_a_method_has_one_colour_in_all_studies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The colour depends neither on the rows above nor on other installed packages."""
    studies = study(), study(rows=[{"id": "mine", "method": "marcos"}, *ROWS])
    first, other = (ParetoFigure(StudyRecords(made, folder, {}, {})) for made in studies)
    cot, plain, ablated, oracle = map(first.look, first.study.rows)
    assert [plain, cot, oracle] == list(map(other.look, other.study.rows))
    assert len({(one["color"], one["marker"]) for one in (cot, plain, ablated, oracle)}) == 4
    assert ablated["marker"] != plain["marker"] and oracle["color"] == GREY
    foreign = type("Foreign", (), {"__module__": "another_package"})
    monkeypatch.setattr("benchmarks.figures.base.available", lambda: {"aaa": foreign, **available()})
    assert first.look(first.study.rows[1]) == plain


def test_effects_of_the_clique(files: dict[Figure, dict[str, Path]]) -> None:
    frame = pd.read_csv(files[Figure.intervention]["csv"])
    effect = frame[(frame["part"] == "effect") & (frame["block"] == "text")]
    values = effect.pivot(index="setting", columns="measure", values="value")
    assert list(dict.fromkeys(effect["setting"])) == ["as it is", "0", "0.1", "0.5"]
    assert values.loc["0.5", "longer"] == pytest.approx(1 / 8) and values.loc["0.5", "marked"] == 0
    text = files[Figure.intervention]["md"].read_text(encoding="utf-8")
    assert "clique 4, 9, 17. At 0.5, outputs are 12.5 % longer and 0.0 % of answers have the marker" in text


def test_a_dead_r_has_no_clique(tmp_path: Path) -> None:
    plain = study()
    paths = with_analyses(plain, tmp_path)
    results.collect(plain, tmp_path)
    dead = {"active": 0, "frequent": [], "clique": []}
    update_record(paths[0], **dead)
    drawing = InterventionFigure(results.load_collected(plain, tmp_path))
    data = drawing.data()
    assert set(data["block"]) == {"equation"}
    drawing.draw(Canvas(layout="constrained"), data)
    assert any(text.endswith("text: no dimension of R is ever active.") for text in drawing.caption(data))
    for path in paths:
        update_record(path, **dead)
    with pytest.raises(NothingToDraw, match="no dimension of R is ever active"):
        InterventionFigure(results.load_collected(plain, tmp_path)).data()


def test_one_dimension_has_no_correlations(tmp_path: Path) -> None:
    """The panels say so. Otherwise, they would show a red square and a single node."""
    plain = study()
    path, _ = with_analyses(plain, tmp_path)
    results.collect(plain, tmp_path)
    update_record(path, frequent=[0], clique=[0])
    drawing, canvas = InterventionFigure(results.load_collected(plain, tmp_path)), Canvas(layout="constrained")
    drawing.draw(canvas, drawing.data())
    said = ["only dimension 0\nis often active" in [text.get_text() for text in axes.texts] for axes in canvas.axes]
    assert said == [True, False, True, *[False] * (len(said) - 3)]
    assert not any(axes.images for axes in canvas.axes[:3]) and canvas.axes[3].images
    assert {axes.get_ylabel() for axes in canvas.axes} >= {"Tokens per question", "Answers (%)"}
    graph = canvas.axes[5]
    places = np.array([text.get_position() for text in graph.texts])
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)[np.triu_indices(len(places), 1)]
    assert len(places) == 5 and apart.min() > 0.5  # on a circle of radius 1


def test_cases_are_shown_where_a_dimension_is_active() -> None:
    """These are the first active step and its first questions with an active dimension: others would be empty."""
    active = np.array([[False, False], [False, True], [False, False], [True, True], [False, False], [True, False]])
    step, cases = chosen(np.array([1, 3, 2, 2, 1, 2]), active)
    assert step == 2 and cases.tolist() == [3, 5]
    step, cases = chosen(np.array([1, 2, 1, 1, 1]), np.zeros((5, 2), dtype=bool))
    assert step == 1 and cases.tolist() == [0, 2, 3]


def test_samples_against_the_mean(files: dict[Figure, dict[str, Path]]) -> None:
    frame = pd.read_csv(files[Figure.calibration]["csv"])
    scores = frame[(frame["part"] == "accuracy") & (frame["test"] == "alpha") & (frame["block"] == "text")]
    assert dict(zip(scores["protocol"], scores["accuracy"], strict=True)) == pytest.approx(
        {"mean": 1.0, "1 sample": 0.6, "majority of 5": 1.0, "majority of 10": 1.0}
    )
    bins = frame[frame["part"] == "reliability"]
    assert bins["share"].tolist() == pytest.approx([0.6] * len(bins)) and set(bins["accuracy"]) == {1}
    assert "Alpha & Co 100% 40.0" in files[Figure.calibration]["md"].read_text(encoding="utf-8")


def test_readings_of_r_are_shares_of_steps(files: dict[Figure, dict[str, Path]]) -> None:
    numbers = pd.read_csv(files[Figure.draws]["csv"])
    reading = numbers.loc[numbers["part"] == "reading"].groupby(["name", "step"])[["share", "n"]].first()
    assert reading.loc[("donor", 1)].tolist() == [0.5, 2] and reading.loc[("own", 2)].tolist() == [1.0, 2]
    assert reading.loc[("two_ways", 1)].tolist() == [0.25, 4]  # of the four that are spoken again
    text = " ".join(files[Figure.draws]["md"].read_text(encoding="utf-8").split())
    assert "the draw 75.0 % (step 1), 50.0 % (step 2); the question 25.0 % (step 1)" in text
    assert "same text 80.0 % (step 1); read in two ways 25.0 % (step 1)" in text


def test_steering_accuracy(files: dict[Figure, dict[str, Path]]) -> None:
    text = files[Figure.encoding]["md"].read_text(encoding="utf-8")
    assert "10 of 10 digits have a dimension of their own" in text
    assert "Steering accuracy: 95.0 %, steered over 10 of 10 digits" in " ".join(text.split())
    assert "Steering accuracy by whole codes: 90.0 %, steered over 10 of 10 digits" in " ".join(text.split())


@pytest.mark.parametrize("steered", [True, False])
def test_digits_without_a_dimension_are_hatched(tmp_path: Path, steered: bool) -> None:
    """If no digit has a dimension, nothing was steered, and the right panel is empty."""
    made = study()
    for path in with_analyses(made, tmp_path):
        record = read_json(path)
        record["encoding"]["dims"] = [*range(3, 11), None, None] if steered else [None] * 10
        record["encoding"]["explained"] = {"digit": [0.46, 0.17], "level": [0.94, None]}
        if not steered:
            del record["files"]["steering"]
        write_json(path, record)
    results.collect(made, tmp_path)
    drawing, canvas = EncodingFigure(results.load_collected(made, tmp_path)), Canvas(layout="constrained")
    data = drawing.data()
    drawing.draw(canvas, data)
    hatched = [patch for axes in canvas.axes for patch in axes.patches if patch.get_hatch()]
    assert len(hatched) == (2 * 2 if steered else 0)  # two digits in each block's panel
    assert sum(axes.axison for axes in canvas.axes) == (6 if steered else 4)  # colour bars included
    text = " ".join(" ".join(drawing.caption(data)).split())
    assert f"{8 if steered else 0} of 10 digits have a dimension of their own" in text
    assert ("no digit can be set by hand" in text) == (not steered)
    assert "drawn digit explains 46 and 17 % (by step), and the level, the rounded mean" in text and ", 94 %." in text


def test_a_run_of_another_study_is_named_as_in_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = study()
    monkeypatch.setattr("benchmarks.studies.study.load_study", lambda name: theirs)
    ours = study(name="other", shares="fake", rows=[{"id": "mine", "method": "marcos", "title": "Mine"}])
    for _, _, spec in analysed(ours):
        assert (spec.study, spec.row) == ("fake", "marcos")
        fabricate_analysis(spec, tmp_path)
    drawing = CalibrationFigure(StudyRecords(ours, tmp_path, {}, {}))
    titles = [drawing.block_title(analysis) for analysis in drawing.analyses]
    assert titles == ["Mine, training data: text", "Mine, training data: equation"]


def test_copied_steps_are_counted_in_bins(tmp_path: Path) -> None:
    """Of fifteen steps and of three, all answers but a tenth copy step 2. One row repeats one step all the time."""
    made = study(evaluation={"tests": ["copy_k16", "copy_k4", "gsm8k"], "decodings": {"default": {"seeds": 1}}})
    fabricate(made, tmp_path, {})
    for spec in made.runs.values():
        path = tmp_path / f"fake/runs/{spec.id}/predictions/default.parquet"
        frame = pd.read_parquet(path)
        draws = [["2"] if i % 10 else [None] for i in range(len(frame))]
        choices = [[15] if test == "copy_k16" else [3] for test in frame["test"]]
        said = {"text": "1 2\n" * 4 + "#### 1 2"} if spec.row == "marcos" else {}
        digest = write_parquet(path, frame.assign(draws=draws, choices=choices, **said))
        record = read_json(path.parents[1] / "evaluate.json")
        write_json(path.parents[1] / "evaluate.json", record | {"predictions": {"default": digest}})
    results.collect(made, tmp_path)
    _assert_labels_fit(CopiedFigure(results.load_collected(made, tmp_path)))
    paths = render(made, tmp_path, Figure.copied)
    frame = pd.read_csv(paths[2])
    assert set(frame["test"]) == {"copy_k16", "copy_k4"} and set(frame["n"]) == {200} and set(frame["copies"]) == {180}
    long = frame[(frame["test"] == "copy_k16") & (frame["row"] == "cot") & (frame["block"] == "text")]
    assert list(zip(long["first"], long["last"], long["share"], strict=True)) == [
        (1, 4, 1.0),
        (5, 8, 0.0),
        (9, 12, 0.0),
        (13, 15, 0.0),
    ]
    assert list(frame[frame["test"] == "copy_k4"]["share"][:3]) == [0.0, 1.0, 0.0]
    caption = paths[3].read_text(encoding="utf-8")
    assert "copy_k16, training data: text, MarCos: 180 of 200 (75.0 %)" in caption and "(0.0 %)" in caption


def _assert_labels_fit(drawing: FigureBuilder) -> None:
    """Assert that no axis label is cut off by the edge of the image."""
    with rc_context(SETTINGS):
        canvas = Canvas(layout="constrained")
        drawing.draw(canvas, drawing.data())
        canvas.draw_without_rendering()
    for axes in canvas.axes:
        for label in (axes.xaxis.label, axes.yaxis.label):
            box = label.get_window_extent()
            assert box.y0 >= 0 and box.y1 <= canvas.bbox.height and box.x0 >= 0, label.get_text()


def test_figures_of_latents_name_what_they_need(folder: Path, tmp_path: Path) -> None:
    needed = FIGURE_BUILDERS[Figure.dimensions].needs(study(), folder)
    assert needed == [folder / f"fake/runs/{block}/marcos/s0/analysis/analysis.json" for block in ("text", "equation")]
    assert not FIGURE_BUILDERS[Figure.pareto].needs(study(), folder)
    collected(study(), tmp_path)
    with pytest.raises(BrokenRecord, match=r"analysis\.json does not exist"):
        render(study(), tmp_path, Figure.dimensions)


def test_a_study_without_such_latents_says_so(tmp_path: Path) -> None:
    plain = study(rows=ROWS)
    collected(plain, tmp_path)
    with pytest.raises(NothingToDraw, match="no row of fake has latents that can be set by hand"):
        render(plain, tmp_path, Figure.calibration)


def test_a_changed_file_is_not_drawn(tmp_path: Path) -> None:
    made = study()
    path, _ = with_analyses(made, tmp_path)
    results.collect(made, tmp_path)
    path.with_name("samples.parquet").write_bytes(b"")
    with pytest.raises(BrokenRecord, match=r"samples\.parquet is not the file that was recorded \(.*\): run `analyse`"):
        render(made, tmp_path, Figure.calibration)
