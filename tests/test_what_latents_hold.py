"""What the page of `quick` says that latents hold: answers with the latents of another question, as recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from benchmarks.archive import unpacked
from benchmarks.data import load_records
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import load_study
from conftest import ROOT

REFERENCE = ROOT / "results/reference"
TESTS = ("ring_in_domain", "ring_reworded", "ring_unseen")
CHAINS = {
    record.id: [re.fullmatch(r"<<(\d) (\w+)=(\d)>>", step) for step in record.steps]
    for test in TESTS
    for record in load_records(test, "equation", "test")
}
MOVES = {(step[2], step[1]): step[3] for chain in CHAINS.values() for step in chain if step}  # by verb and field


def after_its_own_last_move(chain: Sequence[re.Match[str] | None], other: Sequence[re.Match[str] | None]) -> str:
    """Return where another chain is before its last move, and this chain's last move leads from there."""
    own, last = chain[-1], other[-1]
    assert own and last
    return MOVES[own[2], last[1]]


def shares(answers: pd.DataFrame) -> tuple[float, float]:
    """Return the shares of answers that are the other question's, and that are its result before its last move, and
    then the question's own last move."""
    answers = answers.loc[answers["latents_of"].isin(list(CHAINS))]
    moved = [
        found == after_its_own_last_move(CHAINS[id], CHAINS[of])
        for id, of, found in zip(answers["id"], answers["latents_of"], answers["extracted"], strict=True)
    ]
    return float(answers["follows"].to_numpy().mean()), sum(moved) / len(moved)


def test_the_table_of_the_page_is_that_of_the_recorded_answers() -> None:
    study = load_study("quick")
    page = (REFERENCE / "quick/README.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^  \| ([\w/() -]+?) \| (\d+ \| \d+) \|$", page, re.M))
    titles = {title: row for row, title in study.row_titles.items()}
    assert len(lines) == 6
    with unpacked(REFERENCE, ["quick"]) as results:
        answers = {
            title: pd.read_parquet(Paths(results, study.runs[f"equation/{titles[title]}/s0"]).predictions("exchanged"))
            for title in lines
        }
    for title, told in lines.items():
        found = shares(answers[title].query("test == 'ring_in_domain'"))
        assert [f"{100 * share:.0f}" for share in found] == told.split(" | "), title
    _, unseen = shares(answers["SIM-CoT (Coconut)"].query("test == 'ring_unseen'"))
    assert unseen > 0.995, "as the page says below its table"
