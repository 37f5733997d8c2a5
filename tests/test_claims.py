"""The paper's claims: how they are judged, and the verdicts of the paper's own numbers."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.paper.claims import Claim, Measure, PaperCell, Source, checked, judge, load_claims
from benchmarks.tables.claims import paper_alone
from benchmarks.tables.evidence import Paper

CLAIMS = {claim.id: claim for claim in load_claims()}
CELLS = {"table": "main_0.5b", "block": "equation", "row": "marcos", "against": ["cot_sft", "codi"]}


class Given(Source):
    """A source with given numbers, by row and test set."""

    measured: ClassVar = True

    def __init__(
        self,
        numbers: dict[tuple[str, str], float],
        separated: bool | None = None,
        reason: str | None = None,
        unpaired: str | None = None,
    ) -> None:
        self.numbers, self.sure, self.reason, self.apart = numbers, separated, reason, unpaired

    def analysed(self, claim: Claim) -> tuple[float, str] | None:
        return None

    def unanalysed(self, claim: Claim) -> str:
        return "nothing was analysed"

    def value(self, cell: PaperCell, measure: Measure) -> float | None:
        return self.numbers.get((cell.row, cell.test))

    def separated(self, a: PaperCell, b: PaperCell) -> bool | None:
        return self.sure

    def unpaired(self, a: PaperCell, b: PaperCell) -> str | None:
        return self.apart

    def test(self, cell: PaperCell) -> str:
        return f"own_{cell.test}"

    def incomparable(self, cell: PaperCell, against: PaperCell | None) -> str | None:
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
        ("steering", [100], "not comparable"),  # stated in its text, but in no table
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
        ({"above": 0.04, "measure": "test"}, "held"),
        ({"above": 0.08, "measure": "test"}, "not held"),  # 0.1 is so close that the difference may be noise
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


def test_where_no_paired_test_can_be_intervals_take_its_place_and_why_says_so() -> None:
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 9.0}
    one = claim(tests=["gsm8k"], against=["cot_sft"], above=0)
    sure = judge(one, Given(numbers, separated=True, unpaired="different test sets"))
    assert (sure.verdict, sure.why) == ("held", "different test sets")
    unsure = judge(one, Given(numbers, separated=False, unpaired="different test sets"))
    assert unsure.verdict == "not held" and unsure.why.startswith("95 % intervals do not separate equation own_gsm8k")
    assert unsure.why.endswith("; different test sets")


def test_a_ratio_of_times_that_may_be_noise_does_not_count() -> None:
    one = claim(tests=["gsm8k"], against=["cot_sft"], above=1, measure="test")
    slow, slower = ({("marcos", "gsm8k"): 1.0, ("cot_sft", "gsm8k"): seconds} for seconds in (2.1, 2.3))
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


def test_a_rounding_error_decides_nothing() -> None:
    below, above = (100 * 0.29 - 100 * 0.30, 100 * 0.57 - 100 * 0.56)
    assert below < -1 and above < 1
    numbers = {("marcos", "gsm8k"): 100 * 0.29, ("cot_sft", "gsm8k"): 100 * 0.30}
    for bound in ({"at_least": -1}, {"within": 1}):
        assert judge(claim(tests=["gsm8k"], against=["cot_sft"], **bound), Given(numbers)).verdict == "held"
    assert claim(at_least=1).met(above, measured=True) and not claim(above=-1).met(below, measured=True)


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
    numbers = {("marcos", "gsm8k"): 10.0, ("cot_sft", "gsm8k"): 5.0, ("codi", "gsm8k"): 25.0}
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
