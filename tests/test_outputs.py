"""Scores of outputs that no run made."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.data import load_records
from benchmarks.outputs import Scores, render, score, write
from commands import invoke
from conftest import ROOT
from methods.errors import InputError

TEST = "embedded_in_domain"
PUBLISHED = os.environ.get("MARCOS_BENCH_OUTPUTS")
REFERENCE = ROOT / "results/reference/published"
STATED = {"gsm8k-gpt2": 0.30099, "gsm8k-gpt2-medium": 0.34875, "gsm8k-phi3-3.8B": 0.31008, "gsm8k-mistral-7B": 0.50948}
MULTIPLICATION = {"4x4": 1.0, "5x5": 0.996, "9x9": 0.988}
needs_outputs = pytest.mark.skipif(
    not (PUBLISHED and os.environ.get("MARCOS_BENCH_DATA")), reason="MARCOS_BENCH_OUTPUTS or _DATA names no folder"
)


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def scored(*names: str, **options: Any) -> Scores:
    return score(names, options.get("test", TEST), options.get("scorer"), Path("results"))


@pytest.fixture(scope="module")
def records() -> list[Any]:
    return load_records(TEST, "equation", "test")[:8]


def test_lines_are_matched_by_id_index_or_question(tmp_path: Path, records: list[Any]) -> None:
    rows: list[dict[str, Any]] = [{"output": f"#### {record.answer}"} for record in records]
    rows[0] |= {"id": records[0].id}
    rows[1] |= {"index": 1, "question": records[1].question.upper()}
    rows[2] |= {"question": f"  {records[2].question}"}
    found = scored(lines(tmp_path / "a.jsonl", rows[:3])).lines.iloc[0]
    assert (found["n"], found["of"], found["accuracy"], found["unmatched"]) == (3, 500, 1.0, 0)


def test_what_cannot_be_matched_is_listed_with_the_reason(tmp_path: Path, records: list[Any]) -> None:
    rows = [
        {"output": "1", "index": 0},
        {"output": "2", "index": 0},
        {"output": "3", "index": 500},
        {"output": "4", "index": True},
        {"output": "5", "index": 1, "question": "Another?"},
        {"output": "6", "id": "gone"},
        {"output": "7"},
    ]
    found = scored(lines(tmp_path / "a.jsonl", rows))
    assert found.lines.iloc[0]["n"] == 1
    assert found.unmatched[["line", "why"]].to_numpy().tolist() == [
        ["2", "an earlier line answers the same question"],
        ["3", f"{TEST} has no index 500"],
        ["4", f"{TEST} has no index true"],
        ["5", "index 1 is another question"],
        ["6", f'{TEST} has no id "gone"'],
        ["7", "no `id`, `index` or text `question`"],
    ]
    assert "## Not matched" in render(found)


def test_pairs_are_tested_over_shared_questions(tmp_path: Path, records: list[Any]) -> None:
    right = [{"index": i, "output": f"#### {record.answer}"} for i, record in enumerate(records)]
    wrong = [row | {"output": "#### -0.5"} for row in right[2:]]
    found = scored(lines(tmp_path / "right.jsonl", right), lines(tmp_path / "wrong.jsonl", wrong))
    (test,) = found.tests.to_dict("records")
    assert (test["a"], test["b"], test["n"], test["difference"]) == ("right", "wrong", 6, 1.0)
    assert test["p_value"] == pytest.approx(2 * 0.5**6)
    assert "nan" not in render(replace(found, tests=found.tests.assign(p_holm=math.nan, kind="untested")))
    write(found, tmp_path / "written")
    verdicts = pd.read_csv(tmp_path / "written/verdicts.csv").set_index("id")
    assert verdicts[["right", "wrong"]].sum().tolist() == [8, 0] and verdicts.count().tolist() == [8, 6]


def test_an_index_from_one_is_no_fault_where_ids_or_texts_say_what_is_answered(
    tmp_path: Path, records: list[Any]
) -> None:
    every = load_records(TEST, "equation", "test")
    named = [{"id": record.id, "index": at, "output": ""} for at, record in enumerate(every, 1)]
    assert scored(lines(tmp_path / "a.jsonl", named)).lines.iloc[0]["n"] == len(every)
    own = [{"question": f"{at}?", "gold": "1", "index": at, "output": "1"} for at in (1, 2)]
    assert scored(lines(tmp_path / "b.jsonl", own), test=None, scorer="number").lines.iloc[0]["n"] == 2


def test_files_that_share_no_question_are_scored_and_not_tested(tmp_path: Path, records: list[Any]) -> None:
    rows = [{"index": at, "output": record.answer} for at, record in enumerate(records)]
    names = [lines(tmp_path / f"{name}.jsonl", part) for name, part in (("id", rows), ("a", rows[:4]), ("b", rows[4:]))]
    found = scored(*names)
    assert found.lines["accuracy"].tolist() == [1.0] * 3
    assert found.lines["outputs"].tolist() == [names[0], "a", "b"]
    assert found.tests["kind"].tolist() == ["mcnemar", "mcnemar", "no shared question"]
    assert "nan" not in render(found)
    write(found, tmp_path / "written")
    write(scored(names[1]), tmp_path / "written")
    assert not (tmp_path / "written/paired_tests.csv").exists()  # it was of three files


def test_a_file_may_bring_its_own_questions(tmp_path: Path) -> None:
    rows = [{"question": "1 2 * 3", "gold": "3 6", "output": "#### 3 6"}, {"question": "b", "gold": "2", "output": ""}]
    found = scored(lines(tmp_path / "a.jsonl", rows), test=None, scorer="text").lines.iloc[0]
    assert (found["n"], found["accuracy"], found["no_answer"]) == (2, 0.5, 0.5)


def test_another_file_answers_these_questions_by_id_by_index_or_by_text(tmp_path: Path) -> None:
    own = [{"id": id, "question": f"{id}?", "gold": gold, "output": gold} for id, gold in (("a", "1"), ("b", "2"))]
    others = {
        "ids": [{"id": "b", "output": "2"}, {"id": "c", "output": "1"}],
        "indices": [{"index": 1, "output": "2"}, {"index": 7, "output": "1"}],
        "texts": [{"id": 17, "index": 0, "question": "b?", "output": "2"}],
    }
    files = [lines(tmp_path / f"{name}.jsonl", rows) for name, rows in (("own", own), *others.items())]
    found = scored(*files, test=None, scorer="number").lines.set_index("outputs")
    assert found["n"].to_dict() == {"own": 2, "ids": 1, "indices": 1, "texts": 1}
    assert found["accuracy"].tolist() == [1.0] * 4


OWN, NUMBER = '{"id": "a", "question": "q", "gold": "18", "output": "18"}', {"test": None, "scorer": "number"}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "is empty; give JSON lines"),
        ("[]", {}, "line 1: must be a JSON object"),
        ('{"index": 0}', {}, "line 1: no text `output`"),
        ('{"output": "1", "index": -1}', {}, "no output matches a question"),
        ('{"output": "1", "index": 0}', {"test": None, "scorer": "text"}, "line 1: no text `question`"),
        ('{"output": "1"}', {"test": None, "scorer": "texts"}, "no scorer is named 'texts'"),
        ('{"output": "1"}', {"test": None}, "name the test set"),
        (f"{OWN}\n{OWN.replace('18', '1 or 8')}", NUMBER, "line 2: the `gold` answer .* no number: write"),
        (OWN + "\n" + OWN.replace('"q"', '"r"'), NUMBER, "line 2: another question has the id 'a' too"),
        ("\n".join(f'{{"index": {at}, "output": "1"}}' for at in range(1, 501)), {}, "seems to count from 1: subtract"),
        (OWN, {"test": None, "scorer": "summation"}, "the scorer 'summation' needs the steps of each question"),
    ],
)
def test_bad_input_names_the_place(tmp_path: Path, content: str, options: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        scored(str(path), **options)


def test_a_run_may_be_named_by_its_id_in_mlflow(tmp_path: Path, records: list[Any]) -> None:
    name = lines(tmp_path / "mine.jsonl", [{"index": 0, "output": records[0].answer}])
    with pytest.raises(InputError, match="no run is tracked there"):
        scored(name, "0" * 32)


def test_command(tmp_path: Path, records: list[Any]) -> None:
    name = lines(tmp_path / "mine.jsonl", [{"index": 0, "output": records[0].answer}])
    run = invoke("score", name, "--test", TEST, "--output", tmp_path / "scores")
    assert "| mine" in run.output and "1 of 500" in run.output
    invoke("score", tmp_path / "none.jsonl", "--test", TEST, code=2)


@needs_outputs
def test_published_outputs_have_the_accuracies_that_their_authors_state() -> None:
    folder = Path(str(PUBLISHED)) / "icot_si"
    found = scored(*(str(folder / f"{name}.jsonl") for name in STATED), test="gsm8k")
    assert dict(zip(found.lines["outputs"], found.lines["accuracy"].round(5), strict=True)) == STATED
    assert render(found) + "\n" == (REFERENCE / "gsm8k/table.md").read_text(encoding="utf-8")
    for size, stated in MULTIPLICATION.items():
        products = scored(str(folder / f"{size}_multiplication-gpt2.jsonl"), test=None, scorer="text")
        assert products.lines["accuracy"].tolist() == [stated]


def test_the_page_prints_the_committed_scores() -> None:
    page = (REFERENCE / "README.md").read_text(encoding="utf-8")
    for line in pd.read_csv(REFERENCE / "gsm8k/scores.csv").to_dict("records"):
        accuracy, low, high = (100 * line[name] for name in ("accuracy", "low", "high"))
        assert f"{100 * STATED[line['outputs']]:.3f} |          {accuracy:.3f} | {low:.2f} to {high:.2f} |" in page
