"""Rows that were made elsewhere, beside those of a study."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fabricate
from benchmarks import external_rows
from benchmarks.archive import pack
from benchmarks.data import load_records
from benchmarks.files import read_json
from benchmarks.records import results
from benchmarks.records.results import load_collected
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study, load_study
from benchmarks.tables.base import ExternalRows
from benchmarks.tables.markup import DASH
from benchmarks.tables.render import render
from benchmarks.verification.checks import report, verify
from commands import invoke, study_file
from methods.errors import InputError
from test_tables import cells
from test_verification import TESTS, edit

TEST, OTHER = "embedded_in_domain", "embedded_reworded"
THEIR_ACCURACY = fabricate.ACCURACY | {"cot": (0.99, 0.99)}  # better than all of ours
FROM = "(from theirs, never ranked)"


def study() -> Study:
    return fabricate.study(evaluation=TESTS)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    fabricate.collected(study(), folder / "ours")
    fabricate.collected(study(), folder / "theirs", THEIR_ACCURACY)
    return folder


@pytest.fixture
def ours(both: Path, tmp_path: Path) -> Path:
    return shutil.copytree(both / "ours", tmp_path / "ours")


@pytest.fixture
def theirs(both: Path, tmp_path: Path) -> Path:
    return shutil.copytree(both / "theirs", tmp_path / "theirs")


def read(ours: Path, *named: str) -> ExternalRows:
    return external_rows.read_external_rows(load_collected(study(), ours), named)


def table(ours: Path, *named: str) -> dict[str, str]:
    return fabricate.contents(study(), ours, Table.main, read(ours, *named))


def outputs(path: Path, right: int, wrong: int, test: str = TEST) -> str:
    """Write a file of outputs for the first questions of a test set, and return what --with takes."""
    records = load_records(test, "equation", "test")[: right + wrong]
    texts = [f"#### {record.answer}" if i < right else "no idea" for i, record in enumerate(records)]
    path.write_text("".join(json.dumps({"index": i, "output": text}) + "\n" for i, text in enumerate(texts)), "utf-8")
    return f"{path}@{test}"


def test_rows_of_a_folder_are_labelled_and_never_ranked(ours: Path, theirs: Path) -> None:
    own, wider = fabricate.contents(study(), ours), table(ours, f"theirs={theirs}")
    sections = own["md"].split("***Training data: text***")[1].split("\n\n")[0]
    names = [line.split("|")[1].strip() for line in sections.splitlines()]
    for heading in ("Training data: text", "Training data: equation"):
        for name in dict.fromkeys(names):
            if name and not name.startswith("***"):
                title = name.removeprefix("&nbsp;&nbsp;&nbsp;")
                assert cells(own["md"], title, heading) == cells(wider["md"], title, heading)
    line = cells(wider["md"], "CoT-SFT", f"Training data: text {FROM}")
    assert line[0] == line[2] == line[-1] == DASH and line[1].startswith("9") and line[-2] == "0.24M"
    shown = wider["md"].split(f"***Training data: text {FROM}***")[1].split("\n\n")[0]
    assert "**" not in shown.replace("***", "") and "<sup>" not in shown
    details = cells(wider["md"], "CoT-SFT", f"Training data: text {FROM} · {TEST}")
    assert details[0] == "200" and details[6] == DASH and " to " in details[4]
    assert "From theirs: Hardware: cpu, Example CPU;" in wider["md"] and "Left out" not in wider["md"]
    frame = json.loads(wider["json"])["lines"]
    assert {line["source"] for line in frame} == {"", "theirs"} and len(frame) == len(
        json.loads(own["json"])["lines"]
    ) + 16
    assert not any(line["test_seconds_median"] or line["train_wall_seconds"] for line in frame if line["source"])
    assert json.loads(wider["json"])["paired_tests"] == json.loads(own["json"])["paired_tests"]


def test_a_packed_folder_of_the_study_itself_is_read_too(ours: Path, theirs: Path, tmp_path: Path) -> None:
    pack(theirs / "fake", tmp_path / "packed/fake")
    plain, packed = read(ours, f"x={theirs}"), read(ours, f"x={tmp_path}/packed/fake")
    pd.testing.assert_frame_equal(plain.lines, packed.lines)
    with pytest.raises(InputError, match="two rows are x, cot: give each of --with a name"):
        read(ours, f"x={theirs}", f"x={tmp_path}/packed")


RUN = "equation/cot/s0"
CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "trained with other settings": lambda run: run["train"].update(digest="0"),
    "evaluated with other settings": lambda run: run["evaluate"].update(digest="0"),
    "no evaluate.json": lambda run: run.update(evaluate=None, problems={"evaluate": "no evaluate.json"}),
    f"scored by another version of the scorer than today's ({TEST}, {OTHER})": lambda run: run["evaluate"].update(
        scorers={key: {"name": "number", "version": "1"} for key in (TEST, OTHER)}
    ),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_runs_that_do_not_match_are_left_out_with_the_reason(reason: str, ours: Path, theirs: Path) -> None:
    edit(theirs / "fake/collect.json", lambda content: CHANGES[reason](content["runs"][RUN]))
    found = read(ours, str(theirs))
    assert f"Left out: {RUN}: {reason}" in found.about[0]
    shown = {(line["block"], line["row"]) for line in found.lines.to_dict("records")}
    assert ("equation", "cot") not in shown and {("equation", "marcos"), ("text", "cot")} <= shown


def test_a_run_whose_start_was_trained_otherwise_is_left_out(tmp_path: Path) -> None:
    rows = [{"id": "cot", "method": "cot_sft"}, {"id": "coconut", "method": "coconut"}]
    started = fabricate.study(evaluation=TESTS, rows=rows)
    for folder in ("ours", "theirs"):
        fabricate.collected(started, tmp_path / folder)
    edit(tmp_path / "theirs/fake/collect.json", lambda content: content["runs"][RUN]["train"].update(digest="0"))
    found = external_rows.read_external_rows(load_collected(started, tmp_path / "ours"), [str(tmp_path / "theirs")])
    assert f"Left out: {RUN}, equation/coconut/s0: trained with other settings." in found.about[0]


def test_other_data_leave_a_block_out_and_nothing_left_is_an_error(ours: Path, theirs: Path) -> None:
    digests = read_json(theirs / "fake/data/text/done.json")["digests"]
    fabricate.update_record(theirs / "fake/data/text/done.json", digests=digests | {f"{TEST}/test": "0"})
    results.collect(study(), theirs)
    found = read(ours, str(theirs))
    assert f"other data ({TEST}/test)" in found.about[0]
    assert set(found.lines["block"]) == {"equation"}
    fabricate.update_record(theirs / "fake/data/equation/done.json", digests={})
    results.collect(study(), theirs)
    with pytest.raises(
        InputError, match=r"theirs has no row that belongs beside those of fake: text/.*: no record of their data"
    ):
        read(ours, str(theirs))


def test_other_kernels_are_named(ours: Path, theirs: Path) -> None:
    for path in (theirs / "fake/runs").rglob("evaluate.json"):
        fabricate.update_record(path, environment=fabricate.ENVIRONMENT | {"kernels": {"aten": "AVX2"}})
    results.collect(study(), theirs)
    (about,) = read(ours, str(theirs)).about
    assert "Computed with other kernels than ours" in about and "Kernels: AVX2 kernels on Example CPU" in about


def test_outputs_of_a_file_are_a_row_as_published(ours: Path, tmp_path: Path) -> None:
    first, second = outputs(tmp_path / "a.jsonl", 3, 1), outputs(tmp_path / "b.jsonl", 2, 0, OTHER)
    text = table(ours, f"GPT-2={first}", f"GPT-2={second}", first)["md"]
    heading = "As published (never ranked)"
    assert cells(text, "GPT-2", heading)[:5] == [DASH, "75.00<sup>1</sup>", DASH, "100.00<sup>2</sup>", DASH]
    assert cells(text, "a", heading)[1:4] == ["75.00<sup>1</sup>", DASH, DASH]
    assert "a.jsonl: outputs for 4 of 500 questions" in text
    details = cells(text, "GPT-2", f"{heading} · {TEST}")
    assert details[:5] == ["4", DASH, "75.00", "25.00", "30.06 to 95.44"]
    assert f"GPT-2: outputs of b.jsonl for {OTHER}, scored by `number`, version" in text
    with pytest.raises(InputError, match=r"two rows are As published .*, GPT-2: give each"):
        read(ours, f"GPT-2={first}", f"GPT-2={first}")


def naming(folder: Path, outputs: dict[str, str]) -> Study:
    """Return the study of a file in ``folder`` that names outputs as published."""
    content = study().model_dump(mode="json", exclude_unset=True)
    content |= {"published": [{"title": "GPT-2", "source": "Someone, 2024", "outputs": outputs}]}
    (path := folder / "study.yaml").write_text(json.dumps(content), encoding="utf-8")
    return load_study(str(path))


def test_a_study_names_outputs_as_published(ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THEIR_OUTPUTS", raising=False)
    outputs(tmp_path / "a.jsonl", 3, 1)
    with (tmp_path / "a.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"index": 9_999, "output": "#### 1"}) + "\n")
    outputs(tmp_path / "b.jsonl", 2, 0, OTHER)
    plain, made = (
        fabricate.contents(study(), ours),
        naming(tmp_path, {TEST: "a.jsonl", OTHER: "${THEIR_OUTPUTS}/b.jsonl"}),
    )
    assert {id: run.digest("train") for id, run in made.runs.items()} == {
        id: run.digest("train") for id, run in study().runs.items()
    }

    def tables() -> dict[str, str]:
        invoke("collect", tmp_path / "study.yaml", "--results", ours)
        render(made, ours, Table.main)
        return fabricate.contents(made, ours)

    files, heading = tables(), "As published (never ranked)"
    assert cells(files["md"], "GPT-2", heading)[:5] == [DASH, "75.00<sup>1</sup>", DASH, DASH, DASH]
    assert "a.jsonl: outputs for 4 of 500 questions; lines that match no question: 1" in files["md"]
    assert cells(files["md"], "GPT-2", f"{heading} · {TEST}")[:5] == ["4", DASH, "75.00", "25.00", "30.06 to 95.44"]
    assert f"GPT-2: outputs of a.jsonl (Someone, 2024) for {TEST}, scored by `number`" in files["md"]
    assert f"not at hand when the records were collected: GPT-2 ({OTHER}), whose outputs are `${{THEIR_" in files["md"]
    parts = [json.loads(text["json"]) for text in (plain, files)]
    assert parts[0]["paired_tests"] == parts[1]["paired_tests"]
    assert {finding.kind for finding in verify(made, ours / "fake")} == {"ok", "not made"}

    monkeypatch.setenv("THEIR_OUTPUTS", str(tmp_path))
    text = tables()["md"]
    assert cells(text, "GPT-2", heading)[3] == "100.00<sup>2</sup>" and "not at hand" not in text
    with pytest.raises(InputError, match=r"two rows are As published .*, GPT-2"):
        external_rows.read_external_rows(load_collected(made, ours), [f"GPT-2={tmp_path}/a.jsonl@{TEST}"])
    edit(ours / "fake/collect.json", lambda content: content["published"][0]["scorer"].update(version="0"))
    assert "a.jsonl was scored by another version" in report(verify(made, ours / "fake"))


def test_outputs_that_a_study_names_have_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"there is no file .*a.jsonl: put it there, or leave it out of the study"):
        naming(tmp_path, {TEST: "a.jsonl"}).published_files()
    monkeypatch.setenv("THEIR_OUTPUTS", str(tmp_path))
    with pytest.raises(InputError, match=r"there is no file .*a.jsonl: put it there, or unset THEIR_OUTPUTS"):
        naming(tmp_path, {TEST: "${THEIR_OUTPUTS}/a.jsonl"}).published_files()
    with pytest.raises(InputError, match=r"`published` has outputs for 'gsm8k': name a test set of `evaluation.tests`"):
        naming(tmp_path, {"gsm8k": "a.jsonl"})


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("{}/none", "none is neither a folder nor a file with the test set"),
        ("x={}/a.jsonl", "a.jsonl is neither a folder nor a file with the test set"),
        ("{}/a.jsonl@embedded_rewordd", "fake has no test set 'embedded_rewordd'; did you mean `embedded_reworded`?"),
        ("{}", "has no results of fake: name a folder that has a folder fake"),
        ("{}/ours/fake", "holds the results that the table is made from"),
    ],
)
def test_what_cannot_be_read_is_refused(named: str, message: str, ours: Path, tmp_path: Path) -> None:
    outputs(tmp_path / "a.jsonl", 1, 0)
    with pytest.raises(InputError, match=message):
        read(ours, named.format(tmp_path))


def test_our_own_answers_have_todays_scores(ours: Path, theirs: Path) -> None:
    fabricate.update_record(
        ours / "fake/runs" / RUN / "evaluate.json",
        scorers={key: {"name": "number", "version": "1"} for key in (TEST, OTHER)},
    )
    results.collect(study(), ours)
    with pytest.raises(InputError, match=r"equation/cot/s0 was scored by another .*: run `marcos-bench rescore"):
        read(ours, str(theirs))


def test_command(ours: Path, theirs: Path, tmp_path: Path) -> None:
    command = ("table", study_file(study(), tmp_path), "--results", ours)
    invoke(*command)
    assert FROM in invoke(*command, "--with", f"theirs={theirs}").stdout
    assert {file.name for file in (ours / "fake/with").iterdir()} == {
        f"table_main.{end}" for end in ("md", "tex", "csv", "json")
    }
    assert FROM not in (ours / "fake/table_main.md").read_text("utf-8")
    assert {finding.kind for finding in verify(study(), ours / "fake")} == {"ok", "not made"}
    done = invoke(*command, "--with", theirs, "--table", "decoding", code=2)
    assert "--with goes with the tables main and 3b, not with decoding" in done.output
