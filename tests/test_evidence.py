"""Our records as evidence on the paper's claims, and the table of claims."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from benchmarks.analysis.measures import MEASURES
from benchmarks.analysis.reading import Analysis, analysed
from benchmarks.files import read_json, write_json, write_parquet
from benchmarks.paper.claims import PaperCell, judge, load_claims
from benchmarks.records import results
from benchmarks.records.results import load_collected
from benchmarks.records.study_records import StudyRecords
from benchmarks.records.summary import Summary, summarise
from benchmarks.studies.rendered import Table
from benchmarks.studies.study import Study, load_study
from benchmarks.tables.evidence import Records, _without_clique, counterparts
from benchmarks.tables.markup import DASH
from benchmarks.tables.render import contents
from fabricate import fabricate, fabricate_analysis, fabricate_run, study
from test_synthetic import repeating, with_draws

CLAIMS = {claim.id: claim for claim in load_claims()}
ROWS = [
    {"id": "cot_sft", "method": "cot_sft"},
    {"id": "codi", "method": "cot_sft", "title": "CODI", "blocks": ["equation"]},
    {"id": "marcos", "method": "marcos"},
]
SHARES = {"cot_sft": (0.2, 0.5, 0.4), "codi": (0.3, 0.5, 0.4), "marcos": (0.8, 0.5, 0.1)}


def made(**changes: Any) -> Study:
    tests = {"tests": ["alpha", "beta", "gamma"], "decodings": {"default": {"seeds": 1}}}
    return study(**{"rows": ROWS, "evaluation": tests} | changes)


def evidence(*studies: Study, folder: Path) -> Records:
    known = [load_collected(each, folder) for each in studies]
    return Records([(records, summarise(records, ["default"])) for records in known])


def row(text: str, sentence: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {sentence}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("results")
    fabricate(made(), folder, SHARES)
    results.collect(made(), folder)
    return contents(made(), folder, Table.claims)


def test_training_is_compared_in_gpu_time(tmp_path: Path) -> None:
    """Some rows train on more GPUs than others."""
    both = []
    for engine in ({}, {"kind": "deepspeed", "gpus": 4}):
        ours, folder = made(rows=[*ROWS[:2], ROWS[2] | {"engine": engine}]), tmp_path / str(len(both))
        fabricate(ours, folder, SHARES)
        results.collect(ours, folder)
        records = evidence(ours, folder=folder)
        cell = PaperCell("main_0.5b", "equation", "marcos", "gsm8k")
        both.append((records.value(cell, "train"), records.value(cell, "accuracy")))
    (seconds, accuracy), (gpu_seconds, same) = both
    assert gpu_seconds == 4 * (seconds or 0) > 0 and same == accuracy


def test_a_warm_start_counts_with_its_own_ranks(tmp_path: Path) -> None:
    rows = [ROWS[0], {"id": "coconut", "method": "coconut", "engine": {"kind": "deepspeed", "gpus": 4}}]
    ours = made(rows=rows)
    fabricate(ours, tmp_path, SHARES)
    results.collect(ours, tmp_path)
    records = evidence(ours, folder=tmp_path)
    cells = [PaperCell("main_0.5b", "equation", row, "gsm8k") for row in ("cot_sft", "coconut")]
    assert [records.value(cell, "train") for cell in cells] == [12.5, 12.5 + 4 * 12.5]


def test_ours_stands_beside_with_a_verdict_of_its_own(files: dict[str, str]) -> None:
    text = files["md"]
    gain = row(text, "4.70 points above CoT-SFT")
    assert gain[3:5] == ["+4.70", "held"] and float(gain[5].removesuffix(" on alpha")) > 40
    assert gain[6] == "not comparable" and "a size, and the setting is not the paper's" in gain[7]
    above = row(text, "more accurate than the other continuous methods")
    assert above[6] == "not held" and "18 of 21 comparisons lack a number" in above[7]
    assert row(text, "trains in less time than every 3B model")[5:7] == ["–", "not comparable"]  # noqa: RUF001
    assert "alpha for GSM8K, beta for SVAMP (4,138)" in text and "main_0.5b from fake (another setting)" in text
    assert "3,138 training rows of MAWPS and ASDiv-A" in text


def test_numbers_of_each_comparison_are_in_the_frame(files: dict[str, str]) -> None:
    frame = pd.read_csv(io.StringIO(files["csv"]))
    line = next(line for line in frame.to_dict("records") if line["claim"] == "gain_on_text")
    assert line["paper"] == pytest.approx(4.70) and line["ours"] > 40 and line["ours_separated"]
    assert set(frame["claim"]) == set(CLAIMS)
    assert json.loads(files["json"])["lines"]


def test_latex_breaks_sentences(files: dict[str, str]) -> None:
    assert "\\begin{tabular}{p{" in files["tex"]


def test_in_the_papers_setting_sizes_are_judged(tmp_path: Path) -> None:
    tests = {"tests": ["gsm8k", "svamp_paper4138", "multiarith"], "decodings": {"default": {"seeds": 1}}}
    ours = made(paper="main_0.5b", evaluation=tests)
    fabricate(ours, tmp_path, SHARES)
    results.collect(ours, tmp_path)
    assert row(contents(ours, tmp_path, Table.claims)["md"], "4.70 points above CoT-SFT")[6] == "held"
    fabricate(ours, tmp_path, {**SHARES, "marcos": (0.22, 0.5, 0.4)})
    results.collect(ours, tmp_path)
    assert row(contents(ours, tmp_path, Table.claims)["md"], "4.70 points above CoT-SFT")[6] == "not held"


def test_analyses_stand_beside_what_the_text_says(tmp_path: Path) -> None:
    ours = made()
    fabricate(ours, tmp_path, SHARES)
    results.collect(ours, tmp_path)
    assert row(contents(ours, tmp_path, Table.claims)["md"], "steps follow R")[5:8] == [
        DASH,
        "not comparable",
        "paper: stated in its text alone: nothing to recompute it from; ours: no run that was analysed shows it",
    ]
    for _, _, spec in analysed(ours):
        fabricate_analysis(spec, tmp_path)
    text = contents(ours, tmp_path, Table.claims)["md"]
    for says, shown, verdict in (
        ("steps follow R", "95.00 %", "not comparable"),  # names a size
        ("each drawn digit", "100.00 %", "held"),
        ("and #### in 1.08", "100.00 %", "not comparable"),
        ("and #### in almost", "100.00 %", "held"),
        ("and answers stay as accurate", "+0.00", "held"),
    ):
        assert row(text, says)[5:7] == [f"{shown} (fake:text/marcos/s0)", verdict]
        assert ("a size, and the setting is not" in row(text, says)[7]) == (verdict == "not comparable")
    assert float(row(text, "a clique of dimensions")[5].split()[0]) == 12.5
    papers = Records([])
    papers.studies = [StudyRecords(ours.model_copy(update={"paper": "main_0.5b"}), tmp_path, {}, {})]
    assert judge(CLAIMS["steering"], papers, papers.in_papers_setting(CLAIMS["steering"])).verdict == "not held"
    assert judge(CLAIMS["one_to_one"], papers, papers.in_papers_setting(CLAIMS["one_to_one"])).verdict == "held"


def test_a_single_dimension_is_no_clique_and_what_it_does_is_told(tmp_path: Path) -> None:
    ours = made()
    fabricate(ours, tmp_path, SHARES)
    results.collect(ours, tmp_path)
    for _, _, spec in analysed(ours):
        fabricate_analysis(spec, tmp_path)
        path = tmp_path / f"fake/runs/{spec.id}/analysis/analysis.json"
        write_json(path, read_json(path) | {"clique": [0], "frequent": [0]})
    text = contents(ours, tmp_path, Table.claims)["md"]
    alone = "fake:text/marcos/s0: no clique, as one dimension alone is active"
    told = "; dimension 0 set by itself gives #### in 50.0 % at 0.5 (as it is: 50.0 %)"
    for says in ("and #### in 1.08", "and #### in almost"):
        assert row(text, says)[5:7] == [DASH, "not comparable"] and f"ours: {alone}{told}" in row(text, says)[7]
    longer = row(text, "a clique of dimensions")
    assert longer[5:7] == [DASH, "not comparable"] and alone in longer[7] and "gives ####" not in longer[7]


def test_answers_that_all_have_the_marker_say_so(tmp_path: Path) -> None:
    ours = made(rows=[ROWS[2]])
    fabricate(ours, tmp_path, SHARES)
    results.collect(ours, tmp_path)
    for _, _, spec in analysed(ours):
        fabricate_analysis(spec, tmp_path)
        path = tmp_path / f"fake/runs/{spec.id}/analysis/interventions.parquet"
        digest = write_parquet(path, pd.read_parquet(path).assign(marked=True))
        record = read_json(path.with_name("analysis.json"))
        write_json(path.with_name("analysis.json"), record | {"files": record["files"] | {"interventions": digest}})
    text = contents(ours, tmp_path, Table.claims)["md"]
    assert (
        "fake:equation/marcos/s0: all answers have ####, so no dimension need say so"
        in row(text, "and #### in 1.08")[7]
    )
    assert row(text, "a clique of dimensions")[5] == "12.50 % (fake:text/marcos/s0)"


def test_hits_by_the_habit_of_repeating_are_no_evidence(tmp_path: Path) -> None:
    long = load_study("long_range")
    with_draws(long, tmp_path, {"1": 1})
    assert judge(CLAIMS["no_bottleneck"], evidence(long, folder=tmp_path)).verdict == "held"
    repeating(long, tmp_path, "k16/marcos/s0")
    found = judge(CLAIMS["no_bottleneck"], evidence(long, folder=tmp_path))
    assert found.verdict == "not comparable" and found.why.endswith("% do: no evidence of memory") and found.values


def tasks(folder: Path, shares: tuple[float, float], **rs: Any) -> Records:
    """Return the records of Random Summation and Random Pairing, each with its own training data and test set.

    ``rs`` changes the block of Random Summation.
    """
    names = {"rs": "rs_n2_k3", "rp": "rp_n2_k3"}
    blocks = [
        {"id": id, "title": id, "data": {"train": test, "form": "lines"}, "tests": [test]} for id, test in names.items()
    ]
    evaluation = {"tests": list(names.values()), "decodings": {"default": {"seeds": 1}}}
    blocks[0] |= rs
    ours = made(blocks=blocks, rows=ROWS[:1], tables=["synthetic"], evaluation=evaluation)
    fabricate(ours, folder, {})
    for spec, share in zip(ours.runs.values(), shares, strict=True):
        fabricate_run(spec, folder / ours.name, (share,))
    results.collect(ours, folder)
    return evidence(ours, folder=folder)


def test_tasks_are_not_compared_by_models_that_are_not_built_alike(tmp_path: Path) -> None:
    deeper = {"backbone": {"overrides": {"num_hidden_layers": 3}}, "training": {"epochs": 10}}
    found = judge(CLAIMS["rs_to_rp"], tasks(tmp_path, (0.9, 0.2), **deeper))
    models = "models of qwen2-tiny (num_hidden_layers 3) and of qwen2-tiny; trained for 10 epochs and for 1 epochs"
    assert (found.verdict, found.why) == ("not comparable", f"different test sets, so no paired test; {models}")
    assert len(found.values) == 1 and found.values[0].number > 50


def test_tasks_are_compared_by_intervals_and_why_names_what_else_differs(tmp_path: Path) -> None:
    records = tasks(tmp_path, (0.9, 0.2), training={"tokens": 1e6})
    found, why = judge(CLAIMS["rs_to_rp"], records), "different test sets, so no paired test"
    assert (found.verdict, found.why) == ("held", f"{why}; trained for 1,000,000 tokens and for 1 epochs")
    close = judge(CLAIMS["rs_to_rp"].model_copy(update={"above": 0.0}), tasks(tmp_path, (0.55, 0.52)))
    assert close.values[0].number > 0 and close.verdict == "not held"
    assert close.why == f"95 % intervals do not separate {close.values[0].place('accuracy')}; {why}"


def test_rows_of_two_studies_have_no_paired_test(tmp_path: Path) -> None:
    rows = {"fake": "icot_si", "other": "marcos_one_shot"}
    studies = [
        made(name=name, tables=["nar" if name == "other" else "main"], rows=[{"id": id, "method": "cot_sft"}])
        for name, id in rows.items()
    ]
    for each in studies:
        fabricate(each, tmp_path, {"icot_si": (0.2,) * 3, "marcos_one_shot": (0.8, 0.8, 0.22)})
        results.collect(each, tmp_path)
    found = judge(CLAIMS["nar"].model_copy(update={"at_least": 0.1}), evidence(*studies, folder=tmp_path))
    assert [value.sure for value in found.values] == [True, True, False] and found.verdict == "not held"
    assert found.why.endswith("different studies, so no paired test")


def test_our_test_sets_are_named_beside_the_papers(files: dict[str, str]) -> None:
    frame = pd.read_csv(io.StringIO(files["csv"])).dropna(subset="ours")
    ours = frame.loc[frame["table"] == "main_0.5b"]
    pairs = set(zip(ours["measure"], ours["test"], ours["ours_test"].fillna(""), strict=True))
    assert ("accuracy", "gsm8k", "alpha") in pairs and ("accuracy", "svamp_paper4138", "beta") in pairs
    assert {own for measure, _, own in pairs if measure == "train"} == {""}, "training has no test set"
    assert row(files["md"], "4.70 points above CoT-SFT")[3] == "+4.70"


def test_too_few_trainings_separate_nothing(tmp_path: Path) -> None:
    several = made(seeds=[0, 1, 2])
    fabricate(several, tmp_path, SHARES)
    for seed in (1, 2):
        (tmp_path / f"fake/runs/equation/codi/s{seed}/evaluate.json").unlink()
    results.collect(several, tmp_path)
    records = evidence(several, folder=tmp_path)
    marcos, codi, sft = (PaperCell("main_0.5b", "equation", row, "gsm8k") for row in ("marcos", "codi", "cot_sft"))
    assert (records.separated(marcos, sft), records.unpaired(marcos, sft)) == (True, None)
    assert records.separated(marcos, codi) is False
    assert records.unpaired(marcos, codi) == "1 and 3 trainings, of which at least 3 are needed for a test"


def analysis_of(correct: tuple[float, ...], marked: tuple[float, ...]) -> Analysis:
    """Return an analysis of two questions, as they are and with a clique of two dimensions at 0, 0.1 and 0.5.

    ``correct`` and ``marked`` are the shares of right and of marked answers in each setting.
    """
    settings = ("", "1, 2 = 0", "1, 2 = 0.1", "1, 2 = 0.5")
    columns = {"value": (None, 0.0, 0.1, 0.5), "correct": correct, "marked": marked, "tokens": (5.0,) * 4}
    lines = [
        {"setting": name, "dims": "1,2" if name else None} | {field: values[i] for field, values in columns.items()}
        for i, name in enumerate(settings)
    ]
    record = SimpleNamespace(clique=[1, 2])
    return cast(Analysis, SimpleNamespace(record=record, frame=lambda name: pd.DataFrame(lines)))


def test_what_a_clique_does_to_accuracy_is_its_largest_effect() -> None:
    some = (0.5, 1.0, 1.0, 0.0)
    assert MEASURES["as_accurate"](analysis_of((0.4, 0.1, 0.3, 0.5), some)) == pytest.approx(-0.3)
    assert not CLAIMS["clique_accuracy"].met(-5.83, measured=True)


def test_a_clique_that_changes_nothing_shows_nothing_of_accuracy() -> None:
    idle = analysis_of((0.4, 0.4, 0.4, 0.4), (1.0, 1.0, 1.0, 0.995))
    assert MEASURES["as_accurate"](idle) is None
    told = _without_clique(idle, "as_accurate")
    assert told == "setting its clique changes length and #### by less than 1 %, so nothing is shown"


def test_a_marker_that_all_answers_have_or_none_is_not_switched() -> None:
    right = (0.4,) * 4
    assert MEASURES["still_marked"](analysis_of(right, (0.5, 1.0, 0.9, 0.0))) == 0.9
    assert MEASURES["unmarked"](analysis_of(right, (0.5, 1.0, 0.9, 0.1))) == 0.9
    for share in (0.0, 1.0):
        never = analysis_of(right, (share, 1.0, 1.0, 0.0))
        assert MEASURES["still_marked"](never) is None and MEASURES["unmarked"](never) is None


def test_a_length_is_compared_with_that_length_alone(tmp_path: Path) -> None:
    """The paper copies at K = 16, 32 and 64. Of runs at 4, 8 and 16, only the last one has a counterpart."""
    tests = ["copy_k4", "copy_k8", "copy_k16"]
    blocks = [
        {"id": test[5:], "title": test, "data": {"train": test, "form": "lines"}, "tests": [test]} for test in tests
    ]
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}]
    evaluation = {"tests": tests, "decodings": {"default": {"seeds": 1}}}
    long = made(blocks=blocks, rows=rows, tables=["longrange", "claims"], evaluation=evaluation)
    records = Records([])
    records.by_table["long_range"] = [(StudyRecords(long, tmp_path, {}, {}), cast(Summary, None))]
    assert counterparts("long_range", long) == {"k16": "copy_k16"}
    found = judge(CLAIMS["long_range"], records)
    assert (found.verdict, found.why) == ("not comparable", "K=32 and K=64: not run with these rows")
    assert counterparts("main_0.5b", made())["gsm8k"] == "alpha"


def test_records_of_studies_beside_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"id": "marcos", "method": "marcos"},
        {"id": "marcos_causal", "method": "marcos", "options": {"attention": "causal"}},
    ]
    other = made(name="other", tables=["ablation"], rows=rows)
    main = made(beside=["other", "never_run"])
    known = {"other": other, "never_run": made(name="never_run")}
    monkeypatch.setattr("benchmarks.tables.claims.load_study", known.__getitem__)
    for each in (main, other):
        fabricate(each, tmp_path, {**SHARES, "marcos_causal": (0.1, 0.1, 0.9)})
        if each is other:
            path = tmp_path / "other/runs/equation/marcos_causal/s0/train.json"
            write_json(
                path,
                read_json(path)
                | {"stages": [{"warnings": ["R is dead: no dimension is active"], "dead_latents": True}]},
            )
        results.collect(each, tmp_path)
    text = contents(main, tmp_path, Table.claims)["md"]
    found = row(text, "bidirectional thinking is better everywhere")
    assert found[6] == "not held" and "2 of 3" in found[7] and "equation gamma (for multiarith) marcos" in found[7]
    assert found[7].endswith("; R is dead in equation marcos_causal") and text.count("R is dead") == 1
    assert "**Beside, other:** qwen2-tiny; tokenizer: byte-level BPE of at most 512" in text and "never_run" not in text
