"""Recorded results are recomputed from their predictions. Anything changed by hand is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import fabricate
from benchmarks.evaluation.task import means, summary
from benchmarks.figures.render import render as draw
from benchmarks.files import read_json, write_json, write_parquet, write_text
from benchmarks.records import results
from benchmarks.scoring.diversity import draw_statistics
from benchmarks.scoring.numeric import Number
from benchmarks.scoring.scorers import score_answers
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import Figure
from benchmarks.studies.study import Study, parse_study
from benchmarks.tables.render import render
from benchmarks.verification import checks, rescoring
from benchmarks.verification.checks import Finding, lost_row, report, verify
from commands import invoke, output, study_file
from test_synthetic import RS, answered, asked

RUN = "runs/equation/cot/s0"
TESTS = {"tests": ["embedded_in_domain", "embedded_reworded"], "decodings": {"default": {"seeds": 2}}}


def study() -> Study:
    blocks = [{"id": "equation", "title": "Training data: equation", "data": {"train": "corpus"}}]
    return fabricate.study(evaluation=TESTS, blocks=blocks, tables=["main"])


def with_tables(place: Path) -> Path:
    """Fabricate the study's results, with its tables, in a folder. Return the folder."""
    fabricate.collected(study(), place)
    for table in study().tables:
        render(study(), place, table)
    return place


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tables(tmp_path_factory.mktemp("rendered")) / "fake"


@pytest.fixture
def folder(rendered: Path, tmp_path: Path) -> Path:
    return shutil.copytree(rendered, tmp_path / "fake")


def findings(folder: Path, kind: str) -> list[Finding]:
    return [finding for finding in verify(study(), folder) if finding.kind == kind]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = read_json(path)
    change(content)
    write_json(path, content)


def test_results_that_nobody_touched_hold(folder: Path) -> None:
    found = verify(study(), folder)
    assert {finding.kind for finding in found} == {"ok"}
    assert {"equation/cot/s0 evaluate.json", "collect.json", "frame.csv", "table_main.md"} <= {f.place for f in found}
    assert report(found).endswith(f"{len(found)} ok")


def test_a_newer_version_of_a_data_set_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of an older one are what they were, so nothing differs."""

    def age(content: Any) -> None:
        content["data"]["equation"]["cards"]["corpus"]["version"] = "1"

    card = SimpleNamespace(version="2", notes="Steps are cut otherwise.")
    monkeypatch.setattr(checks, "DATASETS", {"corpus": SimpleNamespace(card=card)})

    edit(folder / "collect.json", age)
    (drift,) = findings(folder, "drift")
    told = "made from version 1 of corpus, which is at version 2"
    assert drift.place == "data of equation" and drift.text.startswith(told)
    assert not findings(folder, "differs")


def test_a_changed_answer_is_found_by_its_digest(folder: Path) -> None:
    path = folder / RUN / "predictions/default.parquet"
    frame = pd.read_parquet(path)
    frame.loc[0, "text"] = "#### 8"
    frame.to_parquet(path, index=False)
    found = {finding.place: finding.text for finding in findings(folder, "differs")}
    assert found["equation/cot/s0 evaluate.json"].endswith(
        "default.parquet is not the file that was recorded: run `evaluate` again"
    )
    assert "is not the file that was recorded: run `evaluate`, then `collect` again" in found["table_main"]


def test_an_answer_scored_wrong_is_found_even_with_a_new_digest(folder: Path) -> None:
    path = folder / RUN / "predictions/default.parquet"
    frame = pd.read_parquet(path)
    first = frame["correct"].tolist().index(False)
    frame.loc[first, "correct"] = True
    digest = write_parquet(path, frame)
    edit(folder / RUN / "evaluate.json", lambda record: record["predictions"].update(default=digest))
    results.collect(study(), folder.parent)
    texts = [finding.text for finding in findings(folder, "differs")]
    assert any("`correct` of 1 answers is not what the scorer says" in text for text in texts)
    assert any("`accuracy` is recorded as" in text for text in texts)


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return an evaluate record on Random Summation, and its predictions."""
    said = answered(("2 3\n#### 2 + 3 = 5", "5 6\n#### 5 + 6 = 11"), ("2 3\n#### 2 + 3 = 5", "7 7\n#### 7"))
    frame = score_answers(said, {RS: asked()})
    # In place of what keeps the questions of test sets that other tests verify
    monkeypatch.setattr(rescoring, "_texts", lambda test, form: {"a": "1 2", "b": "3 4"})
    means = summary(frame)
    return {"decodings": {"default": {"tests": {RS: means}}}, "predictions": {}}, frame


def answers(record: dict[str, Any], frame: pd.DataFrame, results: Path) -> list[str]:
    paths = Paths(results, study().runs["equation/cot/s0"])
    record["predictions"]["default"] = write_parquet(paths.predictions("default"), frame)
    return list(rescoring.wrong_answers(record, paths, "lines"))


def test_draws_are_computed_again(drawn: tuple[dict[str, Any], pd.DataFrame], tmp_path: Path) -> None:
    record, frame = drawn
    assert answers(record, frame, tmp_path) == []
    changed = frame.assign(draws=[["9"], *frame["draws"].tolist()[1:]])
    texts = answers(record, changed, tmp_path)
    assert "`draws` of 1 answers is not what the scorer says, first rs_n2_k3 a, seed 0" in texts[0]
    record["decodings"]["default"]["tests"]["rs_n2_k3"]["draws"][0]["entropy"] = 3.0
    (text,) = answers(record, frame, tmp_path)
    assert "`draws`: line 1, entropy: recorded 3.0" in text


def test_draws_are_brought_up_to_date(drawn: tuple[dict[str, Any], pd.DataFrame], tmp_path: Path) -> None:
    record, frame = drawn
    paths = Paths(tmp_path, study().runs["equation/cot/s0"])
    stale = frame.assign(draws=[["9"], *frame["draws"].tolist()[1:]])
    record["decodings"]["default"]["tests"][RS] |= {"draws": draw_statistics(stale)}
    record["predictions"]["default"] = write_parquet(paths.predictions("default"), stale)
    write_json(paths.record("evaluate"), record | {"scorers": {RS: {"name": "summation", "version": "0"}}})
    (text,) = rescoring._rescore_run("equation/cot/s0", paths, "lines")
    assert text.startswith(f"equation/cot/s0, default, {RS}: `draws`: line 1, ")
    again = read_json(paths.record("evaluate"))
    assert list(rescoring.wrong_answers(again, paths, "lines")) == []
    assert again["decodings"]["default"]["tests"][RS]["draws"] == draw_statistics(frame)


def older(folder: Path, extracted: str, correct: bool) -> Path:
    """Make a run's first answer one that an older scorer scored so. Return the path of its record."""
    path, record = folder / RUN / "predictions/default.parquet", folder / RUN / "evaluate.json"
    frame = pd.read_parquet(path)
    frame.loc[0, ["extracted", "correct", "strict"]] = [extracted, correct, correct]
    digest = write_parquet(path, frame)

    def change(content: dict[str, Any]) -> None:
        content["scorers"] = {test: {"name": "number", "version": "1"} for test in content["scorers"]}
        content["predictions"]["default"] = digest
        for test, scores in content["decodings"]["default"]["tests"].items():
            scores.update(means(frame.loc[frame["test"] == test]))

    edit(record, change)
    results.collect(study(), folder.parent)
    return record


def test_scores_of_an_older_scorer_are_told_and_brought_up_to_date(folder: Path) -> None:
    untouched = {
        path: path.read_text(encoding="utf-8") for path in folder.glob("[ft]*.*")
    }  # not the collection, with its digests
    first = pd.read_parquet(folder / RUN / "predictions/default.parquet").iloc[0]
    record = older(folder, first["extracted"], first["correct"])  # an older scorer that found the same
    (found,) = findings(folder, "drift")
    assert found.place == "equation/cot/s0 evaluate.json" and not findings(folder, "differs")
    assert "another version of the scorer than today's (embedded_in_domain, embedded_reworded)" in found.text
    assert list(rescoring.rescore(study(), folder)) == []
    assert read_json(record)["scorers"]["embedded_reworded"] == {"name": "number", "version": Number.version}
    assert {path: path.read_text(encoding="utf-8") for path in folder.glob("[ft]*.*")} == untouched


def test_scores_that_move_are_written_everywhere(folder: Path) -> None:
    untouched = {path: path.read_text(encoding="utf-8") for path in folder.glob("*.*")}
    first = pd.read_parquet(folder / RUN / "predictions/default.parquet").iloc[0]
    older(folder, "99", not first["correct"])
    render(study(), folder.parent, study().tables[0])
    assert "`correct` of 1 answers is not what the scorer says" in findings(folder, "differs")[0].text
    said = list(rescoring.rescore(study(), folder))
    assert said[0].startswith("equation/cot/s0, default, embedded_in_domain: `accuracy` was [")
    assert "frame.csv is written anew" in said
    assert {finding.kind for finding in verify(study(), folder)} == {"ok"}
    assert {path: path.read_text(encoding="utf-8") for path in folder.glob("*.csv")} == {
        path: text for path, text in untouched.items() if path.suffix == ".csv"
    }


def test_a_changed_mean_is_found(folder: Path) -> None:
    def better(record: dict[str, Any]) -> None:
        record["decodings"]["default"]["tests"]["embedded_in_domain"]["accuracy"] = [0.99]

    edit(folder / RUN / "evaluate.json", better)
    found = {finding.place: finding.text for finding in findings(folder, "differs")}
    assert "default, embedded_in_domain: `accuracy` is recorded as [0.99]" in found["equation/cot/s0 evaluate.json"]
    assert "equation/cot/s0 evaluate" in found["collect.json"]


def test_a_record_of_another_specification_is_found(folder: Path) -> None:
    edit(folder / RUN / "spec.json", lambda spec: spec.update(seed=5))
    differs = {finding.place for finding in findings(folder, "differs")}
    assert differs == {f"equation/cot/s0 {stage}.json" for stage in ("train", "evaluate", "time")}
    assert findings(folder, "drift")[0].text == "the study has changed: seed was 5, is 0"


def test_answers_that_were_given_again_for_the_same_training_hold(folder: Path) -> None:
    """The study now asks for another evaluation than when the run was trained and spec.json was written."""
    path = folder / RUN / "spec.json"
    edit(path, lambda spec: spec["evaluation"].update(max_new_tokens=spec["evaluation"]["max_new_tokens"] + 1))
    assert not findings(folder, "differs") and not findings(folder, "drift")
    edit(path.with_name("evaluate.json"), lambda record: record.update(digest="0" * 16))
    assert findings(folder, "differs")[0].place == "equation/cot/s0 evaluate.json"


def test_settings_that_came_later_are_no_change(folder: Path) -> None:
    path = folder / RUN / "spec.json"
    before = read_json(path)
    edit(path, lambda spec: spec.pop("analysis"))
    assert not findings(folder, "differs") and not findings(folder, "drift") and read_json(path) != before


def test_a_changed_number_in_a_table_is_told_from_changed_words(folder: Path) -> None:
    path = folder / "table_main.md"
    path.write_text(path.read_text(encoding="utf-8").replace("Bold:", "In bold:"), encoding="utf-8")
    assert [finding.place for finding in findings(folder, "drift")] == ["table_main.md"]
    assert not findings(folder, "differs")
    edit(folder / "table_main.json", lambda content: content["lines"][0].update(accuracy=1.0))
    assert "accuracy: recorded 1.0" in findings(folder, "differs")[0].text


def test_a_changed_difference_to_the_control_is_found(folder: Path) -> None:
    edit(folder / "table_main.json", lambda content: content["against_controls"][0].update(p_holm=0.5))
    (found,) = findings(folder, "differs")
    assert "against_controls: line 1, p_holm: recorded 0.5" in found.text


def test_a_number_in_a_rendered_table_is_checked_against_the_records(folder: Path) -> None:
    for ending in ("md", "tex", "csv"):
        path = folder / f"table_main.{ending}"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("0.25", "0.26"), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != text
    assert {finding.place for finding in findings(folder, "differs")} == {
        "table_main.md",
        "table_main.tex",
        "table_main.csv",
    }


def test_the_last_digits_of_another_machine_are_no_difference(folder: Path) -> None:
    path = folder / "frame.csv"
    frame = pd.read_csv(path)
    for factor, kind in ((1 + 1e-15, "ok"), (1 + 1e-6, "differs")):
        frame.assign(accuracy_mean=frame["accuracy_mean"] * factor).to_csv(path, index=False)
        assert [finding.kind for finding in verify(study(), folder) if finding.place == "frame.csv"] == [kind]
    frame.drop(columns="strict").to_csv(path, index=False)
    assert [finding.place for finding in findings(folder, "drift")] == ["frame.csv"]


@pytest.mark.parametrize(("ending", "sign"), [("md", " | "), ("tex", " & ")])
def test_numbers_in_rows_that_are_not_theirs_are_found(ending: str, sign: str, folder: Path) -> None:
    """All numbers are still in the table."""
    path = folder / f"table_main.{ending}"
    lines = path.read_text(encoding="utf-8").splitlines()
    one, other = (next(i for i, line in enumerate(lines) if name in line) for name in ("CoT-SFT", "w/o R"))
    (title, numbers), (second, others) = (lines[i].split(sign, 1) for i in (one, other))
    lines[one], lines[other] = title + sign + others, second + sign + numbers
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (found,) = findings(folder, "differs")
    assert found.place == path.name and found.text.startswith("a row whose numbers cannot be reproduced: ")


def test_rows_and_columns_that_were_added_are_no_difference() -> None:
    old = "| a | 1.0 | 2.0 |\n| b | -3.0 |\n* of 7"
    assert lost_row(old, "| h |\n| a | 1.0 | 9 | 2.0 |\n| new | 4 |\n| b | -3.0 |\n* of 8") == ""
    assert lost_row(old, "| b | -3.0 |\n| a | 1.0 | 2.0 |") == "| b | -3.0 |"
    assert lost_row(old, "| a | 2.0 | 1.0 |\n| b | -3.0 |") == "| a | 1.0 | 2.0 |"
    assert lost_row(old, "| a | 1.0 | 2.0 |\n| b | 3.0 |") == "| b | -3.0 |"


def test_missing_records_differ(folder: Path) -> None:
    (folder / RUN / "time.json").unlink()
    (folder / "frame.csv").unlink()
    assert {"equation/cot/s0 time.json", "collect.json", "frame.csv"} == {f.place for f in findings(folder, "differs")}


def test_runs_that_were_never_trained_do_not_differ(tmp_path: Path) -> None:
    results.collect(study(), tmp_path)
    found = verify(study(), tmp_path / "fake")
    never = [*study().runs, *(f"table_{table}" for table in study().tables)]
    assert [finding.place for finding in found if finding.kind == "not made"] == never
    assert not [finding for finding in found if finding.kind == "differs"]
    lines = report(found).splitlines()
    assert "not made  equation/cot/s0" in lines and "ok        collect.json" in lines
    assert lines[-1].startswith("5 not made, ")


def test_a_table_that_was_never_rendered_does_not_differ(folder: Path) -> None:
    for path in folder.glob("table_main.*"):
        path.unlink()
    assert [(f.kind, f.text) for f in verify(study(), folder) if f.place == "table_main"] == [("not made", "")]


def test_a_folder_that_is_not_one_study_s_is_named(tmp_path: Path) -> None:
    done = invoke("verify", tmp_path / "quick", code=2)
    assert f"there is no folder {tmp_path / 'quick'}" in done.output
    assert f"name one study's folder, e.g. {tmp_path}/smoke" in output("verify", tmp_path, code=2)
    write_json(tmp_path / "fake/collect.json", {})
    assert f"e.g. {tmp_path}/fake, or say with --study" in output("verify", tmp_path, code=2)
    for command in ("verify", "rescore"):  # not the folder `smoke` beside it
        done = output(command, tmp_path / "fake", "--study", "smoke", code=2)
        assert f"{tmp_path}/fake does not hold the results of smoke" in done


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{\n oops", "evaluate.json, line 2: broken JSON"),
        (
            '{"digest": "?"}',
            "evaluate.json is broken (environment: Field required): delete it and run `evaluate` again",
        ),
    ],
)
def test_a_record_that_cannot_be_read_is_a_finding_among_others(content: str, problem: str, folder: Path) -> None:
    write_text(folder / RUN / "evaluate.json", content)
    found = {finding.place: finding.text for finding in findings(folder, "differs")}
    assert set(found) == {"equation/cot/s0 evaluate.json", "collect.json"}
    assert str(folder) in found["equation/cot/s0 evaluate.json"] and problem in found["equation/cot/s0 evaluate.json"]
    assert found["collect.json"] == "other records than the runs' own: equation/cot/s0 evaluate"
    results.collect(study(), folder.parent)
    assert "collect.json" not in {finding.place for finding in findings(folder, "differs")}


def test_predictions_without_scores_are_found(folder: Path) -> None:
    edit(folder / RUN / "evaluate.json", lambda record: record["decodings"].clear())
    found = {finding.place: finding.text for finding in findings(folder, "differs")}
    assert found["equation/cot/s0 evaluate.json"] == "no scores of default.parquet are recorded"


def test_a_specification_that_lacks_what_digests_are_made_of_is_found(folder: Path) -> None:
    edit(folder / RUN / "spec.json", lambda spec: spec.pop("engine"))
    texts = {finding.place: finding.text for finding in findings(folder, "differs")}
    assert texts["equation/cot/s0 train.json"] == "cannot be compared with spec.json, which lacks 'engine'"


@pytest.mark.parametrize(
    ("grow", "lacking"),
    [
        (lambda content: content["rows"].append({"id": "more", "method": "cot_sft"}), "equation/more/s0"),
        (lambda content: content["evaluation"]["tests"].append("alpha"), "equation/cot/s0: tests ['alpha']"),
    ],
)
def test_what_the_study_has_gained_is_found(grow: Callable[[Any], None], lacking: str, folder: Path) -> None:
    content = study().model_dump(mode="json")
    grow(content)
    found = verify(parse_study(content, "the test's study"), folder)
    (collection,) = (finding for finding in found if finding.place == "collect.json")
    assert collection.kind == "differs" and lacking in collection.text
    assert "run `collect` again, or name the study as it was (--study)" in collection.text
    assert "equation/cot/s0 evaluate.json" in {finding.place for finding in found if finding.kind == "ok"}


def test_a_collection_without_a_record_of_the_data_is_found(folder: Path) -> None:
    """Prepared data are not committed: whoever collects again where they are not loses their record."""
    lost = {"equation": {"problem": "done.json does not exist"}}
    edit(folder / "collect.json", lambda content: content.update(data=lost))
    (found, *_) = findings(folder, "differs")
    assert found.place == "collect.json" and "data of equation: done.json does not exist" in found.text


def test_what_was_made_of_the_records_and_cannot_be_read_is_found(folder: Path) -> None:
    write_text(folder / "frame.csv", "")
    write_text(folder / "table_main.json", "{")
    found = {finding.place: finding.text for finding in findings(folder, "differs")}
    assert set(found) == {"frame.csv", "table_main.json"}
    assert "is not a readable table" in found["frame.csv"] and "broken JSON" in found["table_main.json"]


def test_numbers_beside_a_figure_are_computed_again(folder: Path) -> None:
    for figure in (Figure.steps, Figure.pareto):
        draw(study(), folder.parent, figure)
    assert {"steps.csv", "pareto.csv"} <= {finding.place for finding in verify(study(), folder) if finding.kind == "ok"}
    frame = pd.read_csv(folder / "figures/steps.csv")
    frame.loc[1, "accuracy"] += 0.01
    frame.to_csv(folder / "figures/steps.csv", index=False)
    (found,) = findings(folder, "differs")
    assert found.place == "steps.csv" and "accuracy" in found.text


def test_the_command_ends_in_an_error_where_something_differs(folder: Path, tmp_path: Path) -> None:
    path = study_file(study(), tmp_path)
    arguments = ["verify", folder, "--study", path]
    invoke(*arguments)
    (folder / RUN / "train.json").unlink()
    assert "differs  equation/cot/s0 train.json" in output(*arguments, code=1)
    invoke("verify", tmp_path, "--study", path, code=2)
