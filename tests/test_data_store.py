"""Preparing a block, and reading prepared data."""

import filecmp
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import registry
from benchmarks.data import (
    DATASETS,
    TestSet,
    load_records,
    load_tokenizer,
    normalise,
    open_corpus,
    open_test,
    prepare,
    sources,
    store,
    vocabulary,
)
from benchmarks.data.cards import File
from benchmarks.data.loading import split_validation
from benchmarks.data.records import DataError, Record
from benchmarks.data.sets import MODULES, gsm8k
from benchmarks.data.tokenizers import texts, train_bpe
from benchmarks.files import read_json
from benchmarks.processes.locks import FileLock, Locked
from benchmarks.studies.specs import BackboneSpec
from benchmarks.studies.study import Study
from methods.errors import InputError

TESTS = ("embedded_in_domain", "embedded_reworded")


def make_study(**data: Any) -> Study:
    defaults = {"train": "embedded", "validation": 20, "limit": 300}
    return Study.model_validate(
        {
            "name": "tiny",
            "title": "tiny",
            "tokenizer": {"trained": 400},
            "blocks": [{"id": "equation", "title": "Equation", "data": defaults | data}],
            "rows": [{"id": "a", "method": "any"}],
            "training": {"epochs": 1},
            "evaluation": {"tests": TESTS},
        }
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = make_study()
    return prepare(study, study.blocks[0], tmp_path_factory.mktemp("results"))


def test_examples_are_the_records(prepared: Path):
    corpus = open_corpus(prepared, "train")
    words = vocabulary(load_tokenizer(prepared))
    records = {record.id: record for record in load_records("embedded", "equation", "train")}
    assert len(corpus) == 300
    for example in corpus.examples(np.array([7, 0, 299])):
        record = records[example.id]
        assert example.question == words.encode(record.question)
        assert example.steps == [words.encode(step) for step in record.steps]
        assert example.answer == words.encode(record.answer)


def test_what_a_killed_process_left_is_removed_and_a_live_one_is_named(tmp_path: Path) -> None:
    study = make_study()
    left = tmp_path / "tiny/data/.equation.partial/built/train"
    left.mkdir(parents=True)
    lock = FileLock(tmp_path / "tiny/data/.equation.lock", "the test")
    with lock, pytest.raises(Locked, match=r"preparing .*tiny/data/equation is already being done by process \d+ on"):
        prepare(study, study.blocks[0], tmp_path)
    assert left.exists(), "it may be the live process's"
    folder = prepare(study, study.blocks[0], tmp_path)
    assert {path.name for path in folder.parent.iterdir()} == {"equation", ".equation.lock"}


def test_a_question_that_is_there_again_is_the_first_one() -> None:
    """As for overlaps with training, punctuation is ignored and numbers are compared by value."""
    texts = ["She has 2 cats.", "Of 3 cats?", "she has 2.0 cats", "She has 22 cats."]
    ids = ["a", "b", "c", "d"]
    tests = TestSet("some", ids, texts, [[0]] * 4, ["2"] * 4, [None] * 4, [False] * 4)
    assert tests.same_as == ["a", "b", "a", "d"]


def test_lengths_count_question_steps_and_answer(prepared: Path):
    corpus = open_corpus(prepared, "train")
    counted = [len(e.question) + sum(map(len, e.steps)) + len(e.answer) for e in corpus.examples(range(len(corpus)))]
    assert corpus.lengths.tolist() == counted
    assert read_json(prepared / "done.json")["tokens_per_epoch"] == sum(counted)


def test_a_test_set_holds_text_ids_and_gold(prepared: Path):
    tests = open_test(prepared, "embedded_reworded")
    records = load_records("embedded_reworded", "equation", "test")
    assert tests.texts == [record.question for record in records]
    assert tests.answers == [record.answer for record in records]
    assert tests.n_steps == [len(record.steps) for record in records]
    assert tests.questions[3] == vocabulary(load_tokenizer(prepared)).encode(tests.texts[3])
    assert not any(tests.overlap)
    assert len(tests) == 500


def test_done_says_what_was_used(prepared: Path):
    done = read_json(prepared / "done.json")
    counts = {"published": 20_000, "unread": 0, "usable": 20_000, "train": 300, "validation": 20, "too_long": 0}
    assert done["counts"] == counts
    told = store.describe(prepared)
    assert told.startswith("300 rows to train on and 20 to validate on; ") and "too long" not in told
    assert f"{TESTS[0]} has 500 questions, 0 of them in training too" in told
    none = {"shared_with_train": 0, "shared_with_validation": 0}
    assert done["overlaps"][TESTS[0]] == {"questions": 500, "distinct": 500, **none}
    assert done["cards"]["embedded"]["records"]["train"] == done["digests"]["embedded/train"]


def test_the_digest_is_of_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tokenizer in a folder may become another one under its name."""
    found: dict[str, tuple[str, str]] = {}
    for place, size in (("first", 400), ("other", 500)):
        study = make_study()
        monkeypatch.setattr(store, "make_tokenizer", lambda _, rows, size=size: train_bpe(texts(rows), size))
        folder = prepare(study, study.blocks[0], tmp_path / place)
        found[place] = (
            read_json(folder / "done.json")["tokenised"],
            open_corpus(folder, "train").sha256,
        )
    assert not {*found["first"]} & {*found["other"]}


def test_what_is_there_is_kept_and_other_inputs_replace_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = make_study()
    folder = prepare(study, study.blocks[0], tmp_path)
    before = (folder / "done.json").stat().st_mtime_ns
    prepare(study, study.blocks[0], tmp_path)
    assert (folder / "done.json").stat().st_mtime_ns == before
    other = make_study(limit=30, max_question_tokens=28)
    prepare(other, other.blocks[0], tmp_path)
    done = read_json(folder / "done.json")
    assert 0 < done["counts"]["train"] < 30
    assert done["counts"]["too_long"] > 0
    assert f"; {done['counts']['too_long']} are too long; " in store.describe(folder)
    assert {path.name for path in folder.parent.iterdir()} == {"equation", ".equation.lock"}
    monkeypatch.setitem(MODULES, "embedded", "benchmarks.data.sets.ring")  # as if the module had been edited
    assert not store.is_prepared(other, other.blocks[0], tmp_path)


def test_data_of_a_study_with_shared_runs_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study()
    first = prepare(study, study.blocks[0], tmp_path)
    mine = study.model_copy(update={"name": "mine", "shares": ("tiny",)})
    with monkeypatch.context() as copying:
        copying.delattr(store, "_build")
        copy = prepare(mine, mine.blocks[0], tmp_path)
    assert copy == tmp_path / "mine/data/equation" and not filecmp.dircmp(first, copy).diff_files
    assert open_corpus(copy, "train").sha256 == open_corpus(first, "train").sha256
    other = make_study(limit=30).model_copy(update={"name": "other", "shares": ("tiny",)})
    assert read_json(prepare(other, other.blocks[0], tmp_path) / "done.json")["counts"]["train"] == 30


def test_a_file_without_checksum_may_go_but_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    published = tmp_path / "published"
    monkeypatch.setenv(sources.DATA_VARIABLE, str(published))
    (published / "mine").mkdir(parents=True)
    rows = [json.dumps({"question": f"{n} + 1?", "answer": f"<<{n}+1={n + 1}>>\n#### {n + 1}"}) for n in range(80)]
    (published / "mine/train.jsonl").write_text("\n".join(rows), encoding="utf-8")
    changes = {"name": "mine", "counts": {"train": 80}, "records": {"train": None}}
    files = {"files": {"train": (File.of("mine/train.jsonl", None),)}}
    mine = sources.DataSet(gsm8k.GSM8K.model_copy(update=changes | files), sources.json_lines, gsm8k.gsm8k)
    monkeypatch.setitem(DATASETS, "mine", mine)
    monkeypatch.setitem(MODULES, "mine", gsm8k.__name__)
    study = make_study(train="mine")
    prepare(study, study.blocks[0], tmp_path)
    assert store.is_prepared(study, study.blocks[0], tmp_path)
    (published / "mine/train.jsonl").write_text("\n".join(reversed(rows)), encoding="utf-8")
    assert not store.is_prepared(study, study.blocks[0], tmp_path)
    (published / "mine/train.jsonl").unlink()
    assert store.is_prepared(study, study.blocks[0], tmp_path)
    assert [*store.prepared_files(study, study.blocks[0], tmp_path)] == ["mine/train.jsonl"]
    other = make_study()
    assert not store.prepared_files(other, other.blocks[0], tmp_path), "these files are another data set's"


@pytest.mark.parametrize("before", [None, 300])
def test_data_that_are_missing_or_of_other_settings_are_refused(before: int | None, tmp_path: Path) -> None:
    """Otherwise, commands would train, answer or time with other data under the name of today's."""
    if before:
        old = make_study(limit=before)
        prepare(old, old.blocks[0], tmp_path)
    study = make_study(limit=30)
    fix = "tiny/data/equation does not hold the data that tiny needs: run `marcos-bench data tiny --block equation "
    with pytest.raises(DataError, match=fix):
        store.require_prepared(study, study.blocks[0], tmp_path)
    prepare(study, study.blocks[0], tmp_path)
    store.require_prepared(study, study.blocks[0], tmp_path)


def test_a_backbone_that_there_is_none_of_is_known_before_anything_runs() -> None:
    """A published checkpoint brings its own configuration, whatever it is named."""
    study = make_study()
    row = study.rows[0].model_copy(update={"method": "cot_sft"})
    for backbone, fine in (
        ({"name": "qwen3-tiny"}, False),
        ({"name": "qwen3-tiny", "pretrained": "some/model"}, True),
        ({"name": "qwen2-tiny"}, True),
    ):
        named = study.model_copy(update={"rows": (row,), "backbone": BackboneSpec.model_validate(backbone)})
        with nullcontext() if fine else pytest.raises(InputError, match="did you mean `qwen2-tiny`"):
            store.require_known(named)


def test_modules_that_have_a_data_set_of_the_same_name_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("one", "two", "_helper")
    monkeypatch.setattr(registry, "iter_modules", lambda _: [SimpleNamespace(name=name) for name in names])
    monkeypatch.setattr(registry, "import_module", lambda _: SimpleNamespace(DATASETS=(DATASETS["gsm8k"],)))
    with pytest.raises(InputError, match=r"sets\.two and sets\.one both have 'gsm8k' in DATASETS"):
        registry.collect("sets", (), "DATASETS", lambda dataset: dataset.card.name)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = make_study()
    monkeypatch.setattr(store, "_store_test", lambda *_: (_ for _ in ()).throw(DataError("stop")))
    with pytest.raises(DataError, match="stop"):
        prepare(study, study.blocks[0], tmp_path)
    assert [path.name for path in (tmp_path / "tiny/data").iterdir()] == [".equation.lock"]
    with pytest.raises(DataError, match="marcos-bench data"):
        open_corpus(tmp_path / "tiny/data/equation", "train")


def test_a_test_question_seen_in_training_is_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = make_study()
    leaked = load_records("embedded", "equation", "train")[:40]
    convert = store.to_records

    def leak(name: str, form: Any, split: str, rows: Any) -> list[Record]:
        records = convert(name, form, split, rows)
        return [*leaked, *records] if name == TESTS[0] else records

    monkeypatch.setattr(store, "to_records", leak)
    folder = prepare(study, study.blocks[0], tmp_path)
    tests = open_test(folder, TESTS[0])
    shared = read_json(folder / "done.json")["overlaps"][TESTS[0]]["shared_with_train"]
    held_back = {e.id for e in open_corpus(folder, "validation").examples(range(20))}
    assert shared == sum(tests.overlap) == sum(record.id not in held_back for record in leaked) > 30
    flagged = {normalise(text) for text, flag in zip(tests.texts, tests.overlap, strict=True) if flag}
    assert flagged <= {normalise(record.question) for record in leaked}


def test_a_test_question_that_is_validated_on_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    study, convert = make_study(), store.to_records
    validated = split_validation(load_records("embedded", "equation", "train"), 20)[1]

    def leak(name: str, form: Any, split: str, rows: Any) -> list[Record]:
        return [*validated, *convert(name, form, split, rows)] if name == TESTS[0] else convert(name, form, split, rows)

    monkeypatch.setattr(store, "to_records", leak)
    told = store.describe(prepare(study, study.blocks[0], tmp_path))
    assert f", and {len(validated)} are validated on, which selects weights" in told
    assert f"{len(validated)} of 520 questions of {TESTS[0]} are validated on, too" in caplog.text


def test_few_rows_without_steps_are_all_taken_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    few = make_study(limit=5000)
    rows = [Record(f"row-{i}", f"How many are {i}?", (), str(i)) for i in range(50)]
    monkeypatch.setattr(store, "load_rows", lambda *_: [])
    monkeypatch.setattr(store, "to_records", lambda *_: rows)
    corpus = open_corpus(prepare(few, few.blocks[0], tmp_path), "train")
    assert len(corpus) == 30 and not any(example.steps for example in corpus.examples(range(30)))
    assert "block equation: a limit of 5,000 rows, and embedded has 30: all are taken" in caplog.text


def test_no_question_short_enough_is_an_error(tmp_path: Path):
    study = make_study(max_question_tokens=3)
    with pytest.raises(DataError, match="max_question_tokens"):
        prepare(study, study.blocks[0], tmp_path)
