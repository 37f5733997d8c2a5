"""The rendered main table, in all four formats."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.files import read_json, write_json
from benchmarks.paper.numbers import paper_table, paper_tables
from benchmarks.records import results
from benchmarks.records.provenance import provenance
from benchmarks.records.results import StudyRecords
from benchmarks.scoring import SCORERS
from benchmarks.studies.study import Study
from benchmarks.tables.markup import DASH
from fabricate import ACCURACY, ENVIRONMENT, collected, contents, fabricate, let_r_die, study, update_record

PAPER_TESTS = {"tests": ["gsm8k", "multiarith"], "decodings": {"default": {"seeds": 2}}}


def rendered(made: Study, folder: Path, accuracy: Any = ACCURACY) -> dict[str, str]:
    collected(made, folder, accuracy)
    return contents(made, folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the table of a study in which one run is missing and one was not timed."""
    made, folder = study(), tmp_path_factory.mktemp("results")
    fabricate(made, folder)
    (folder / "fake/runs/equation/cot/s0/time.json").unlink()
    for name in ("train", "evaluate", "time"):
        (folder / f"fake/runs/text/marcos/s0/{name}.json").unlink()
    results.collect(made, folder)
    return contents(made, folder)


def cells(text: str, title: str, heading: str | None = None) -> list[str]:
    """Return the cells of the first Markdown line with this title, after a section's heading."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    start = 0 if heading is None else next(i for i, line in enumerate(lines) if line[0] == f"***{heading}***")
    return next(line[1:] for line in lines[start:] if line[0].removeprefix("&nbsp;&nbsp;&nbsp;") == title)


def header(text: str) -> list[str]:
    """Return the headings of the first Markdown table."""
    return [cell.strip() for cell in text.splitlines()[2].strip("|").split("|")]


def test_layout_is_the_papers(files: dict[str, str]) -> None:
    text = files["md"]
    assert header(text)[:3] == ["Model", "Train (s)", "Alpha & Co 100% Acc (%)"]
    assert header(text)[-2:] == ["Params", "Training FLOPs"]
    order = ["***Training data: text***", "CoT-SFT", "MarCos", "w/o R", "(controls", "***Training data: equation***"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "&nbsp;w/o R" in text  # an ablation is indented under its row


def test_a_row_that_was_trained_to_its_end_with_something_wrong_has_a_note(tmp_path: Path) -> None:
    made = study()
    fabricate(made, tmp_path)
    path = tmp_path / "fake/runs/equation/marcos/s0/train.json"
    (stage,) = read_json(path)["stages"]
    update_record(path, stages=[stage | {"warnings": ["R is dead"], "dead_latents": True}, stage])
    results.collect(made, tmp_path)
    text = contents(made, tmp_path)["md"]
    assert "equation/marcos/s0: R is dead" in text
    titles = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| MarCos")]
    # In the accuracies, in the training costs, and against the control
    assert titles.count("MarCos (R dead)<sup>1</sup>") == 3
    assert "MarCos (R dead) (mean R)" in text and "MarCos" in titles


def test_a_row_whose_r_is_dead_for_some_seeds_says_for_how_many(tmp_path: Path) -> None:
    made = study(seeds=[0, 1])
    fabricate(made, tmp_path)
    let_r_die(tmp_path / "fake/runs/equation/marcos/s1")
    results.collect(made, tmp_path)
    assert "| MarCos (R dead in 1 of 2 trainings)<sup>1</sup>" in contents(made, tmp_path)["md"]


def test_a_single_pass_has_no_spread(tmp_path: Path) -> None:
    made = study(timing={"repeats": 1})
    fabricate(made, tmp_path)
    for path in (tmp_path / "fake/runs").rglob("time.json"):
        record = read_json(path)
        for times in (times for modes in record["tests"].values() for times in modes.values()):
            times["seconds"] = [0.0039]
        write_json(path, record)
    results.collect(made, tmp_path)
    text = contents(made, tmp_path)["md"]
    assert cells(text, "CoT-SFT", "Training data: text")[2] == "0.0039" and "± 0.00" not in text
    assert "in batches of 64; one pass. A method" in " ".join(text.split()) and "repeats ±" not in text
    assert "median of 5 repeats ± half their range" in rendered(study(), tmp_path / "five")["md"]


def test_times_that_cannot_be_compared_are_named(files: dict[str, str], tmp_path: Path) -> None:
    """They were measured beside other work, on a machine that was slow, or on different machines."""
    for note in ("Other processes took", "fixed piece of work", "different kinds"):
        assert note not in files["md"]
    fabricate(study(), tmp_path)
    other = "NVIDIA H200"
    for run, changes in {
        "text/marcos/s0": {"other_load": 0.124, "pace_seconds": 0.3, "environment": ENVIRONMENT | {"device": other}},
        "text/cot/s0": {"other_load": 0.01, "pace_seconds": 0.1},
        "equation/cot/s0": {"pace_seconds": 0.15},
    }.items():
        update_record(tmp_path / f"fake/runs/{run}/time.json", **changes)
    results.collect(study(), tmp_path)
    text = " ".join(contents(study(), tmp_path)["md"].split())
    assert "so that their Train and Test may be too long: text/marcos/s0 (12 %)." in text
    slow = (
        "beside the row of its machine where it was fastest, so that their Train and Test may be too long: "
        "equation/cot/s0 (1.5 times)."
    )
    assert slow in text
    told = text.partition("cannot be compared between rows of one and rows of another. ")[2]
    machines = told.partition(". ")[0].split("; ")
    assert len(machines) == 2 and "text/cot/s0" in machines[0]
    assert machines[1].startswith(other) and machines[1].endswith(": text/marcos/s0")


def test_strict_is_what_the_scorer_asks_for(files: dict[str, str]) -> None:
    assert all(scorer.strict_means.startswith("right, and ") for scorer in SCORERS.values())
    assert f"Strict: {SCORERS['number'].strict_means}." in files["md"]


def test_rows_stand_against_the_control_of_their_block(files: dict[str, str]) -> None:
    found = json.loads(files["json"])["against_controls"]
    family = [one for one in found if (one["block"], one["test"]) == ("equation", "alpha")]
    assert [(one["row"], one["control"]) for one in family] == [
        ("cot", "oracle"),
        ("marcos", "oracle"),
        ("marcos_wo_r", "oracle"),
    ]
    assert all(one["n"] == 200 and one["p_value"] <= one["p_holm"] < 0.001 for one in family)
    last = files["md"].split("## Against the control")[1]
    shown = cells(last, "MarCos", "Training data: equation: minus Gold answers")
    assert -35 < float(shown[0]) < -10 and shown[1] == "&lt;0.001" and len(shown) == 4
    assert shown[0] == f"{100 * family[1]['difference']:+.2f}"
    assert set(cells(last, "MarCos", "Training data: text: minus Gold answers")) == {"–"}  # noqa: RUF001
    assert "Gold answers" not in [line.split("|")[1].strip() for line in last.splitlines() if line[:1] == "|"]


def test_without_a_control_there_is_no_table_against_it(tmp_path: Path) -> None:
    rows = [{"id": "cot", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}]
    files = rendered(study(rows=rows), tmp_path)
    assert "gainst the control" not in files["md"] and json.loads(files["json"])["against_controls"] == []


def test_bold_only_where_the_test_separates(files: dict[str, str]) -> None:
    text = files["md"]
    marcos, cot = (cells(text, title, "Training data: equation") for title in ("MarCos", "CoT-SFT"))
    assert re.fullmatch(r"\*\*\d\d\.\d\d\*\* ± \d\.\d\d", marcos[1])  # 80 % against 30 %: separated, over 3 seeds
    assert all(row[3].endswith("<sup>=</sup>") for row in (marcos, cot))  # 50 % each: tied
    assert "**" not in marcos[3]
    controls = cells(text, "Gold answers", "Training data: equation (controls, never ranked)")
    assert controls[1] == "100.00 (det.)"  # more accurate, but neither bold nor a rival of MarCos


def test_what_has_not_run_says_why(files: dict[str, str]) -> None:
    text = files["md"]
    missing = cells(text, "MarCos", "Training data: text")
    assert re.fullmatch(r"not run<sup>\d</sup>", missing[0]) and set(missing[1:]) == {"–"}  # noqa: RUF001
    number = missing[0][12]
    assert f"<sup>{number}</sup> text/marcos/s0: no train.json; no evaluate.json; no time.json" in text
    untimed = cells(text, "CoT-SFT", "Training data: equation")
    assert untimed[0].startswith("–<sup>") and "(det.)" in untimed[1]  # noqa: RUF001
    assert "equation/cot/s0: no time.json" in text


def test_details(files: dict[str, str]) -> None:
    text = files["md"].split("## Details by test set")[1]
    row = cells(text, "MarCos", "Training data: equation · Alpha & Co 100%")
    assert row[0] == "200" and row[1].endswith("(n=180)") and row[5] == "3 decoding seeds"
    low, high = (float(part) for part in row[4].split(" to "))
    assert 70 < low < 80 < high < 90
    assert row[6:] == ["10.00", "0.25", "4.0", "400", "100", "4.00 ± 1.00"]
    assert re.search(r"\| MarCos \(mean R\): \d\d\.\d\d %", text)  # decodings besides the default
    assert "w/o R" in text and "w/o R (mean R)" not in text  # it draws nothing


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        (
            {"backbone": {"overrides": {"hidden_size": 8}}},
            "qwen2-tiny (hidden_size 8); tokenizer: byte-level BPE of at most 512 tokens",
        ),
        (
            {"backbone": {"pretrained": "some/model", "revision": "12ab"}},
            "some/model (12ab); tokenizer: byte-level BPE",
        ),
        ({"tokenizer": {"pretrained": "some/words", "revision": "12ab"}}, "qwen2-tiny; tokenizer: some/words (12ab)"),
        ({"tokenizer": {"trained": "words"}}, "qwen2-tiny; tokenizer: one token per word of the training split"),
    ],
)
def test_the_model_is_told_with_all_that_a_study_changes(changes: dict[str, Any], model: str) -> None:
    assert provenance(StudyRecords(study(**changes), Path(), {}, {}))["Model"].startswith(model)


def test_footer(files: dict[str, str]) -> None:
    text = files["md"]
    for part in (
        "Example CPU",
        "torch 2.13.0",
        "0123456789",
        "decoding default: 3",
        "fake. Nothing was trained.",
    ):
        assert part in text
    assert "Alpha & Co 100% (alpha/test, bbbbbbbbbbbb): 20 of 200 questions also in the training data" in text
    assert "a vocabulary of 1,402 tokens" in text
    assert "benchmarks/paper/numbers.yaml" in text and "For reference" not in text


def test_latex_is_booktabs(files: dict[str, str]) -> None:
    text = files["tex"]
    for rule in ("\\toprule", "\\midrule", "\\cmidrule(lr){3-4}", "\\bottomrule"):
        assert rule in text
    assert "\\textbf{" in text and "Alpha \\& Co 100\\%" in text and "Beta\\_set" in text
    assert not re.search(r"(?<!\\)[%#_]", text.split("\n", 1)[1])
    assert not re.search("[^\x00-\x7f]", text)
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    for name in ("table*", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 4
    for tabular in re.findall(r"\\begin{tabular}{l(r+)}(.*?)\\end{tabular}", text, re.DOTALL):
        rows = [row for row in tabular[1].splitlines() if row.endswith(r"\\") and "multicolumn" not in row]
        assert rows and all(len(re.findall(r"(?<!\\)&", row)) == len(tabular[0]) for row in rows)


def test_csv_and_json_hold_the_same_frame(files: dict[str, str]) -> None:
    table = pd.read_csv(io.StringIO(files["csv"]))
    keys = ["block", "row", "decoding", "test"]
    content = json.loads(files["json"])
    assert len(table) == len(content["lines"]) == 24
    line = next(e for e in content["lines"] if [e[key] for key in keys] == ["equation", "marcos", "default", "alpha"])
    assert line["mark"] == "best" and line["low"] < line["accuracy"] < line["high"]
    assert table.set_index(keys).loc[("equation", "marcos", "default", "alpha"), "accuracy"] == line["accuracy"]
    pairs = [pair for pair in content["paired_tests"] if (pair["block"], pair["test"]) == ("equation", "alpha")]
    assert len(pairs) == 3 and all(pair["n"] == 200 for pair in pairs)  # without controls


def test_several_training_seeds(tmp_path: Path) -> None:
    made, few = study(seeds=[0, 1, 2]), "at least 3 trainings, or one each"
    collected(made, tmp_path)
    assert few not in contents(made, tmp_path)["md"]
    for seed in (1, 2):
        (tmp_path / f"fake/runs/text/cot/s{seed}/evaluate.json").unlink()
    results.collect(made, tmp_path)
    rendered = contents(made, tmp_path)
    text, tests = rendered["md"], json.loads(rendered["json"])["paired_tests"]
    assert {test["kind"] for test in tests} == {"trainings", "untested"} and text.count(few) == 1
    assert {test["p_holm"] for test in tests if test["kind"] == "untested"} == {None}
    assert {test["block"] for test in tests if test["kind"] == "untested"} == {"text"}
    assert "generalise to other questions and to other training seeds" in text and "(here 3)" in text
    assert re.search(r"± \d+\.\d\d", cells(text, "w/o R", "Training data: text")[1])  # deterministic, three trainings
    lacking = cells(text, "CoT-SFT", "Training data: text")[1]
    assert "±" not in lacking and "<sup>" in lacking and "text/cot/s1: no evaluate.json" in text
    assert "over the 3 training seeds" in text
    details = text.split("## Details by test set")[1]
    column = header(details).index("Each training (%)") - 1
    each = cells(details, "CoT-SFT", "Training data: text · Alpha & Co 100%")[column].split(", ")
    assert each == [f"{float(lacking.split()[0]):.1f}", DASH, DASH]


def test_gpu_hours_are_of_the_ranks_that_each_run_was_trained_on(tmp_path: Path) -> None:
    """A warm start was trained on two ranks and its child on four; the study says eight by now."""
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "coconut", "method": "coconut"}]
    made = study(rows=rows, engine={"kind": "deepspeed", "gpus": 8})
    fabricate(made, tmp_path)
    for row, gpus in (("cot_sft", 2), ("coconut", 4)):
        path = tmp_path / f"fake/runs/text/{row}/s0/train.json"
        record = read_json(path)
        record["environment"]["device"], record["spec"]["engine"]["gpus"] = "NVIDIA H200", gpus
        write_json(path, record | {"wall_seconds": 1800})
    results.collect(made, tmp_path)
    _, training = contents(made, tmp_path)["md"].split("## Training as it ran")
    assert [cells(training, title)[2] for title in ("CoT-SFT", "Coconut")] == ["1.00", "3.00"]


def test_a_time_of_some_questions_says_of_how_many(tmp_path: Path) -> None:
    text = rendered(study(timing={"questions": 128}), tmp_path)["md"]
    assert "Test of 128 (s)" in text and "Test (s)" not in text.split("\n\n")[1]


def test_a_study_in_the_papers_setting_has_the_papers_numbers_beside(tmp_path: Path) -> None:
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}]
    made = study(paper="main_0.5b", rows=rows, evaluation=PAPER_TESTS, deviations=["one GPU, not eight"])
    text = rendered(made, tmp_path)["md"]
    assert cells(text, "paper", "Training data: text")[:3] == ["0.31 ± 0.01", "13.27 ± 0.59", "80.95 ± 5.78"]
    assert "Train (h)" in text and "tabel:main in the paper's LaTeX source" in text and "one GPU, not eight" in text
    assert "For reference" not in text


def test_numbers_that_others_report_say_whose_they_are(tmp_path: Path) -> None:
    text = rendered(study(paper="gpt2", rows=[{"id": "codi", "method": "codi"}], evaluation=PAPER_TESTS), tmp_path)[
        "md"
    ]
    assert "43.70" in cells(text, "paper<sup>1</sup>", "Training data: equation")
    assert "CODI in its authors' paper: arXiv 2502.21074; MultiArith on the 180 questions" in text
    assert "report, each in its place), GPT-2" in text and "LaTeX" not in text and "its ± covers" not in text


def test_a_study_on_real_tests_has_the_papers_numbers_apart(tmp_path: Path) -> None:
    text = rendered(study(evaluation=PAPER_TESTS), tmp_path)["md"]
    main, reference = text.split("## For reference")
    assert "(0.5B, 385K samples, 8 H200 GPUs), not this study's" in reference.splitlines()[0]
    assert cells(reference, "MarCos", "Training data: equation")[1] == "24.11 ± 0.97"
    assert "24.11" not in main and "sparsity" not in reference


def test_a_study_that_has_not_run_is_a_table_too(tmp_path: Path) -> None:
    results.collect(study(), tmp_path)
    text = contents(study(), tmp_path)["md"]
    assert cells(text, "MarCos")[0].startswith("not run<sup>") and "not prepared" in text


def test_times_of_a_column_have_one_unit(tmp_path: Path) -> None:
    made = study()
    fabricate(made, tmp_path)
    path = tmp_path / "fake/runs/text/marcos/s0/time.json"
    record = read_json(path)
    record["train"]["phases"]["phase 1"]["epoch_seconds"] = 7200.0
    write_json(path, record)
    results.collect(made, tmp_path)
    text = contents(made, tmp_path)["md"]
    assert "Train (h)" in text and cells(text, "MarCos", "Training data: text")[0] == "2.00"
    assert cells(text, "CoT-SFT", "Training data: text")[0] == "0.0035"


def test_the_papers_tables_are_complete() -> None:
    known = paper_tables()
    elsewhere = known.pop("gpt2")
    assert set(known) == {"main_0.5b", "main_3b", "pretrained", "synthetic", "ablation", "one_shot", "long_range"}
    assert [len(block.rows) for block in known["main_0.5b"].blocks.values()] == [4, 8]
    assert "codi" not in known["main_3b"].blocks["equation"].rows  # it is a comment in the source
    marcos = known["main_0.5b"].blocks["equation"].rows["marcos"].tests["svamp_paper4138"]
    assert (marcos.accuracy.mean, marcos.accuracy.spread) == (27.77, 0.32)
    assert marcos.seconds is not None and marcos.seconds.mean == 34.02
    for table in known.values():
        for row in (row for block in table.blocks.values() for row in block.rows.values()):
            assert row.tests.keys() == table.tests.keys()
    assert known["synthetic"].rows("rs") == {} and "cot_sft_3b" not in known["synthetic"].rows("all")
    assert max(map(len, known["main_0.5b"].tests.values())) < 15  # they are headings of columns
    with pytest.raises(ValueError, match="no table 'main'"):
        paper_table("main")
    assert "LaTeX" not in elsewhere.place
    assert all(row.note and row.tests.keys() <= elsewhere.tests.keys() for row in elsewhere.rows("equation").values())
    assert elsewhere.rows("equation")["codi"].tests.keys() == elsewhere.tests.keys()
