"""The paper's claims, from its own numbers and from a study's records."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pandas as pd
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from benchmarks import results
from benchmarks.analysis.measures import MEASURES
from benchmarks.analysis.reading import Analysis, analysed
from benchmarks.claims import Cell, Claim, Measure, Paper, checked, judge, load_claims
from benchmarks.cli import app
from benchmarks.files import read_json, write_json, write_parquet
from benchmarks.markup import DASH
from benchmarks.results import load_collected
from benchmarks.study import Study, load_study
from benchmarks.summary import Summary, summarise
from benchmarks.tables import Table
from benchmarks.tables.claims import paper_alone
from benchmarks.tables.evidence import Records, counterparts
from benchmarks.tables.render import contents
from fabricate import fabricate, fabricate_analysis, study
from test_synthetic import repeating, with_draws

CLAIMS = {claim.id: claim for claim in load_claims()}
CELLS = {"table": "main_0.5b", "block": "equation", "row": "marcos", "against": ["cot_sft", "codi"]}
ROWS = [
    {"id": "cot_sft", "method": "cot_sft"},
    {"id": "codi", "method": "cot_sft", "title": "CODI", "blocks": ["equation"]},
    {"id": "marcos", "method": "marcos"},
]
SHARES = {"cot_sft": (0.2, 0.5, 0.4), "codi": (0.3, 0.5, 0.4), "marcos": (0.8, 0.5, 0.1)}


class Given:
    """A source whose numbers are written down: by row and test set."""

    measured: ClassVar = True

    def __init__(
        self, numbers: dict[tuple[str, str], float], separated: bool | None = None, reason: str | None = None
    ) -> None:
        self.numbers, self.sure, self.reason = numbers, separated, reason

    def analysed(self, claim: Claim) -> tuple[float, str] | None:
        return None

    def unanalysed(self, claim: Claim) -> str:
        return "nothing was analysed"

    def value(self, cell: Cell, measure: Measure) -> float | None:
        return self.numbers.get((cell.row, cell.test))

    def separated(self, a: Cell, b: Cell) -> bool | None:
        return self.sure

    def test(self, cell: Cell) -> str:
        return f"own_{cell.test}"

    def trivial(self, cell: Cell) -> str | None:
        return self.reason if cell.row == "marcos" else None


def claim(**fields: Any) -> Claim:
    cells = CELLS | {key: fields.pop(key) for key in ("tests", "against") if key in fields}
    return Claim.model_validate({"id": "a", "place": "1", "says": "so", "cells": [cells]} | fields)


@pytest.mark.parametrize(
    ("id", "values", "verdict"),
    [
        ("gain_on_text", [4.70], "held"),
        ("above_best_latent", [8.04], "held"),
        ("out_of_domain", [1.53, 2.30], "held"),
        ("over_10_times_3b_text", [10.12, 15.75, 9.86], "not held"),
        ("same_accuracy", [5.31, 0.15, 0.23], "held"),
        ("deep_on_equations", [2.92, 1.07, 3.79], "held"),
        ("parallel_thinking", [49.8], "held"),
        ("no_bottleneck", [-4.3], "not held"),
        ("nar", [-0.56, 4.36, 8.79], "held"),
        ("rs_to_rp", [41.0], "held"),
        ("non_trivial", [8.8, 3.2], "held"),
        ("steering", [100], "not comparable"),  # its text says so, and no table
        ("clique", [44.62], "not comparable"),
    ],
)
def test_the_papers_numbers_are_recomputed(id: str, values: list[float], verdict: str) -> None:
    finding = judge(CLAIMS[id], Paper())
    assert [round(value.number, 2) for value in finding.values] == values
    assert finding.verdict == verdict


def test_speed_up_of_15_7_is_one_cell_of_twelve() -> None:
    finding = judge(CLAIMS["up_to_15.7_times"], Paper())
    assert finding.verdict == "held" and len(finding.values) == 12
    best = max(finding.values, key=lambda value: value.number)
    assert (best.cell.table, best.cell.block, best.cell.test) == ("main_3b", "text", "svamp_paper4138")
    assert best.number == pytest.approx(537.78 / 34.14)


def test_a_claim_that_fails_names_where() -> None:
    assert judge(CLAIMS["on_par"], Paper()).why == "5 of 6; not text multiarith marcos against cot_sft (-1.53)"
    assert judge(CLAIMS["over_10_times_3b_text"], Paper()).why.endswith("(9.86)")


def test_claims_without_cells_say_why() -> None:
    for id in ("initialisation", "tau", "one_to_one", "clique", "clique_accuracy", "clique_marked"):
        finding = judge(CLAIMS[id], Paper())
        assert finding.verdict == "not comparable" and len(finding.why) > 10


def test_training_time_is_counted_once_for_all_test_sets() -> None:
    finding = judge(CLAIMS["trains_faster_than_some"], Paper())
    assert len(finding.values) == 5 and finding.why == "2 of 5"


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"above": 0}, "not held"),
        ({"above": 0, "judge": "most"}, "held"),
        ({"above": 0, "versus": "best"}, "not held"),
        ({"above": 8, "judge": "some"}, "held"),
        ({"equals": 9, "judge": "largest"}, "held"),
        ({"at_least": -2}, "held"),
        ({"above": 1, "measure": "test"}, "not held"),
        ({"above": 0.05, "measure": "test"}, "held"),
        ({"above": 0.08, "measure": "test"}, "not held"),  # 0.1 is so near that it may be noise
    ],
)
def test_readings(fields: dict[str, Any], verdict: str) -> None:
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 12.0, ("codi", "gsm8k"): 3.0}
    numbers |= {("marcos", "multiarith"): 10.0, ("cot_sft", "multiarith"): 9.0, ("codi", "multiarith"): 1.0}
    assert judge(claim(tests=["gsm8k", "multiarith"], **fields), Given(numbers)).verdict == verdict


def test_a_difference_that_is_not_separated_does_not_count() -> None:
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 9.0}
    one = claim(tests=["gsm8k"], against=["cot_sft"], above=0)
    assert judge(one, Given(numbers, separated=True)).verdict == "held"
    unsure = judge(one, Given(numbers, separated=False))
    assert unsure.verdict == "not held" and unsure.why.startswith("paired tests do not separate equation own_gsm8k")


def test_a_ratio_of_times_that_may_be_noise_does_not_count() -> None:
    one = claim(tests=["gsm8k"], against=["cot_sft"], above=1, measure="test")
    slow, slower = ({("marcos", "gsm8k"): 1.0, ("cot_sft", "gsm8k"): seconds} for seconds in (1.7, 1.8))
    unsure = judge(one, Given(slow))
    assert unsure.verdict == "not held" and "another measurement may turn round equation own_gsm8k" in unsure.why
    assert judge(one, Given(slower)).verdict == "held"


def test_a_size_is_equal_in_print_and_reached_when_measured() -> None:
    one = claim(tests=["gsm8k"], against=["cot_sft"], equals=4.7)
    assert [one.met(value, measured=False) for value in (4.69, 4.704, 4.71)] == [False, True, False]
    assert [one.met(value, measured=True) for value in (4.69, 4.704, 9.0)] == [False, True, True]


def test_the_largest_has_to_be_separated() -> None:
    numbers = {("marcos", test): 10.0 for test in ("gsm8k", "multiarith")}
    numbers |= {("cot_sft", "gsm8k"): 9.0, ("cot_sft", "multiarith"): 6.0}
    one = claim(tests=["gsm8k", "multiarith"], against=["cot_sft"], at_least=3, judge="largest")
    assert judge(one, Given(numbers, separated=True)).verdict == "held"
    unsure = judge(one, Given(numbers, separated=False))
    assert unsure.verdict == "not held" and "do not separate equation own_multiarith" in unsure.why


def test_a_tie_is_not_worse() -> None:
    numbers = {("marcos", "gsm8k"): 9.5, ("cot_sft", "gsm8k"): 10.0}
    tied = Given(numbers, separated=False)
    assert judge(claim(tests=["gsm8k"], against=["cot_sft"], at_least=-1), tied).verdict == "held"
    assert judge(claim(tests=["gsm8k"], against=["cot_sft"], at_least=-0.1), tied).verdict == "not held"
    ahead = Given(numbers | {("marcos", "gsm8k"): 12.0}, separated=False)
    assert judge(claim(tests=["gsm8k"], against=["cot_sft"], at_least=1), ahead).verdict == "not held"


def test_what_is_missing_is_said_and_sizes_need_the_papers_setting() -> None:
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 9.0}
    assert judge(claim(tests=["gsm8k"], above=0), Given(numbers)).why == "1 of 2 comparisons lack a number"
    assert judge(claim(tests=["gsm8k"], above=0), Given({})).verdict == "not comparable"
    sized = judge(claim(tests=["gsm8k"], at_least=0.5, size=True), Given(numbers), same_setting=False)
    assert sized.verdict == "not comparable" and sized.values


def test_what_names_no_size_is_judged_in_any_setting() -> None:
    numbers = {("marcos", "svamp_paper4138"): 2.0, ("cot_sft", "svamp_paper4138"): 46.0}
    assert judge(CLAIMS["without_loss"], Given(numbers, separated=True), same_setting=False).verdict == "not held"
    numbers["cot_sft", "svamp_paper4138"] = 1.0
    assert judge(CLAIMS["without_loss"], Given(numbers, separated=True), same_setting=False).verdict == "held"


def test_the_same_is_neither_more_nor_less() -> None:
    one = claim(tests=["gsm8k"], against=["cot_sft"], within=1)
    verdicts = [
        judge(one, Given({("marcos", "gsm8k"): number, ("cot_sft", "gsm8k"): 10.0}, separated=False)).verdict
        for number in (8.9, 9.1, 10.9, 11.1)
    ]
    assert verdicts == ["not held", "held", "held", "not held"]


def test_a_number_that_is_no_evidence_bears_nothing() -> None:
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 9.0}
    found = judge(claim(tests=["gsm8k"], above=0), Given(numbers, separated=True, reason="it says one thing only"))
    assert (found.verdict, found.why) == ("not comparable", "it says one thing only") and found.values


def test_training_has_no_test_set() -> None:
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 5.0, ("codi", "gsm8k"): 20.0}
    found = judge(claim(measure="train", above=1), Given(numbers))
    assert found.why == "1 of 2; not equation marcos against cot_sft (0.50)"


def test_a_row_that_the_paper_does_not_print_is_judged_for_ours_alone() -> None:
    xavier = CLAIMS["initialisation"]
    assert judge(xavier, Paper()).why == "its table has no such row"
    tests = ("gsm8k", "svamp_paper4138", "multiarith")
    numbers = {(row, test): 10.0 + (row == "marcos") * 5 for row in ("marcos", "marcos_xavier") for test in tests}
    assert judge(xavier, Given(numbers, separated=True), same_setting=False).verdict == "not held"
    with pytest.raises(ValueError, match="names cells that table"):
        checked(xavier.model_copy(update={"unprinted": ()}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"above": 0, "equals": 1},
        {"above": 0, "without": "it has cells"},
        {"above": 0, "analysis": "steering"},
        {"above": 0, "printed": 1},
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="needs cells and one bound"):
        claim(**fields)


def test_the_list_has_what_the_abstract_and_the_text_say() -> None:
    assert len(CLAIMS) == len(load_claims()) > 35
    said = " ".join(claim.says for claim in load_claims())
    for number in ("10 times", "15.7", "4.70", "8.04", "2.30", "100 %", "44.62", "3.2", "1.8", "10.0"):
        assert number in said


def test_the_papers_numbers_alone_make_a_table() -> None:
    lines = paper_alone().grids[0].sections[0][1]
    assert len(lines) == len(CLAIMS)
    done = CliRunner().invoke(app, ["claims"])
    assert done.exit_code == 0 and "4.70 points above CoT-SFT" in done.output and "How it was made" not in done.output


def made(**changes: Any) -> Study:
    tests = {"tests": ["alpha", "beta", "gamma"], "decodings": {"default": {"seeds": 1}}}
    return study(**{"rows": ROWS, "evaluation": tests} | changes)


def row(text: str, sentence: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {sentence}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("results")
    fabricate(made(), folder, SHARES)
    results.collect(made(), folder)
    return contents(made(), folder, Table.claims)


def test_ours_stands_beside_with_a_verdict_of_its_own(files: dict[str, str]) -> None:
    text = files["md"]
    gain = row(text, "4.70 points above CoT-SFT")
    assert gain[3:5] == ["+4.70", "held"] and float(gain[5]) > 40
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
        ("steps follow R", "95.00 %", "not comparable"),  # a size
        ("each drawn digit", "100.00 %", "held"),
        ("and #### in 1.08", "100.00 %", "not comparable"),
        ("and #### in almost", "100.00 %", "held"),
        ("and answers stay as accurate", "+0.00", "held"),
    ):
        assert row(text, says)[5:7] == [f"{shown} (fake:text/marcos/s0)", verdict]
        assert ("a size, and the setting is not" in row(text, says)[7]) == (verdict == "not comparable")
    assert float(row(text, "a clique of dimensions")[5].split()[0]) == 12.5
    papers = Records([], tmp_path)
    papers.studies = [ours.model_copy(update={"paper": "main_0.5b"})]
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
    summary = summarise(long, load_collected(long, tmp_path), tmp_path, ["default"])
    records = Records([(long, summary)], tmp_path)
    assert judge(CLAIMS["no_bottleneck"], records).verdict == "held"
    repeating(long, tmp_path, "k16/marcos/s0")
    found = judge(CLAIMS["no_bottleneck"], records)
    assert found.verdict == "not comparable" and found.why.endswith("% do: no evidence of memory") and found.values


def analysis_of(correct: tuple[float, ...], marked: tuple[float, ...]) -> Analysis:
    """Two questions asked as they are and with a clique of two dimensions at 0, 0.1 and 0.5: shares of each."""
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


def test_a_marker_that_all_answers_have_or_none_is_not_switched() -> None:
    right = (0.4,) * 4
    assert MEASURES["still_marked"](analysis_of(right, (0.5, 1.0, 0.9, 0.0))) == 0.9
    assert MEASURES["unmarked"](analysis_of(right, (0.5, 1.0, 0.9, 0.1))) == 0.9
    for share in (0.0, 1.0):
        never = analysis_of(right, (share, 1.0, 1.0, 0.0))
        assert MEASURES["still_marked"](never) is None and MEASURES["unmarked"](never) is None


def test_a_length_is_compared_with_that_length_alone() -> None:
    """The paper copies at K = 16, 32, 64: what was run at 4, 8 and 16 bears the first alone."""
    tests = ["copy_k4", "copy_k8", "copy_k16"]
    blocks = [
        {"id": test[5:], "title": test, "data": {"train": test, "form": "lines"}, "tests": [test]} for test in tests
    ]
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}]
    evaluation = {"tests": tests, "decodings": {"default": {"seeds": 1}}}
    long = made(blocks=blocks, rows=rows, tables=["longrange", "claims"], evaluation=evaluation)
    records = Records([])
    records.by_table["long_range"] = [(long, cast(Summary, None))]
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
    monkeypatch.setattr("benchmarks.tables.render.load_study", known.__getitem__)
    for each in (main, other):
        fabricate(each, tmp_path, {**SHARES, "marcos_causal": (0.1, 0.1, 0.9)})
        if each is other:
            path = tmp_path / "other/runs/equation/marcos_causal/s0/train.json"
            write_json(path, read_json(path) | {"stages": [{"warnings": ["R is dead: no dimension is active"]}]})
        results.collect(each, tmp_path)
    text = contents(main, tmp_path, Table.claims)["md"]
    found = row(text, "bidirectional thinking is better everywhere")
    assert found[6] == "not held" and "2 of 3" in found[7] and "equation gamma (for multiarith) marcos" in found[7]
    assert found[7].endswith("; R is dead in equation marcos_causal") and text.count("R is dead") == 1
    assert "**Beside, other:** qwen2-tiny; tokenizer: byte-level BPE of 512" in text and "never_run" not in text
