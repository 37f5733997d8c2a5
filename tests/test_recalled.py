"""How much of the in-domain test set can be recalled from training, and how accurate rows of `stories` are on it."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from benchmarks.archive import unpacked
from benchmarks.data import load_records
from benchmarks.data.loading import questions, split_validation
from benchmarks.data.records import Record
from benchmarks.data.sets.embedded import NAMES, OBJECTS
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import load_study
from conftest import ROOT

REFERENCE = ROOT / "results/reference"
PAGE = REFERENCE / "stories/README.md"
TEST = "embedded_in_domain"


def story(question: str) -> str:
    """Return a question with its names, pronouns and objects numbered in the order in which they come."""
    numbers: dict[str, int] = {}

    def number(word: re.Match[str]) -> str:
        return f"_{numbers.setdefault(word[0], len(numbers))}"

    words = "|".join([*NAMES, *OBJECTS])
    return re.sub(r"\b([Ss]h|H|h)e\b", "_", re.sub(rf"\b({words})\b", number, question))


def records_of(name: str) -> list[Record]:
    return load_records(name, "equation", "test")


@pytest.fixture(scope="module")
def training() -> list[Record]:
    records, _ = split_validation(load_records("embedded", "equation", "train"), 500)
    return records


@pytest.fixture(scope="module")
def kinds(training: list[Record]) -> dict[str, set[str]]:
    """Return the ids of in-domain questions: all, those whose story was trained on, others, and with new equations."""
    stories, equations = {story(record.question) for record in training}, {record.steps for record in training}
    all_of_them = {record.id: record for record in records_of(TEST)}
    told = {id for id, record in all_of_them.items() if story(record.question) in stories}
    new = {id for id, record in all_of_them.items() if record.steps not in equations}
    return {"all": {*all_of_them}, "told": told, "others": {*all_of_them} - told, "new": new}


def test_pages_say_what_was_trained_on(training: list[Record], kinds: dict[str, set[str]]) -> None:
    assert not questions(records_of(TEST)) & questions(training)
    assert {kind: len(ids) for kind, ids in kinds.items()} == {"all": 500, "told": 226, "others": 274, "new": 65}
    equations = {record.steps for record in training}
    known = [
        sum(record.steps in equations for record in records_of(f"embedded_{name}"))
        for name in ("reworded", "multistep")
    ]
    steps = {record.id: len(record.steps) for record in records_of(TEST)}
    assert known == [446, 58] and sum(steps[id] == 3 for id in kinds["new"]) == 60
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "226 are a training question with other names" in page and "so have 446 of Reworded and 58 of Multi" in page
    assert "435 have the equations of a training solution" in page and "60 have three steps" in page


def test_accuracies_of_what_can_be_recalled_are_those_of_the_page(kinds: dict[str, set[str]]) -> None:
    page = PAGE.read_text(encoding="utf-8").split("## How much can be recalled")[1].split("\n##")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| [A-Zwi].*\d \|$", page, re.M)
    ]
    study = load_study("stories_seeds")
    titles = {study.row_titles[row.id].removeprefix("- "): row.id for row in study.rows}
    assert {line[0] for line in lines} == titles.keys()
    with unpacked(REFERENCE, ["stories", "stories_seeds"]) as results:
        for title, *cells in lines:
            accuracies = []
            for seed in range(3):
                paths = Paths(results, study.sources[f"equation/{titles[title]}/s{seed}"])
                frame = pd.read_parquet(paths.predictions("default"))
                correct = frame[frame.test == TEST].groupby("id").correct.mean() * 100
                accuracies.append({kind: f"{correct[[*ids]].mean():.1f}" for kind, ids in kinds.items()})
            of_first = [accuracies[0][kind] for kind in ("all", "told", "others")]
            assert cells == [*of_first, ", ".join(by["new"] for by in accuracies)]
