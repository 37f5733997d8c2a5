"""Answers that are words: how they are scored, and a data set of them in all stages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from benchmarks.data import DATASETS, load_records
from benchmarks.data.cards import Card, File
from benchmarks.data.records import DataError, Raw
from benchmarks.data.sets import MODULES
from benchmarks.data.sources import DATA_VARIABLE, DataSet, Fields, json_lines
from benchmarks.files import read_json
from benchmarks.scoring import SCORERS, Reference
from benchmarks.scoring.scorers import require_scorers
from benchmarks.scoring.text import Text
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import load_study
from commands import invoke, output
from small import small_study

CHAIN = "Tom is a c3.\nEvery c3 is a c0.\n"
GOLD = "Tom is a c0."


@pytest.mark.parametrize(
    ("text", "gold", "extracted", "strict"),
    [
        # right: said alone, behind a marker, and after a chain
        ("Tom is a c0.", GOLD, "tom is a c0", True),
        ("#### Tom is a c0.", GOLD, "tom is a c0", True),
        (f"{CHAIN}#### Tom is a c0.", GOLD, "tom is a c0", True),
        (f"{CHAIN}Tom is a c0.\n", GOLD, "tom is a c0", True),
        ("####\nTom is a c0.", GOLD, "tom is a c0", True),
        ("#### yes\nfor he is a c0.", "yes", "yes", True),
        ("#### Answer: B", "Answer: B", "answer: b", True),  # a part of the answer, and no marker
        # right, and not as it is written
        ("#### tom  is a c0 .", GOLD, "tom is a c0", False),
        ("YES!", "yes", "yes", False),
        ("#### b", "B", "b", False),
        ("#### CAF\N{LATIN CAPITAL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}", "caf\u00e9", False),
        ("#### caf\u00e9", "cafe\N{COMBINING ACUTE ACCENT}", "caf\u00e9", True),
        ("\u662f\N{IDEOGRAPHIC FULL STOP}", "\u662f", "\u662f", False),
        ("yes\N{ARABIC QUESTION MARK}", "yes\N{FULLWIDTH EXCLAMATION MARK}", "yes", False),
        ("#### STRASSE", "Stra\N{LATIN SMALL LETTER SHARP S}e", "strasse", False),
    ],
)
def test_an_answer_is_the_gold_one_whatever_case_blanks_and_final_marks(
    text: str, gold: str, extracted: str, strict: bool
) -> None:
    result = SCORERS["text"].score(text, Reference("Is he?", gold))
    assert (result.extracted, result.correct, result.strict, result.draws) == (extracted, True, strict, ())


@pytest.mark.parametrize(
    ("text", "gold", "extracted"),
    [
        ("#### Tom is a c01.", GOLD, "tom is a c01"),
        ("5%", "5", "5%"),  # no mark at the end of a sentence
        ("It is yes", "yes", "it is yes"),
        ("yes\n#### no", "yes", "no"),  # the chain does not count
        (f"Tom is a c0.\n{CHAIN}", GOLD, "every c3 is a c0"),
        ("#### yes\n#### no", "yes", "no"),
        ("yes\n####", "yes", None),
        ("", "yes", None),
        ("#### .", "yes", "."),
        ("#### .", "?", "."),
    ],
)
def test_another_answer_is_wrong(text: str, gold: str, extracted: str | None) -> None:
    result = SCORERS["text"].score(text, Reference("Is he?", gold))
    assert (result.extracted, result.correct, result.strict) == (extracted, False, False)


# ---- a data set


CARD = Card(
    name="mine",
    title="Mine",
    source="https://example.org/mine",
    revision="1",
    licence="MIT",
    citation="",
    forms=("text", "equation"),
    counts={"train": 240, "test": 16},
    records={"train": None, "test": None},
    files={split: (File.of(f"mine/{split}.jsonl", None),) for split in ("train", "test")},
    scorer="text",
)


def convert(row: Fields) -> Raw:
    return Raw("", row["question"], row["solution"], row["answer"])


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that registers the data set, with changes of its card and of the answers in its files."""
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "published"))

    def registered(answer: Any = ..., **changes: Any) -> None:
        (tmp_path / "published/mine").mkdir(parents=True, exist_ok=True)
        rows = list(rows_with(answer))
        for split, own in (("train", rows[:240]), ("test", rows[240:])):
            text = "\n".join(json.dumps(row) for row in own)
            (tmp_path / f"published/mine/{split}.jsonl").write_text(text, encoding="utf-8")
        monkeypatch.setitem(DATASETS, "mine", DataSet(CARD.model_copy(update=changes), json_lines, convert))
        monkeypatch.setitem(MODULES, "mine", "benchmarks.data.sets.prosqa")

    return registered


def rows_with(answer: Any) -> Iterator[dict[str, Any]]:
    for n in range(256):
        question = f"Tom {n} is a c{n % 7}. Every c{n % 7} is a c{n % 2}. Is he a c{n % 2}?"
        yield {
            "question": question,
            "solution": f"Tom {n} is a c{n % 7}. So he is a c{n % 2}.",
            "answer": "Yes." if answer is ... else answer,
        }


@pytest.mark.parametrize(
    ("answer", "scorer", "said"),
    [
        (GOLD, "number", r"answer 'Tom is a c0.' is no number; fetch .* or name another `scorer` in its card, such as"),
        (True, "text", "cannot be read .the answer True is no text.; fetch the file again, or correct how"),
        (" ", "text", "the answer ' ' is empty; .* correct how data set 'mine' converts its rows$"),
        (CHAIN, "text", "is more than the line behind ####; "),
        ("so #### yes", "text", "is more than the line behind ####; "),
    ],
)
def test_answers_that_cannot_be_scored_are_named(
    answer: Any, scorer: str, said: str, mine: Callable[..., None]
) -> None:
    mine(answer, scorer=scorer)
    with pytest.raises(DataError, match=f"train.jsonl, line 1: .*{said}"):
        load_records("mine", "text", "train")


def test_rows_of_a_ragged_set_whose_answers_cannot_be_scored_are_no_training_data(mine: Callable[..., None]) -> None:
    mine("", ragged=True)
    assert load_records("mine", "text", "train") == []
    with pytest.raises(DataError, match=r"test.jsonl, line 1: the answer '' is empty"):
        load_records("mine", "text", "test")


def test_a_form_in_which_no_row_has_steps_is_named(mine: Callable[..., None]) -> None:
    mine()
    with pytest.raises(DataError, match=r"no row of mine \(train\) has .* as equation: train on another `form`"):
        load_records("mine", "equation", "train")


def test_what_cannot_be_scored_is_told_before_anything_is_trained(mine: Callable[..., None]) -> None:
    study = small_study([{"id": "cot", "method": "cot_sft"}], evaluation={"tests": ["mine", "gsm8k"]})
    for scorer, said in (
        ("txt", "the card of 'mine' names no scorer: 'txt'; did you mean `text`.*number"),
        ("copy", "a block of its own"),
    ):
        mine(scorer=scorer)
        with pytest.raises(DataError, match=said):
            require_scorers(study)
    mine()
    require_scorers(study)  # numbers and texts go together


@pytest.mark.parametrize("asked", [0, 8])
def test_held_out_questions_need_a_scorer_too(asked: int, mine: Callable[..., None]) -> None:
    blocks = [{"id": "words", "title": "Words", "data": {"train": "mine", "form": "text", "validation": 16}}]
    rows, tests = [{"id": "cot", "method": "cot_sft"}], {"tests": ["embedded_in_domain"]}
    study = small_study(rows, blocks=blocks, evaluation=tests, training={"validation_questions": asked})
    mine(scorer="txt")
    with pytest.raises(DataError, match="the card of 'mine' names no scorer") if asked else nullcontext():
        require_scorers(study)


def test_a_data_set_of_text_answers_goes_through_all_stages(mine: Callable[..., None], tmp_path: Path) -> None:
    """One method writes a chain and a marked answer, one says its answer alone, behind other words."""
    mine()
    rows = [{"id": name, "method": name} for name in ("cot_sft", "codi")]
    block = {"id": "words", "title": "Words", "data": {"train": "mine", "form": "text", "validation": 16}}
    settings = {"tests": ["mine"], "max_new_tokens": 40, "decodings": {"default": {"seeds": 1}}}
    training = {"epochs": 10, "learning_rate": 5e-3}
    study = small_study(rows, blocks=[block], evaluation=settings, training=training, timing=None)
    file, results = tmp_path / "small.yaml", tmp_path / "results"
    file.write_text(
        yaml.safe_dump(study.model_dump(mode="json", exclude_none=True) | {"timing": None}), encoding="utf-8"
    )
    study = load_study(str(file))

    def behind(text: str) -> str:
        return text.rpartition("#### ")[2].rpartition("is: ")[2].partition("\n")[0]

    where = ("--results", results)
    invoke("data", file, *where)
    texts = {}
    for id, spec in study.runs.items():
        invoke("train", file, id, *where)
        invoke("evaluate", file, id, *where)
        paths = Paths(results, spec)
        frame = pd.read_parquet(paths.predictions("default"))
        score = read_json(paths.record("evaluate"))["decodings"]["default"]["tests"]["mine"]
        assert score["accuracy"][0] == frame["correct"].mean() > 0
        assert frame["correct"].tolist() == [behind(text) == "Yes." for text in frame["text"]]
        assert set(frame.loc[frame["correct"], "extracted"]) == {"yes"}
        texts[spec.method] = frame["text"].tolist()
    assert any(text.count("\n") > 1 and "\n#### Yes." in text for text in texts["cot_sft"])
    assert any(text == "The answer is: Yes." for text in texts["codi"])
    invoke("collect", file, *where)
    invoke("table", file, *where)
    table = (results / "small/table_main.md").read_text(encoding="utf-8")
    assert f"Strict: {Text.strict_means}." in table and "not run" not in table
    shown = output("explain", file, "--question", "1", *where)
    assert "Gold answer: Yes." in shown and "(no answer)" not in shown
    assert "differs" not in output("verify", results / "small", "--study", file)
