"""Reading published files and the hub, and refusing data that differ from what was published."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import DATASETS, load_records, normalise, sources
from benchmarks.data.cards import File
from benchmarks.data.records import DataError, Raw
from benchmarks.data.sets import gsm8k, svamp
from benchmarks.data.sources import DATA_VARIABLE, DataSet, Generated
from conftest import bibtex_fields
from methods.errors import InputError

DATA = os.environ.get(DATA_VARIABLE)
real = pytest.mark.skipif(not DATA, reason=f"{DATA_VARIABLE} names no folder with the published files")

GOOD = json.dumps({"question": "How many?", "answer": "It is 1+1=<<1+1=2>>2.\n#### 2"})


def small_gsm8k(**changes: Any) -> DataSet:
    """Return GSM8K's reader with a card that expects one row and no checksum."""
    content = {"counts": {"train": 1}, "records": {"train": None}}
    files = {"files": {"train": (File(path="gsm8k/train.jsonl", sha256=None),)}}
    return DataSet(gsm8k.GSM8K.model_copy(update=content | files | changes), sources.json_lines, gsm8k.gsm8k)


def no_route(*_: Any, **__: Any) -> None:
    raise ConnectionError("no route")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    (tmp_path / "gsm8k").mkdir()
    return tmp_path


def test_a_row_is_read_from_the_folder(folder: Path):
    (folder / "gsm8k/train.jsonl").write_text(GOOD + "\n", encoding="utf-8")
    (row,) = small_gsm8k().rows("train")
    assert (row.question, row.solution, row.answer) == ("How many?", "It is 1+1=<<1+1=2>>2.", "2")


def test_generated_rows_are_numbered():
    card = DATASETS["embedded"].card.model_copy(update={"counts": {"test": 3}, "records": {"test": None}})
    generated = Generated(
        card, lambda split: [Raw("", "Which?", "", "1"), Raw("b", "What?", "", "2"), Raw("", "", "", "3")]
    )
    assert [row.key for row in generated.rows("test")] == ["0", "b", "2"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Raw("a", "Which?", "", "1"), Raw("a", "What?", "", "2")], "two rows with the key 'a': leave keys out"),
        ([Raw("", "Which?", "1+1=2\n#### 2", "2")], "#### in the solution .* the reasoning without the answer"),
        ([Raw("", "Which?", "", "2\n")], "has the answer '2.n': strip its blanks"),
    ],
)
def test_rows_that_would_be_taught_or_scored_wrongly_are_refused(rows: list[Raw], message: str) -> None:
    card = DATASETS["embedded"].card.model_copy(update={"counts": {"test": len(rows)}, "records": {}})
    with pytest.raises(DataError, match=message):
        Generated(card, lambda split: rows).rows("test")


def test_answers_are_numbers_where_they_are_scored_as_numbers(folder: Path):
    (folder / "gsm8k/train.jsonl").write_text(GOOD.replace("#### 2", "#### yes"), encoding="utf-8")
    (row,) = small_gsm8k(scorer="copy").rows("train")
    assert row.answer == "yes"


def test_a_data_set_may_be_on_the_hub_alone(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "load_dataset", lambda *_, **__: [json.loads(GOOD)])
    assert len(small_gsm8k(files={}).rows("train")) == 1
    monkeypatch.setattr(sources, "load_dataset", lambda *_, **__: 1 / 0)
    with pytest.raises(DataError, match=f"Check the network, or give its card `files`.*{DATA_VARIABLE}"):
        small_gsm8k(files={}).rows("train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + '\n{"question": "cut\n', "line 2: broken JSON"),
        (GOOD + '\n{"question": "no answer"}\n', "line 2: field 'answer' is missing"),
        ('{"question": "q", "answer": "so\\n#### many"}', "line 1: .*'many' is no number"),
        ('{"question": "q", "answer": "no mark"}', "line 1: .*####"),
        (
            '{"question": "q", "answer": 3}',
            "line 1: cannot be read .* or correct how data set 'gsm8k' converts its rows",
        ),
        (GOOD.replace("How many?", " "), "line 1: .*the question is empty"),
        ("", "is empty"),
    ],
)
def test_bad_input_names_file_line_and_fix(folder: Path, content: str, message: str):
    (folder / "gsm8k/train.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        small_gsm8k().rows("train")
    assert "again" in str(caught.value)
    assert str(folder) in str(caught.value)


def test_rows_that_are_missing_are_refused_where_their_number_is_known(folder: Path, caplog: pytest.LogCaptureFixture):
    (folder / "gsm8k/train.jsonl").write_text(GOOD + "\n" + GOOD, encoding="utf-8")
    with pytest.raises(DataError, match="has 2 rows instead of 1; fetch it again"):
        small_gsm8k(records={"train": "0" * 64}).rows("train")
    assert len(small_gsm8k().rows("train")) == 2
    assert "has 2 rows instead of 1. The number is assumed" in caplog.text


def test_a_split_of_which_only_some_files_are_there_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "load_dataset", lambda *a, **k: pytest.fail("asked the hub"))
    first, second = svamp.SVAMP_4138.files["test"]
    (folder / "svamp").mkdir()
    (folder / second.path).write_text("Question,Numbers,Answer\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"{DATA_VARIABLE} must name a folder that holds {first.path}"):
        load_records("svamp_paper4138", "equation", "test")


def test_what_the_folder_has_no_file_of_is_read_from_the_pinned_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sources, "load_dataset", lambda *_, **__: [json.loads(GOOD)])
    (row,) = small_gsm8k().rows("train")
    assert row.answer == "2"
    (line,) = caplog.messages
    assert line == f"{folder} has no file of gsm8k (train): reading its pinned copy on the hub, openai/gsm8k"
    (folder / "gsm8k/train.jsonl").write_text(GOOD.replace("#### 2", "#### 3"), encoding="utf-8")
    (row,) = small_gsm8k().rows("train")
    assert row.answer == "3" and len(caplog.messages) == 1


def test_files_that_neither_folder_nor_hub_has_are_named_with_their_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sources, "load_dataset", no_route)
    for name, split, said in (("gsm8k", "test", "no route"), ("gsm8k_aug", "train", "no pinned revision")):
        with pytest.raises(DataError, match=said) as caught:
            load_records(name, "equation", split)
        card = DATASETS[name].card
        (file,) = card.files[split]
        for part in (file.path, str(file.sha256), card.source, f"into {folder}, which {DATA_VARIABLE} names"):
            assert part in str(caught.value)


def test_a_folder_that_is_none_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DATA_VARIABLE, str(folder / "nowhere"))
    with pytest.raises(InputError, match=f"{DATA_VARIABLE} names .*nowhere, which is not a folder"):
        load_records("gsm8k", "equation", "test")


def test_a_wrong_checksum_is_refused(folder: Path):
    (folder / "gsm8k/train.jsonl").write_text(GOOD, encoding="utf-8")
    with pytest.raises(DataError, match="wrong checksum"):
        load_records("gsm8k", "equation", "train")


def test_other_content_under_the_same_name_is_refused(folder: Path):
    (folder / "gsm8k/train.jsonl").write_text(GOOD, encoding="utf-8")
    with pytest.raises(DataError, match="other content than version 2"):
        small_gsm8k(records={"train": "0" * 64}).rows("train")


def test_an_answer_that_is_no_number_is_left_out_where_the_published_set_has_some(folder: Path):
    (folder / "gsm8k_aug").mkdir()
    (folder / "gsm8k_aug/train.txt").write_text(
        "How much?||<<2/5=0.4>> #### 1,5\nHow many?||<<1+1=2>> #### 2\n", encoding="utf-8"
    )
    file = File(path="gsm8k_aug/train.txt", sha256=None)
    update = {
        "counts": {"train": 2, "test": 2},
        "records": {"train": None, "test": None},
        "files": {"train": (file,), "test": (file,)},
    }
    dataset = DataSet(gsm8k.GSM8K_AUG.model_copy(update=update), sources.icot_lines, gsm8k.gsm8k_aug)
    assert [row.answer for row in dataset.rows("train")] == ["1,5", "2"]
    with pytest.raises(DataError, match=r"train.txt, line 1: the answer '1,5' cannot be read as one number"):
        dataset.rows("test")


@pytest.mark.parametrize(
    ("name", "form", "split", "message"),
    [
        ("gsm9k", "text", "train", "known: .*gsm8k"),
        ("svamp", "text", "train", "no train split; it has: test"),
        ("gsm8k_aug", "text", "train", "no steps as text"),
    ],
)
def test_unknown_requests_say_what_there_is(name: str, form: Any, split: str, message: str):
    with pytest.raises(DataError, match=message):
        load_records(name, form, split)


def test_the_hub_is_asked_for_a_pinned_revision(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def load(name: str, config: str | None, **options: str) -> list[dict[str, str]]:
        asked.append((name, config, options))
        return [json.loads(GOOD)]

    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "load_dataset", load)
    (row,) = small_gsm8k().rows("train")
    assert row.answer == "2"
    assert asked == [
        ("openai/gsm8k", "main", {"split": "train", "revision": gsm8k.GSM8K.hub and gsm8k.GSM8K.hub.revision})
    ]


def test_without_a_pinned_revision_the_hub_is_never_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "load_dataset", lambda *a, **k: pytest.fail("asked the hub"))
    with pytest.raises(DataError, match=f"no pinned revision.*set {DATA_VARIABLE} .*gsm8k_aug/train.txt"):
        load_records("gsm8k_aug", "equation", "train")


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "load_dataset", no_route)
    with pytest.raises(DataError, match=f"no route.*set {DATA_VARIABLE} to a folder with gsm8k/test.jsonl"):
        load_records("gsm8k", "text", "test")


def test_every_card_is_complete():
    for name, entry in DATASETS.items():
        card = entry.card
        assert card.name == name
        assert card.licence
        assert card.source
        assert not card.citation or {"title", "author", "year"} <= bibtex_fields(card.citation)
        assert card.counts.keys() == card.records.keys()
        assert not isinstance(entry, DataSet) or card.files.keys() == card.counts.keys()
        assert card.hub is None or card.hub.revision is None or len(card.hub.revision) == 40


def test_masked_numbers_are_put_back():
    numbers = " ".join(f"{n}.0" for n in range(20, 31)) + " 0.5"
    row = {"Question": "number0 , number1 and number10 or number11 ?", "Numbers": numbers, "Answer": "7.0"}
    raw = svamp.svamp_masked(row)
    assert (raw.question, raw.answer) == ("20 , 21 and 30 or 0.5 ?", "7")


@pytest.mark.parametrize(
    ("body", "joined"),
    [
        ("He has 3 .", "He has 3 . How many?"),
        ("He has 3. If he buys 2", "He has 3. If he buys 2, how many?"),
        ("He has 3", "He has 3. How many?"),
    ],
)
def test_svamp_body_and_question_make_one_text(body: str, joined: str):
    row = {"ID": "chal-7", "Body": body, "Question": "How many?", "Answer": 5.0}
    assert svamp.svamp(row).question == joined


def as_hub(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a published row as the hub's copy has it, with other names and types of fields."""
    if name == "svamp":
        return row | {"Answer": str(int(row["Answer"]))}
    return {"question": row["sQuestion"], "final_ans": str(int(row["lSolutions"][0]))}


@real
@pytest.mark.parametrize("name", ["gsm8k", "svamp", "multiarith"])
def test_hub_and_folder_give_the_same_records(name: str, monkeypatch: pytest.MonkeyPatch):
    local = load_records(name, "text", "test")
    path = Path(str(DATA)) / DATASETS[name].card.files["test"][0].path
    if name == "gsm8k":
        parts = {"test": [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]}
    else:  # the hub's copies are split in two and shuffled
        rows = [as_hub(name, row) for row in json.loads(path.read_text(encoding="utf-8"))][::-1]
        parts = {"train": rows[:300], "test": rows[300:]}
    monkeypatch.delenv(DATA_VARIABLE)
    monkeypatch.setattr(sources, "load_dataset", lambda *_, split, **__: parts[split])
    assert load_records(name, "text", "test") == local


@real
def test_real_counts_and_overlaps():
    tests = {
        name: load_records(name, "equation", "test") for name in ("gsm8k", "svamp", "svamp_paper4138", "multiarith")
    }
    known = {name: {normalise(row.question) for row in rows} for name, rows in tests.items()}
    assert {name: len(rows) for name, rows in tests.items()} == {
        "gsm8k": 1319,
        "svamp": 1000,
        "svamp_paper4138": 4138,
        "multiarith": 600,
    }
    assert len(known["multiarith"]) == 580
    first = {normalise(row.question) for row in tests["svamp_paper4138"][:3138]}
    assert known["multiarith"] <= first
    assert sum("." in row.answer for row in tests["svamp_paper4138"]) == 246
    assert sum(not row.steps for row in tests["gsm8k"]) == 18


@real
def test_real_training_data():
    equations, text = (load_records("gsm8k", form, "train") for form in ("equation", "text"))
    assert (len(equations), len(text)) == (7473 - 95, 7473)
    assert equations[0].steps == ("<<48/2=24>>", "<<48+24=72>>")
    assert text[0].steps[0] == "Natalia sold 48/2 = 24 clips in May."
    questions = {normalise(row.question) for row in text}
    for name in ("gsm8k", "svamp", "svamp_paper4138", "multiarith"):
        assert not any(normalise(row.question) in questions for row in load_records(name, "text", "test"))
    assert len(load_records("gsm8k_aug_first3000", "equation", "train")) == 2999
    assert len(load_records("gsm8k_aug", "equation", "validation")) == 500
