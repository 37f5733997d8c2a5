"""The analyse stage and its commands, on real runs whose weights are only initialised."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure as Canvas

from benchmarks.analysis import task
from benchmarks.analysis.dimensions import digits_of
from benchmarks.analysis.draws import references
from benchmarks.analysis.interventions import changes, clique_effects, marked_changes, parse_dims
from benchmarks.analysis.records import Analysis, analysed, read_analysis
from benchmarks.analysis.responses import TrainedModel
from benchmarks.checkpoints import save_weights
from benchmarks.data import decode, open_corpus, prepare
from benchmarks.engine.adapters import whole_weights
from benchmarks.figures.latents import DrawsFigure, EncodingFigure
from benchmarks.files import BrokenRecord, read_json, write_json
from benchmarks.models import build_method, trained_weights
from benchmarks.processes.locks import Locked, RunLock
from benchmarks.records.results import StudyRecords
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study, parse_study
from commands import output
from fabricate import train_record
from methods.base import Context, Example, Stage
from methods.errors import InputError
from methods.generation import Intervention
from small import MARCOS, fresh, small_study
from test_synthetic import small

ROWS = [
    {"id": "cot_sft", "method": "cot_sft"},
    {"id": "codi", "method": "codi"},
    {"id": "wo_r", "method": "marcos", "options": {**MARCOS, "randomness": False}},
    {"id": "marcos", "method": "marcos", "options": MARCOS},
]
RUN = "equation/marcos/s0"
SETTINGS = {"questions": 6, "samples": 4, "frequent_at_least": 5, "values": [0.0, 50.0]}


def study() -> Study:
    return small_study(ROWS, analysis=SETTINGS)


def with_weights(spec: RunSpec, paths: Paths) -> None:
    """Save untrained weights where those of a trained run would be."""
    own = save_weights(paths.weights, dict(whole_weights(build_method(spec, paths.data))))
    write_json(paths.run / "train.json", {"digest": spec.digest("train"), "weights_sha256": own})


@pytest.fixture(scope="module")
def results(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with prepared data, a study file, and the weights of all runs but one."""
    folder = fresh(small_data, tmp_path_factory.mktemp("results"))
    write_json(folder / "study.yaml", study().model_dump(mode="json"))
    for spec in study().runs.values():
        if spec.row != "wo_r":
            paths = Paths(folder, spec)
            paths.model.mkdir(parents=True)
            with_weights(spec, paths)
    return folder


@pytest.fixture(scope="module")
def analysis(results: Path) -> Analysis:
    (block, row, spec), *others = analysed(study())
    assert (block.id, spec.id, others) == ("equation", RUN, [])  # the first row with latents that can be set by hand
    assert task.analyse(spec, results)["weights_sha256"] == trained_weights(Paths(results, spec))
    return read_analysis(study(), block, row, spec, results)


def command(results: Path, *arguments: str, code: int = 0) -> str:
    verb, *rest = arguments
    return output(verb, results / "study.yaml", *rest, "--results", results, code=code)


def test_latents_are_those_of_written_steps(analysis: Analysis, results: Path) -> None:
    """The requested number of questions is spread over the validation rows."""
    samples, values = analysis.latents
    assert values.shape == (2 * 6 * 3, 32) == (len(samples), analysis.record.dimensions)  # tests, questions, steps
    assert analysis.record.source == "encoded" and set(samples["test"]) == {"validation"}
    model = TrainedModel.load(analysis.spec, results)
    corpus = open_corpus(model.data, "validation")
    ends = corpus.examples(np.array([0, len(corpus) - 1]))
    encoded = model.encode(ends)
    assert encoded is not None and [ends[0].id, ends[1].id] == [samples["id"].iloc[0], samples["id"].iloc[-1]]
    np.testing.assert_allclose(values[[*range(3), *range(-3, 0)]], encoded.reshape(6, 32), rtol=1e-4, atol=1e-5)
    assert list(samples["step"][:3]) == [1, 2, 3]


def test_latents_of_a_method_that_encodes_nothing_are_those_that_decoding_traces(
    analysis: Analysis, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainedModel, "encode", lambda *_: None)
    shutil.copytree(results / "small", tmp_path / "small")
    task.analyse(analysis.spec, tmp_path)
    drawn = read_analysis(study(), analysis.block, analysis.row, analysis.spec, tmp_path)
    samples, values = drawn.latents
    assert drawn.record.source == "drawn" and len(samples) == len(values) == 2 * 6 * 3
    model = TrainedModel.load(analysis.spec, results)
    test = model.test("embedded_in_domain", 6)
    trace = model.generate(test.questions, model.decoding, trace=True).trace["R"]
    np.testing.assert_allclose(trace.reshape(18, 32), values[:18], rtol=1e-4, atol=1e-5)
    assert list(samples["id"][:18:3]) == test.ids and list(samples["step"][:3]) == [1, 2, 3]


def test_every_setting_is_asked_of_the_same_questions(analysis: Analysis) -> None:
    frame = analysis.frame("interventions")
    by_setting = frame.groupby("setting", sort=False)["id"].apply(list)
    assert all(ids == by_setting[""] for ids in by_setting) and len(by_setting[""]) == 12
    clique = ",".join(map(str, analysis.record.clique))
    assert set(frame["dims"].dropna()) == {clique} and set(frame["value"].dropna()) == {0.0, 50.0}
    assert (frame["marked"] == frame["answer"].str.contains("####")).all()


def test_samples_are_those_of_all_seeds_and_of_the_mean(analysis: Analysis) -> None:
    frame = analysis.frame("samples")
    assert sorted(set(frame["seed"])) == [-1, 0, 1, 2, 3] and len(frame) == 5 * 12
    assert analysis.record.encoding is None  # the study has no Random Summation


def test_latents_of_training_are_the_posteriors(results: Path) -> None:
    model = TrainedModel.load(study().runs[RUN], results)
    corpus = open_corpus(model.data, "validation")
    examples = corpus.examples(range(32))
    context = Context(Stage("phase 1", 1.0), epoch=0, step=0, seed=0)
    with torch.no_grad():
        expected = model.method.features(model.method.collate(examples, context), context)["mu_hat"]
    latents = model.encode(examples)
    assert latents is not None
    np.testing.assert_allclose(latents, expected, rtol=1e-4, atol=1e-5)
    assert TrainedModel.load(study().runs["equation/cot_sft/s0"], results).encode(examples) is None


@pytest.fixture(scope="module")
def summation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """Return a study of Random Summation, and a folder with its data and untrained weights."""
    content = small("synthetic", ("rs",)).model_dump(mode="json") | {"analysis": {"questions": 3, "samples": 1}}
    rs, folder = parse_study(content, "the test's study"), tmp_path_factory.mktemp("summation")
    prepare(rs, rs.blocks[0], folder)
    spec = rs.runs["rs/marcos/s0"]
    paths = Paths(folder, spec)
    paths.model.mkdir(parents=True)
    with_weights(spec, paths)
    return rs, folder


def analysed_digits(
    summation: tuple[Study, Path],
    folder: Path,
    patch: pytest.MonkeyPatch,
    encode: Callable[[TrainedModel, list[Example]], np.ndarray],
) -> tuple[Study, Analysis]:
    """Analyse Random Summation with ``encode`` in place of the encoder; everything else is real."""
    rs, prepared = summation
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    spec = rs.runs["rs/marcos/s0"]
    patch.setattr(TrainedModel, "encode", encode)
    task.analyse(spec, folder)
    row = next(row for row in rs.rows if row.id == "marcos")
    return rs, read_analysis(rs, rs.blocks[0], row, spec, folder)


def test_digits_are_learned_from_validation_steps_and_steered(
    summation: tuple[Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for the encoder represents digit d by dimension 2 d."""

    def planted(model: TrainedModel, examples: list[Example]) -> np.ndarray:
        digits = digits_of(examples, references(model, examples), partial(decode, model.tokenizer))
        assert digits.shape == (len(examples), 2)
        latents = np.zeros((len(examples), 3, 64), np.float32)
        np.put_along_axis(latents[:, :2], digits[..., None] % 8 * 2, 0.7, axis=2)
        return latents

    _, analysis = analysed_digits(summation, tmp_path, monkeypatch, planted)
    encoded, steering = analysis.record.encoding, analysis.frame("steering")
    assert encoded is not None and encoded.test == "rs_n2_k3"
    owned = [digit for digit, dim in enumerate(encoded.dims) if dim is not None]
    assert owned and all(encoded.dims[digit] == 2 * (digit % 8) for digit in owned)
    own, code = (steering.loc[steering["by"] == by] for by in ("dimension", "code"))
    assert len(own) == 2 * len(owned) * 3 and sorted(set(own["digit"])) == owned
    assert len(code) == 2 * 10 * 3 and set(code["digit"]) == {*range(10)}
    assert max(analysis.frame("encoding")["mean"].dropna()) == pytest.approx(0.7)
    assert encoded.digit_dimensions == [encoded.dims[digit] for digit in owned]
    assert encoded.explained["digit"] == pytest.approx([1.0, 1.0])
    assert encoded.explained["level"][1] < 0.5  # type: ignore[operator]
    explained = analysis.frame("explained").set_index(["step", "cause"])["share"].to_dict()
    assert explained[1, "draw"] == pytest.approx(1.0) and explained[1, "question"] < 0.2
    assert set(analysis.frame("transplanted")["step"]) == {1, 2}  # the answer draws nothing
    assert set(analysis.frame("reread")["step"]) <= {1, 2}


@pytest.mark.parametrize("last", [0.0, 0.7])
def test_digits_without_a_dimension_are_none_of_ten(
    summation: tuple[Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: float
) -> None:
    """Such digits are recorded, and the figure is drawn without the steering test, even if R is never active."""

    def silent(model: TrainedModel, examples: list[Example]) -> np.ndarray:
        latents = np.zeros((len(examples), 3, 64), np.float32)
        latents[:, 2, :4] = last  # the last step draws no digit
        return latents

    rs, analysis = analysed_digits(summation, tmp_path, monkeypatch, silent)
    assert analysis.record.encoding is not None and analysis.record.encoding.digit_dimensions == []
    assert set(analysis.frame("encoding")["mean"].dropna()) == {0.0}
    assert "steering" not in analysis.record.files
    assert len(clique_effects(analysis)) == (4 if last else 1), "as it is, and three values of a clique if there is one"
    figure, canvas = EncodingFigure(StudyRecords(rs, tmp_path, {}, {})), Canvas()
    data = figure.data()
    figure.draw(canvas, data)
    assert set(data["part"]) == {"encoding"} and [axes.axison for axes in canvas.axes[:2]] == [True, False]
    text = " ".join(" ".join(figure.caption(data)).split())
    assert "0 of 10 digits have a dimension of their own" in text and "no digit can be set" in text
    readings = DrawsFigure(StudyRecords(rs, tmp_path, {}, {}))
    readings.draw(Canvas(), numbers := readings.data())
    assert set(numbers["part"]) == {"reading"}, "nothing explains an R that does not vary"
    assert "Variance of R: none." in " ".join(" ".join(readings.caption(numbers)).split())


def test_a_method_that_groups_steps_has_no_digit_to_itself(
    summation: tuple[Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grouped(model: TrainedModel, examples: list[Example]) -> np.ndarray:
        return np.zeros((len(examples), 2, 64), np.float32)  # both steps, and the answer

    _, analysis = analysed_digits(summation, tmp_path, monkeypatch, grouped)
    assert analysis.record.encoding is None
    assert set(analysis.record.files) == {"latents", "interventions", "samples"}


def test_other_settings_ask_for_another_analysis(analysis: Analysis, results: Path) -> None:
    other = small_study(ROWS, analysis=SETTINGS | {"samples": 5}).runs[RUN]
    with pytest.raises(BrokenRecord, match=f"another specification: run `marcos-bench analyse small {RUN} "):
        read_analysis(study(), analysis.block, analysis.row, other, results)
    for name in ("train", "evaluate", "time"):
        assert other.digest(name) == analysis.spec.digest(name)  # type: ignore[arg-type]


def test_an_analysis_of_weights_that_were_trained_again_is_refused(analysis: Analysis, tmp_path: Path) -> None:
    spec, own = analysis.spec, analysis.record.weights_sha256
    paths, read = Paths(tmp_path, spec), partial(read_analysis, study(), analysis.block, analysis.row, spec, tmp_path)
    record = read_json(analysis.folder / "analysis.json")
    write_json(Paths(tmp_path, spec).analysis, record)
    assert own and read().record.weights_sha256 == own, "results that were kept without their training's record"
    write_json(paths.record("train"), train_record(spec) | {"weights_sha256": own})
    assert read().record.weights_sha256 == own
    write_json(paths.record("train"), train_record(spec) | {"weights_sha256": "of another training"})
    with pytest.raises(
        BrokenRecord, match=rf"analysis\.json was made from other weights: run `marcos-bench analyse small {RUN} "
    ):
        read()
    del record["weights_sha256"]  # as in older records
    write_json(Paths(tmp_path, spec).analysis, record)
    assert read().record.weights_sha256 is None


def test_an_analysis_that_cannot_be_used_is_refused(analysis: Analysis, tmp_path: Path) -> None:
    read = partial(read_analysis, study(), analysis.block, analysis.row, analysis.spec, tmp_path)
    with pytest.raises(BrokenRecord, match=f"run `marcos-bench analyse small {RUN} --results {tmp_path}`"):
        read()
    path = Paths(tmp_path, analysis.spec).analysis
    write_json(path, read_json(analysis.folder / "analysis.json"))
    assert read().spec.id == RUN
    path.write_text("cut", encoding="utf-8")
    with pytest.raises(BrokenRecord, match=r"analysis\.json, line 1: broken JSON"):
        read()


def test_a_run_is_analysed_while_it_is_answered_with_and_timed(results: Path, tmp_path: Path) -> None:
    """A scheduler may start all three at once; only the same work is refused."""
    spec = study().runs[RUN]
    paths = Paths(fresh(results, tmp_path), spec)
    paths.model.mkdir(parents=True)
    with_weights(spec, paths)
    with RunLock(paths.run), RunLock(paths.answers):
        assert task.analyse(spec, tmp_path)["run"] == RUN
    with RunLock(paths.run / "analysis"), pytest.raises(Locked):
        task.analyse(spec, tmp_path)


def test_only_runs_with_such_latents_are_analysed(results: Path) -> None:
    for row in ("cot_sft", "wo_r"):
        with pytest.raises(InputError, match=f"equation/{row}/s0 has no latents"):
            task.analyse(study().runs[f"equation/{row}/s0"], results)


def test_dimensions_set_by_hand_show_outputs_before_and_after(results: Path) -> None:
    def by_hand(run: str, dims: str, *more: str, code: int = 2) -> str:
        return command(results, "explain", "--run", run, "--set-dims", dims, *more, code=code)

    text = by_hand(RUN, "3,7", "--value", "50", "--count", "4", "--step", "2", code=0)
    assert "of 4 outputs change" in text and "3, 7 = 50" in text and "as it is" in text
    assert "has no latents that can be set" in by_hand("equation/cot_sft/s0", "3", "--value", "1")
    assert "no dimensions [99]" in by_hand(RUN, "99", "--value", "1")
    assert "its test sets are: embedded_in_domain" in by_hand(RUN, "1", "--value", "1", "--test", "gsm8k")
    assert "--set-dims needs one run, as in `--run equation/marcos/s0`, and a `--value`" in by_hand(RUN, "1")
    assert "--question does not go with --set-dims" in by_hand(RUN, "1", "--value", "1", "--question", "2")
    assert "--value goes with --set-dims" in command(results, "explain", "--question", "2", "--value", "1", code=2)


def test_dimensions_are_numbers() -> None:
    assert parse_dims("3, 7") == (3, 7)
    with pytest.raises(InputError, match="latents cannot be set to nan: give a finite value"):
        Intervention((3,), math.nan)
    with pytest.raises(InputError, match="'3;7' names no dimensions"):
        parse_dims("3;7")


def test_what_differs_is_coloured() -> None:
    before, after = marked_changes("buys 4 pens\n#### 7", "buys 40 pens\n#### 7")
    assert [str(before)[span.start : span.end] for span in before.spans] == ["4"]
    assert [str(after)[span.start : span.end] for span in after.spans] == ["40"]


def test_outputs_that_stay_are_not_listed(analysis: Analysis) -> None:
    frame = analysis.frame("interventions")
    plain = frame.loc[frame["setting"] == ""]
    both = np.concatenate([plain.index, plain.index])
    twice = frame.loc[both].reset_index(drop=True)
    twice.loc[len(plain) :, "setting"] = "1 = 0"
    shown = changes(twice, dict.fromkeys(twice["id"], "?"), show=5)
    assert str(shown) == f"None of {len(twice) // 2} outputs changes."
