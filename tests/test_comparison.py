"""Comparison of two runs or rows, from records and from MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import comparison
from benchmarks.archive import pack
from benchmarks.comparison import Comparison, Side, compare, render
from benchmarks.files import BrokenRecord, read_json, write_json, write_parquet
from benchmarks.records.statistics import correctness, paired_test
from benchmarks.scoring.numeric import Number
from benchmarks.studies.study import Study
from benchmarks.tracking import importer as tracking
from benchmarks.tracking.store import find_experiments, session
from commands import invoke
from fabricate import collected, fabricate, study
from methods.errors import InputError


@contextmanager
def known(*studies: Study) -> Iterator[pytest.MonkeyPatch]:
    """Have fabricated studies found by their names."""
    with pytest.MonkeyPatch.context() as patch:
        by_name = {made.name: made for made in studies}.__getitem__
        for module in ("benchmarks.comparison", "benchmarks.studies.study"):
            patch.setattr(f"{module}.load_study", by_name)
        yield patch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("compared")
    with known(study()):
        collected(study(), path)
        yield path


@pytest.fixture
def compared(folder: Path) -> Comparison:
    return compare("fake:equation/marcos/s0", "fake:equation/cot/s0", folder, None, "default")


def test_metrics_that_both_have(compared: Comparison) -> None:
    metrics = compared.metrics.set_index("metric")
    assert metrics.loc["accuracy/alpha", "a - b"] == pytest.approx(0.5, abs=0.1)
    assert metrics.loc["test_seconds/beta", "a - b"] == 0
    assert not any(name.startswith(("train/", "validation/")) for name in metrics.index)
    assert "all_steps_seconds/alpha" not in metrics.index  # only one of the two runs has it


def test_paired_tests(compared: Comparison) -> None:
    tests = compared.tests.set_index("test")
    assert list(tests.index) == ["alpha", "beta"] and set(tests["n"]) == {200}
    assert tests.loc["alpha", "p_holm"] < 0.001 < tests.loc["beta", "p_holm"]
    assert (tests["p_holm"] >= tests["p"]).tolist() == [True, True]


def test_differing_questions(compared: Comparison) -> None:
    questions = compared.questions
    apart = (questions["correct_a"] - questions["correct_b"]).abs()
    assert (apart > 0).tolist() == [True] * len(questions)
    alpha = questions.loc[questions["test"] == "alpha"]
    assert alpha["correct_a"].iloc[0] == 1 and alpha["correct_b"].iloc[0] == 0
    assert (alpha["gold"].iloc[0], alpha["text_a"].iloc[0], alpha["text_b"].iloc[0]) == ("7", "#### 7", "#### 3 by cot")


def test_rendering_is_limited_and_counts(compared: Comparison) -> None:
    text = render(compared, limit=3)
    assert text.count("by cot") <= 6 and "3 of them" in text
    count = len(compared.questions.loc[compared.questions["test"] == "alpha"])
    assert f"alpha: the two differ on {count} questions" in text
    assert "fake:equation/marcos/s0" in text and "p_holm" in text and "accuracy/beta" in text


def test_what_models_said_is_shown_as_it_is(compared: Comparison) -> None:
    questions = compared.questions.iloc[:2].assign(test="alpha", gold=["72", "2.50"], text_a=["1e3", "2.50"])
    text = render(replace(compared, questions=questions), limit=2)
    assert all(f" {said} " in text for said in ("72", "2.50", "1e3")) and "1000" not in text


@pytest.fixture(scope="module")
def tracked(folder: Path) -> dict[str, str]:
    """Return the ids of the runs in MLflow."""
    tracking.track(study(), folder)
    return read_json(folder / "fake" / "track.json")["runs"]


def test_runs_by_id_are_those_of_the_records(folder: Path, tracked: dict[str, str]) -> None:
    result = compare(tracked["text/cot/s0"], "fake:text/oracle/s0", folder, None, "default")
    recorded = compare("fake:text/cot/s0", "fake:text/oracle/s0", folder, None, "default")
    for name in ("metrics", "tests", "questions"):
        pd.testing.assert_frame_equal(getattr(result, name), getattr(recorded, name))
    assert result.a == f"fake:text/cot/s0 (MLflow {tracked['text/cot/s0']})"
    assert recorded.a == f"fake:text/cot/s0 ({folder}/fake/runs/text/cot/s0)"
    with pytest.raises(InputError, match="text/cot/s0 has no predictions of decoding 'mean_r'; it has"):
        compare(tracked["text/cot/s0"], tracked["text/marcos/s0"], folder, None, "mean_r")
    with pytest.raises(InputError, match="MLflow has no run '00000"):
        compare("0" * 32, "fake:text/cot/s0", folder, None, "default")


def test_answers_in_mlflow_that_an_older_scorer_judged_are_not_compared(
    folder: Path, tracked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Number, "version", "of tomorrow")
    with pytest.raises(InputError, match=r"cot/s0 was scored by another version .* \(alpha, beta\): run .*rescore"):
        compare(tracked["text/cot/s0"], tracked["text/oracle/s0"], folder, None, "default")


def test_folders_of_results_packed_or_not(folder: Path, tmp_path: Path, compared: Comparison) -> None:
    pack(folder / "fake", tmp_path / "fake")
    names = f"{folder}/fake:equation/marcos/s0", f"{tmp_path}/fake:equation/cot/s0"
    found = compare(*names, Path(), None, "default", "fake")
    pd.testing.assert_frame_equal(found.metrics, compared.metrics)
    pd.testing.assert_frame_equal(found.questions, compared.questions)
    assert found.b == f"fake:equation/cot/s0 ({tmp_path}/fake/runs/equation/cot/s0)"
    with pytest.raises(InputError, match=r"fake is not named like a study .* say with --study FILE whose results"):
        compare(*names, Path(), None, "default")
    elsewhere = names[0].replace("fake:", "runs:").replace(f"{folder}/", f"{folder}/fake/")
    with pytest.raises(InputError, match="runs does not hold the results of fake"):
        compare(elsewhere, names[1], Path(), None, "default", "fake")


def test_answers_to_different_questions_are_not_compared(folder: Path, tmp_path: Path) -> None:
    """The ids are the same: a file of questions may be replaced by another of its name."""
    shutil.copytree(folder / "fake", tmp_path / "fake")
    run = tmp_path / "fake/runs/equation/cot/s0"
    answers = pd.read_parquet(run / "predictions/default.parquet").assign(gold="8")
    digest = write_parquet(run / "predictions/default.parquet", answers)
    record = read_json(run / "evaluate.json")
    write_json(run / "evaluate.json", record | {"predictions": record["predictions"] | {"default": digest}})
    names = f"{folder}/fake:equation/marcos/s0", f"{tmp_path}/fake:equation/cot/s0"
    with pytest.raises(InputError, match=r"alpha: .* different questions, .* with the gold answers '7' and '8'"):
        compare(*names, Path(), None, "default", "fake")


def test_answers_that_an_older_scorer_judged_are_not_compared(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fake", tmp_path / "fake")
    path = tmp_path / "fake/runs/equation/cot/s0/evaluate.json"
    write_json(path, read_json(path) | {"scorers": {"alpha": {"name": "number", "version": "0"}}})
    with pytest.raises(InputError, match=r"scored by another version .* \(alpha\): run `marcos-bench rescore .*fake`"):
        compare("fake:equation/marcos/s0", "fake:equation/cot/s0", tmp_path, None, "default")


def test_test_set_and_decoding_on_the_command_line(folder: Path) -> None:
    runs = ("compare", "fake:text/marcos/s0", "fake:equation/marcos/s0", "--results", folder)
    shown = invoke(*runs, "--test", "beta", "--decoding", "mean_r").output
    assert "beta: " in shown and "alpha: " not in shown and "decoding: mean_r" in shown
    invoke(*runs, "--test", "gamma", code=2)


def test_a_run_against_itself_differs_nowhere(folder: Path) -> None:
    result = compare("fake:text/marcos/s0", "fake:text/marcos/s0", folder, None, "default")
    assert result.questions.empty and result.tests["p"].tolist() == [1.0, 1.0]
    text = render(result)
    assert "the two differ on" not in text
    assert "alpha: both answer the same questions right" in text


def test_numbers_are_shown_in_the_units_of_the_tables(compared: Comparison) -> None:
    lines = {line.split("  ")[0]: line.split()[-3:] for line in render(compared).splitlines() if line}
    accuracy = compared.metrics.set_index("metric").loc["accuracy/alpha"]
    assert [float(value) for value in lines["accuracy/alpha (%)"]] == pytest.approx([100 * x for x in accuracy])
    assert "parameters" in lines and "test_seconds/beta" in lines
    memory = compared.metrics.set_index("metric").loc["peak_memory/beta", "a"]
    assert float(lines["peak_memory/beta (MB)"][0]) == pytest.approx(memory / 1e6, rel=1e-5)
    assert "a - b (points)" in render(compared)


@pytest.mark.parametrize(
    ("a", "test", "message"),
    [
        ("text/cot/s0", None, "'text/cot/s0' is no run: give STUDY:BLOCK/ROW/sSEED, .*, or an MLflow run id"),
        ("nobody", None, "'nobody' is no run: give STUDY:BLOCK/ROW/sSEED, .*, or an MLflow run id"),
        ("fake:text/nobody/s0", None, "study fake has no run .*; its runs are: text/cot/s0, .*, equation/oracle/s0"),
        ("fake:text/cot/s0", "gamma", "not both runs were evaluated on gamma; they share: alpha, beta"),
    ],
)
def test_errors_say_what_to_do(folder: Path, a: str, test: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare(a, "fake:text/cot/s0", folder, test, "default")


def test_what_has_no_answers_names_the_command(tmp_path: Path) -> None:
    made = study()
    with known(made):
        with pytest.raises(BrokenRecord, match=r"no run of fake has a record in .*: run the study first, or name"):
            compare("fake:text/cot/s0", "fake:text/oracle/s0", tmp_path, None, "default")
        fabricate(made, tmp_path)
        run = tmp_path / "fake/runs/text/cot/s0"
        (run / "evaluate.json").unlink()
        message = (
            r"text/cot/s0 of study fake has no answers in .* \(no evaluate.json\): run `marcos-bench evaluate fake "
        )
        with pytest.raises(BrokenRecord, match=message):
            compare("fake:text/cot/s0", "fake:text/oracle/s0", tmp_path, None, "default")
        (run / "train.json").unlink()
        with pytest.raises(BrokenRecord, match=r"run `marcos-bench train fake text/cot/s0 .*`, then `evaluate`$"):
            compare("fake:text/oracle/s0", "fake:text/cot/s0", tmp_path, None, "default")


def test_runs_that_share_no_test_set_are_not_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Side("a", [{}], {"alpha": pd.DataFrame()}), Side("b", [{}], {"beta": pd.DataFrame()})])
    monkeypatch.setattr(comparison, "read_side", lambda *_: next(found))
    with pytest.raises(InputError, match=r"^the runs share no test set: name two"):
        compare("fake:text/cot/s0", "fake:text/oracle/s0", folder, None, "default")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return results of a study with three seeds, and of one whose last seed was trained in another way. Each takes its
    first training of MarCos from the study of one seed."""
    path, one = tmp_path_factory.mktemp("seeds"), study()
    several = [study(name=name, seeds=[0, 1, 2]) for name in ("seeds", "edited")]
    shared = one.runs["text/marcos/s0"]
    fabricate(one, path)
    with known(one, *several) as patch:
        for made in several:
            patch.setitem(made.__dict__, "sources", made.runs | {shared.id: shared})
            patch.setitem(made.__dict__, "_others", (one,))
            fabricate(made, path)
            if made.name == "edited":
                run = made.runs["text/marcos/s2"]
                training = run.training.model_copy(update={"learning_rate": 1e-2})
                patch.setitem(made.sources, run.id, run.model_copy(update={"training": training}))
        yield path


def test_all_trainings_of_rows(seeds: Path) -> None:
    found = compare("seeds:text/marcos", "seeds:text/cot", seeds, None, "default")
    metrics, tests = found.metrics.set_index("metric"), found.tests.set_index("test")
    assert tests["kind"].tolist() == ["trainings"] * 2
    frames = []
    for row in ("marcos", "cot"):
        first = "fake" if row == "marcos" else "seeds"
        places = [seeds / study / f"runs/text/{row}/s{i}" for i, study in enumerate((first, "seeds", "seeds"))]
        read = [pd.read_parquet(place / "predictions/default.parquet") for place in places]
        frames.append(pd.concat([frame.assign(training_seed=i) for i, frame in enumerate(read)]))
    for test in ("alpha", "beta"):
        sides = [correctness(frame[frame["test"] == test]) for frame in frames]
        own = paired_test(*sides)
        assert tests.loc[test, "p"] == own.p_value and tests.loc[test, "a - b"] == own.difference
        means = [side.to_numpy().mean() for side in sides]
        assert metrics.loc[f"accuracy/{test}", ["a", "b"]].tolist() == pytest.approx(means)
        shown = [", ".join(f"{100 * share:.2f}" for share in side.mean()) for side in sides]
        assert found.trainings.set_index("test").loc[test].tolist() == shown
    assert not any(name.startswith("accuracy_std") for name in metrics.index)
    alpha = found.questions[found.questions["test"] == "alpha"].set_index("id")
    first = frames[0][(frames[0]["training_seed"] == 0) & (frames[0]["seed"] == 0)].set_index("id")
    assert (alpha["text_a"] == first["text"].reindex(alpha.index)).all() and alpha.index.is_unique
    text = render(found)
    assert "seeds:text/marcos (3 trainings: " in text and "Untested" not in text
    assert "Metrics (means over trainings)" in text and "texts of the first training and decoding seed" in text


def test_trainings_of_another_version_of_the_study_are_not_pooled(seeds: Path) -> None:
    message = r"^text/marcos/s2 of study edited has no answers in .* \(stale evaluate.json: made from another specifica"
    with pytest.raises(BrokenRecord, match=message):
        compare("edited:text/marcos", "edited:text/cot", seeds, None, "default")


def test_where_trainings_are_too_few_it_says_why(seeds: Path) -> None:
    shown = render(compare("seeds:text/marcos", "seeds:text/cot/s0", seeds, None, "default"))
    assert "Untested: a test takes one training of each, or at least 3 of each" in shown and "nan" in shown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text/marcos", "'text/marcos' is no run: give .*, STUDY:BLOCK/ROW for all trainings of a row"),
        ("fake:text/nobody", "study fake has no row 'text/nobody'; its rows are: text/cot, .*, equation/oracle"),
    ],
)
def test_rows_that_there_are_none_of(name: str, message: str, seeds: Path) -> None:
    with pytest.raises(InputError, match=message):
        compare(name, "seeds:text/cot/s0", seeds, None, "default")


ID = "0" * 32


def test_where_nothing_is_tracked_the_command_is_named(tmp_path: Path) -> None:
    """Looking for runs does not create a database."""
    folder = tmp_path / "results"
    with pytest.raises(BrokenRecord, match=rf"^{folder}/mlflow.db does not exist, .*: run `marcos-bench track STUDY`"):
        compare(ID, "fake:text/oracle/s0", folder, None, "default")
    assert not folder.exists()
    with session(folder) as client:
        assert not find_experiments(client)
    with pytest.raises(InputError, match=r"it has no run at all: `marcos-bench track STUDY`"):
        compare(ID, "fake:text/oracle/s0", folder, None, "default")
    with session(folder) as client:
        assert not find_experiments(client)


def test_a_server_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(InputError, match="start the server that MLFLOW_TRACKING_URI names, or unset it") as raised:
        compare(ID, "fake:text/oracle/s0", tmp_path, None, "default")
    assert "secret" not in str(raised.value)


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database " * 100, encoding="utf-8")
    with pytest.raises(InputError, match=r"^MLflow cannot be asked \([^\n]*\): if .*mlflow.db is damaged, move it"):
        compare(ID, "fake:text/oracle/s0", tmp_path, None, "default")
