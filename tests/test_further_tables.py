"""The tables of decodings and of controls."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.files import read_json, write_json
from benchmarks.records import results
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study, StudyError
from benchmarks.tables.render import TABLE_BUILDERS, render
from fabricate import collected, contents, fabricate, let_r_die, study, update_record
from test_tables import cells, header

DECODINGS: dict[str, Any] = {
    "default": {"seeds": 3},
    "sampled": {"tokens": "sample", "latents": "sample", "seeds": 3},
    "nucleus": {"tokens": "sample", "top_p": 0.9, "seeds": 3, "only": ["marcos"]},
    "mean_r": {"latents": "mean", "seeds": 1, "only": ["marcos"]},
    "exchanged": {"thoughts": "exchanged", "seeds": 1},
    "mean_thoughts": {"thoughts": "mean", "seeds": 1},
}
ALPHA = "Training data: equation · Alpha & Co 100%"
TASKS = (Table.synthetic, Table.longrange)  # their blocks have one test set each
BLOCKS = [
    {"id": block, "title": f"Training data: {block}", "data": {"train": "corpus"}, "tests": [test]}
    for block, test in (("text", "alpha"), ("equation", "beta"))
]


def made(**changes: Any) -> Study:
    return study(evaluation={"tests": ["alpha", "beta"], "decodings": DECODINGS}, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the records of a study in which one run has not been evaluated."""
    path = tmp_path_factory.mktemp("results")
    fabricate(made(), path)
    (path / "fake/runs/text/marcos/s0/evaluate.json").unlink()
    results.collect(made(), path)
    return path


@pytest.fixture(scope="module")
def decoding(folder: Path) -> dict[str, str]:
    return contents(made(), folder, Table.decoding)


@pytest.fixture(scope="module")
def controls(folder: Path) -> dict[str, str]:
    return contents(made(), folder, Table.controls)


def test_every_table_is_written_under_its_name(folder: Path, tmp_path: Path) -> None:
    tasks = made(blocks=BLOCKS)
    collected(tasks, tmp_path, {})
    assert set(TABLE_BUILDERS) == set(Table)
    for table in Table:
        names = [path.name for path in render(*((tasks, tmp_path) if table in TASKS else (made(), folder)), table)]
        assert names == [f"table_{table}.{ending}" for ending in ("md", "tex", "csv", "json")]


@pytest.mark.parametrize("table", TASKS)
def test_a_table_of_tasks_needs_one_test_set_a_block(table: Table, folder: Path) -> None:
    with pytest.raises(StudyError, match=r"blocks text, equation: this table is for one test set .* `tests: \[NAME\]`"):
        contents(made(), folder, table)


def test_decodings_stand_side_by_side_with_their_spread_over_seeds(decoding: dict[str, str]) -> None:
    text = decoding["md"]
    assert header(text) == ["Model", "Default (%)", "Sampled (%)", "Nucleus (%)", "Mean R (%)"]
    greedy, sampled, *others = cells(text, "CoT-SFT", ALPHA)
    assert greedy.endswith(" (det.)") and re.fullmatch(r"\d\d\.\d\d ± \d\.\d\d", sampled)
    assert set(others) == {"–"}  # noqa: RUF001
    marcos = cells(text, "MarCos", ALPHA)
    assert all("±" in cell for cell in marcos[:3]) and marcos[3].endswith(" (det.)")
    assert "* Nucleus: tokens drawn at temperature 1 from the likeliest that make up a share of 0.9, latents" in text


def test_questions_and_intervals_stand_below(decoding: dict[str, str], controls: dict[str, str]) -> None:
    for text in (decoding["md"], controls["md"]):
        below = text.split("## Questions and intervals of the default decoding")[1]
        n, interval, spread, over = cells(below, "MarCos", ALPHA)
        assert n == "200" and float(spread) > 0 and over == "3 decoding seeds"
        assert cells(below, "CoT-SFT", ALPHA)[2:] == ["–", "nothing drawn"]  # noqa: RUF001
        low, high = map(float, interval.split(" to "))
        assert low < float(cells(text, "MarCos", ALPHA)[0].split(" ")[0]) < high
        assert text.count("Last table: n questions; the 95 % interval of the default decoding's accuracy") == 1


def test_repeated_questions_are_said(tmp_path: Path) -> None:
    ours = study()
    fabricate(ours, tmp_path)
    for run in ours.runs:
        path = tmp_path / f"fake/runs/{run}/evaluate.json"
        record = read_json(path)
        for decoding in record["decodings"].values():
            decoding["tests"]["alpha"]["n_distinct"] = 150
        write_json(path, record)
    results.collect(ours, tmp_path)
    text = contents(ours, tmp_path)["md"]
    assert "200 (150 distinct)" in text and text.count("Alpha & Co 100%: accuracies are of all n questions") == 1
    assert "Not in training (%)" in text and "De-duplicated" not in text


def test_a_run_without_answers_says_so_in_every_table(decoding: dict[str, str], controls: dict[str, str]) -> None:
    for text in (decoding["md"], controls["md"]):
        missing = cells(text, "MarCos", "Training data: text · Beta_set")
        assert missing[0].startswith("not run<sup>") and "text/marcos/s0: no evaluate.json" in text


def test_spread_over_decoding_seeds_with_several_trainings(tmp_path: Path) -> None:
    several = made(seeds=[0, 1])
    frame = collected(several, tmp_path)
    runs = frame[(frame["row"] == "marcos") & (frame["decoding"] == "sampled") & (frame["test"] == "alpha")]
    spread = runs.loc[runs["block"] == "equation", "accuracy_std"].mean()
    text = contents(several, tmp_path, Table.decoding)["md"]
    assert cells(text, "MarCos", ALPHA)[1].endswith(f"± {100 * spread:.2f}")
    assert cells(text, "CoT-SFT", ALPHA)[0].endswith(" (det.)") and "the 2 training seeds" in text


def test_controls_show_what_is_lost_and_whether_it_is_much(controls: dict[str, str]) -> None:
    text = controls["md"]
    heading = ["Default (%)", "Exchanged (%)", "Exchanged lost", "Exchanged p", "Exchanged other's (%)"]
    assert header(text)[1:6] == heading
    own, exchanged, lost, p, others, *mean = cells(text, "MarCos", ALPHA)
    assert 20 < float(others) < 100 - float(exchanged)
    assert float(own) - float(exchanged) == pytest.approx(float(lost), abs=0.011) and float(lost) > 20
    assert p == "&lt;0.001" and len(mean) == 3 and "answered with the mean of its batch" in text


def test_answers_of_release_0_2_are_marked(tmp_path: Path) -> None:
    fabricate(made(), tmp_path)
    record = tmp_path / "fake/runs/equation/marcos/s0/evaluate.json"
    decodings = read_json(record)["decodings"]
    for scores in decodings["exchanged"]["tests"].values():
        del scores["follows"]
    update_record(record, decodings=decodings)
    results.collect(made(), tmp_path)
    text = contents(made(), tmp_path, Table.controls)["md"]
    assert cells(text, "MarCos", ALPHA)[1].endswith("</sup>") and "Answered by release 0.2" in text


def test_methods_without_latents_have_a_dash_and_its_reason(controls: dict[str, str]) -> None:
    row = cells(controls["md"], "CoT-SFT", ALPHA)
    assert re.fullmatch(r"\d\d\.\d\d", row[0]) and re.fullmatch(r"–<sup>\d</sup>", row[1])  # noqa: RUF001
    assert "The row has no latents" in controls["md"]


def test_a_row_that_answers_in_its_own_way_is_named(tmp_path: Path) -> None:
    warm = {"tokens": "sample", "temperature": 0.5}
    marcos = {"id": "marcos", "method": "marcos"}
    own = made(rows=[{"id": "cot", "method": "cot_sft", "decodings": {"default": warm}}, marcos])
    collected(own, tmp_path)
    for table in (Table.main, Table.decoding):
        text = contents(own, tmp_path, table)["md"]
        assert "CoT-SFT, in its own way: Default: tokens drawn at temperature 0.5" in text


def test_controls_are_tested_against_the_same_row_and_corrected(controls: dict[str, str]) -> None:
    tests = json.loads(controls["json"])["paired_tests"]
    family = [test for test in tests if (test["block"], test["test"]) == ("equation", "alpha")]
    assert len(family) == 4  # two rows with latents, two controls
    assert all(test["p_holm"] >= test["p_value"] and test["n"] == 200 for test in family)
    frame = pd.read_csv(io.StringIO(controls["csv"]))
    assert set(frame["decoding"]) == {"default", "exchanged", "mean_thoughts"}
    assert frame.loc[frame["decoding"] == "default", "difference"].isna().all()


def test_main_table_is_not_flooded(folder: Path) -> None:
    frame = pd.read_csv(io.StringIO(contents(made(), folder)["csv"]))
    assert set(frame["decoding"]) == {"default", "mean_r"}


def test_latex_of_all_tables_is_ascii(decoding: dict[str, str], controls: dict[str, str]) -> None:
    for text in (decoding["tex"], controls["tex"]):
        assert not re.search("[^\x00-\x7f]", text) and not re.search(r"(?<!\\)[%#_]", text.split("\n", 1)[1])


@pytest.mark.parametrize("tasks", [False, True])
def test_a_row_whose_r_is_dead_says_so_in_every_table(tasks: bool, tmp_path: Path) -> None:
    ours = made(blocks=BLOCKS) if tasks else made()
    fabricate(ours, tmp_path, {})
    let_r_die(tmp_path / "fake/runs/equation/marcos/s0")
    results.collect(ours, tmp_path)
    own = (Table.decoding, Table.controls, Table.ablation, Table.scale)
    for table in TASKS if tasks else own:
        assert "MarCos (R dead" in contents(ours, tmp_path, table)["md"], table


def test_a_study_without_other_decodings_says_what_it_lacks(tmp_path: Path) -> None:
    plain = study(evaluation={"tests": ["alpha", "beta"]})
    collected(plain, tmp_path)
    assert "no control of latents: add a decoding" in contents(plain, tmp_path, Table.controls)["md"]
    assert "This study has one decoding only" in contents(plain, tmp_path, Table.decoding)["md"]


def test_controls_are_for_methods_with_latents() -> None:
    runs = made().runs
    assert {"exchanged", "mean_thoughts"} <= runs["text/marcos/s0"].evaluation.decodings.keys()
    assert list(runs["text/cot/s0"].evaluation.decodings) == ["default", "sampled"]


def test_a_further_decoding_asks_for_evaluation_but_not_for_training_or_timing() -> None:
    fewer = {"tests": ["alpha", "beta"], "decodings": {name: DECODINGS[name] for name in ("default", "sampled")}}
    before, after = study(evaluation=fewer).runs, made().runs
    marcos, cot = "text/marcos/s0", "text/cot/s0"
    assert before[marcos].digest("evaluate") != after[marcos].digest("evaluate")
    assert before[cot].digest("evaluate") == after[cot].digest("evaluate")  # the new decoding does not apply to it
    for stage in ("train", "time"):
        assert before[marcos].digest(stage) == after[marcos].digest(stage)


def test_a_control_that_decodes_unlike_default_is_refused() -> None:
    decodings = DECODINGS | {"exchanged": {"thoughts": "exchanged", "tokens": "sample"}}
    with pytest.raises(StudyError, match="`exchanged` is compared with `default`"):
        study(evaluation={"tests": ["alpha"], "decodings": decodings})
