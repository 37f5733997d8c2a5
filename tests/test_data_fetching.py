"""Files that studies need are downloaded from where their cards say, whole and verified."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from datasets import Dataset

from benchmarks.data import fetching, sources, store
from benchmarks.data.cards import File
from benchmarks.data.records import DataError
from benchmarks.data.sets import DATASETS, gsm8k
from benchmarks.data.sources import DATA_VARIABLE, DataSet, Generated
from benchmarks.studies.study import Study, load_study
from commands import invoke
from small import small_study

CONTENT = b"How many?||<<1+1=2>> #### 2\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve the files of a folder, and give its address and the folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", folder
        running.shutdown()


def study_on(
    monkeypatch: pytest.MonkeyPatch,
    *files: File,
    train: str = "gsm8k_aug",
    form: str = "equation",
    test: str = "embedded_in_domain",
) -> Study:
    """Return a study that trains on GSM8K-Aug, whose training split consists of these files. The hub has a revision of
    all data sets."""
    card = gsm8k.GSM8K_AUG.model_copy(update={"files": {"train": files}})
    monkeypatch.setattr(fetching, "get_dataset", {**DATASETS, "gsm8k_aug": DataSet(card, *READ)}.__getitem__)
    blocks = [{"id": "equation", "title": "E", "data": {"train": train, "form": form}}]
    monkeypatch.setattr(fetching, "dataset_info", lambda name: SimpleNamespace(sha="1234abcd"))
    evaluation = {"tests": [test], "max_new_tokens": 24}
    return small_study([{"id": "cot_sft", "method": "cot_sft"}], blocks=blocks, evaluation=evaluation)


READ = (sources.icot_lines, gsm8k.gsm8k_aug, gsm8k.aug_line)


def test_a_file_is_fetched_once(server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, served = server
    (served / "train.txt").write_bytes(CONTENT)
    file = File.of("gsm8k_aug/train.txt", hashlib.sha256(CONTENT).hexdigest(), f"{address}/train.txt")
    study = study_on(monkeypatch, file)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    path = tmp_path / "data/gsm8k_aug/train.txt"
    assert fetching.fetch(study, None) == [path] and path.read_bytes() == CONTENT
    (served / "train.txt").unlink()
    assert fetching.fetch(study, None) == []
    monkeypatch.setattr(fetching, "load_dataset", lambda *_, **__: 1 / 0)
    with pytest.raises(DataError, match=r"404.*, and whynlp/gsm8k-aug on the hub does not give its rows"):
        fetching.fetch(study, tmp_path / "another")


def test_another_file_than_the_published_one_is_not_kept(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are fetched all the same, and the error names what is left to do."""
    address, served = server
    for name in ("good.txt", "bad.txt"):
        (served / name).write_bytes(CONTENT)
    monkeypatch.setattr(fetching, "load_dataset", lambda *_, **__: [])
    study = study_on(
        monkeypatch,
        File.of("bad.txt", hashlib.sha256(b"").hexdigest(), f"{address}/bad.txt"),
        File.of("good.txt", hashlib.sha256(CONTENT).hexdigest(), f"{address}/good.txt"),
        File.of("by_hand.txt", None),
    )
    with pytest.raises(DataError) as refused:
        fetching.fetch(study, tmp_path / "data")
    said = str(refused.value)
    assert re.search(
        r"data lacks files that small needs: bad\.txt of gsm8k_aug: downloading http.*bad\.txt .*; put it there", said
    )
    assert (
        f"by_hand.txt of gsm8k_aug: no address of it is known; put it there by hand, from {gsm8k.GSM8K_AUG.source}"
        in said
    )
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["good.txt"]  # and nothing half-written


def test_a_file_that_is_damaged_since_is_named(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = server
    study = study_on(monkeypatch, File.of("train.txt", hashlib.sha256(CONTENT).hexdigest(), f"{address}/train.txt"))
    (tmp_path / "train.txt").write_bytes(CONTENT[:5])
    with pytest.raises(DataError, match=r"train\.txt is not the published file: remove it, and fetch again"):
        fetching.fetch(study, tmp_path)


def test_what_could_not_be_verified_has_no_address() -> None:
    with pytest.raises(
        ValueError, match=r"train\.txt: what `url` gives could not be verified: give the file's `sha256`"
    ):
        File.of("train.txt", None, "https://example.org/train.txt")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0a39\nsize 87805358\n"
ROWS = [
    {"question": "How many?", "steps": ["<<1+1=2>>", "<<2+1=3>>"], "answer": "3"},
    {"question": "x", "steps": [], "answer": "1"},
]


@pytest.mark.parametrize("served_as", [None, POINTER])
@pytest.mark.parametrize("end", ["\n", ""])
def test_what_an_address_refuses_is_made_from_the_hub(
    served_as: bytes | None, end: str, server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git LFS answers with an error once its quota is used up, and some addresses give the pointer."""
    address, served = server
    if served_as:
        (served / "train.txt").write_bytes(served_as)
    content = f"How many?||<<1+1=2>> <<2+1=3>> #### 3\nx|| #### 1{end}".encode()
    monkeypatch.setattr(fetching, "load_dataset", lambda *_, **__: Dataset.from_list(ROWS))
    file = File.of("train.txt", hashlib.sha256(content).hexdigest(), f"{address}/train.txt")
    study = study_on(monkeypatch, file)
    assert fetching.fetch(study, tmp_path / "data") == [tmp_path / "data/train.txt"]
    assert (tmp_path / "data/train.txt").read_bytes() == content
    monkeypatch.setattr(fetching, "load_dataset", lambda *_, **__: Dataset.from_list(ROWS[:1]))
    with pytest.raises(DataError, match=r"failed \(.*\), and the rows of whynlp/gsm8k-aug on the hub make another"):
        fetching.fetch(study, tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=rf"{tmp_path}/file/gsm8k_aug cannot be made \(.*\): name another --folder"):
        fetching.fetch(study_on(monkeypatch, File.of("gsm8k_aug/train.txt", None)), tmp_path / "file")


def test_an_address_is_no_setting_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that were prepared before it moved are still those that a study asks for; another file is another one."""
    keys = []
    for digest, url in (("0" * 64, None), ("0" * 64, "https://example.org"), ("1" * 64, None)):
        study = study_on(monkeypatch, File.of("train.txt", digest, url))
        monkeypatch.setattr(store, "get_dataset", fetching.get_dataset)
        keys.append(store._key(study, study.blocks[0]))
    assert keys[0] == keys[1] != keys[2]


def test_rows_without_a_pinned_revision_are_written_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"question": "How many\u2028?", "cot": "It is 2.", "answer": "2"},
        {"question": "x", "cot": "", "answer": "1"},
    ]
    monkeypatch.setattr(fetching, "load_dataset", lambda name, config, split, revision: Dataset.from_list(rows))
    study = study_on(monkeypatch, train="gsm8k_aug_text", form="text")
    (path,) = fetching.fetch(study, tmp_path)
    assert path == tmp_path / "gsm8k_aug/train_text.jsonl"
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    found = DATASETS["gsm8k_aug_text"].rows("train")
    assert [(row.question, row.solution, row.answer) for row in found] == [tuple(row.values()) for row in rows]
    assert "has 2 rows, and 385620 were expected" in caplog.text
    assert (
        f"at revision 1234abcd, the newest today (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()})"
        in caplog.text
    )
    path.unlink()
    monkeypatch.setattr(fetching, "load_dataset", lambda name, config, split, revision: 1 / 0)
    with pytest.raises(DataError, match=r"gsm8k_aug_text: zen-E/GSM8k-Aug-NL on the hub does not give its rows \(div"):
        fetching.fetch(study, tmp_path)
    assert list(path.parent.iterdir()) == []


def test_what_the_hub_has_or_is_generated_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert fetching.fetch(study_on(monkeypatch, train="gsm8k", test="multiarith"), None) == []
    with pytest.raises(DataError, match=f"name a folder for the files with --folder, and set {DATA_VARIABLE} to it"):
        fetching.fetch(study_on(monkeypatch, File.of("train.txt", None)), None)


def test_files_of_the_data_sets_that_others_derive_from_are_fetched() -> None:
    dataset = DATASETS["gsm8k_held_out"]
    assert isinstance(dataset, Generated)
    assert [(source.card.name, split) for source, split in dataset.derived] == [
        ("gsm8k", "train"),
        ("gsm8k_aug", "validation"),
    ]
    wanted = [file.path for _, _, file in fetching._wanted(load_study("smollm2"))]
    assert wanted == ["gsm8k_aug/valid.txt", "gsm_hard/gsmhardv2.jsonl"]


def test_the_command_prints_what_is_new(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, served = server
    (served / "train.txt").write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    study = study_on(monkeypatch, File.of("train.txt", digest, f"{address}/train.txt"))
    monkeypatch.setattr("benchmarks.cli.catalogue.load_study", lambda name: study)
    for printed, said in ((f"{tmp_path}/train.txt\n", "1 file fetched"), ("", "nothing to fetch: all files are there")):
        done = invoke("fetch", "small", "--folder", tmp_path)
        assert done.stdout == printed and said in done.stderr


@pytest.mark.parametrize("name", ["gsm8k_aug", "svamp_paper4138"])
def test_what_can_be_fetched_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without a checksum could change under their address, and have none."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    dataset = DATASETS[name]
    assert isinstance(dataset, DataSet)
    split = "train" if name == "gsm8k_aug" else "test"
    assert all(file.url and file.url.startswith("https://") and file.sha256 for file in dataset.card.files[split])
    with pytest.raises(DataError, match=r"\(`marcos-bench fetch STUDY` downloads what a study needs\)"):
        dataset.rows(split)
