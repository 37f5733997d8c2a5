"""Packed results hold what they were packed from, and are verified as they stand."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tarfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.archive import ARCHIVE, LOGGED_STEPS, PREDICTIONS, pack, studies_of, thin_log, unpack, unpacked
from benchmarks.files import BrokenRecord, DiskFull, frame_digest, read_json, write_json
from benchmarks.records import results
from benchmarks.report.report import report
from benchmarks.studies.paths import COLLECTED, Paths
from benchmarks.verification.checks import verify
from methods.errors import InputError
from test_verification import study, with_tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = with_tables(tmp_path_factory.mktemp("made"))
    (place / "fake/runs/equation/cot/s0/model").mkdir()
    (place / "fake/runs/equation/cot/s0/model/weights.safetensors").write_bytes(bytes(100))
    return place / "fake"


def test_packed_results_are_verified_as_they_stand(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "fake")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        f"fake/{ARCHIVE}",
        *(f"fake/table_{table}.{ending}" for table in study().tables for ending in ("md", "tex", "csv")),
    }
    found = verify(study(), tmp_path / "fake")
    assert {finding.kind for finding in found} == {"ok"} and len(found) == len(verify(study(), folder))


def test_unpacked_predictions_and_records_are_those_that_were_packed(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "again/fake")
    spec = study().runs["equation/marcos/s0"]
    for name in spec.evaluation.decodings:
        old, new = (Paths(place, spec).predictions(name) for place in (folder.parent, tmp_path / "again"))
        pd.testing.assert_frame_equal(pd.read_parquet(old), pd.read_parquet(new))
    old, new = (Paths(place, spec).record("evaluate") for place in (folder.parent, tmp_path / "again"))
    assert old.read_bytes() == new.read_bytes()
    assert not list((tmp_path / "again").rglob("weights.safetensors"))
    with pytest.raises(InputError, match="is there already"):
        unpack(tmp_path / "packed", tmp_path / "again/fake")
    with pytest.raises(InputError, match=f"has no {ARCHIVE}"):
        unpack(folder, tmp_path / "other")


def test_nothing_is_packed_that_lacks_answers_or_replaces_another_study(folder: Path, tmp_path: Path) -> None:
    for target, message in ((folder / "sub", "is a part of what is packed"), (tmp_path / "other", "holds an archive")):
        if target.parent != folder:
            pack(folder, tmp_path / "fake")
            (tmp_path / "fake").rename(target)
        with pytest.raises(InputError, match=message):
            pack(folder, target)
    copied = tmp_path / "copied/fake"
    shutil.copytree(folder, copied)
    answers = copied / "runs/equation/marcos/s0/predictions/default.parquet"
    answers.unlink()
    with pytest.raises(BrokenRecord, match=f"{answers} does not exist: run `evaluate` and `collect` again"):
        pack(copied, tmp_path / "target")
    for other in (copied / "runs/equation/cot/s0/predictions/default.parquet", copied / "collect.json"):
        shutil.copyfile(other, answers)
        with pytest.raises(BrokenRecord, match=f"{answers} is not the file that was recorded"):
            pack(copied, tmp_path / "target")


def test_links_that_lead_nowhere_are_left_behind(folder: Path, tmp_path: Path) -> None:
    """Emacs makes one for each file that it is editing."""
    pack(folder, tmp_path / "packed")
    (tmp_path / "packed/.#table_main.md").symlink_to("nobody@nowhere.1")
    unpack(tmp_path / "packed", tmp_path / "fake")
    assert (tmp_path / "fake/collect.json").is_file() and not (tmp_path / "fake/.#table_main.md").is_symlink()


@pytest.mark.parametrize("copying", [True, False])
def test_a_full_disk_is_named_and_nothing_is_left(
    copying: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(*_: object, **__: object) -> None:
        raise shutil.Error([("table_main.md", "copy", str(full))]) if copying else full

    pack(folder, tmp_path / "packed")
    monkeypatch.setattr(*((shutil, "copytree") if copying else (pq, "write_table")), write)
    with pytest.raises(DiskFull, match="the disk is full"):
        unpack(tmp_path / "packed", tmp_path / "fake")
    assert not (tmp_path / "fake").exists()


def test_studies_that_made_the_runs_are_named(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "fake")
    assert studies_of(tmp_path / "fake") == {"fake"}
    collected = read_json(tmp_path / "fake" / COLLECTED)
    collected["runs"]["equation/marcos/s0"]["train"]["spec"]["study"] = "other"
    write_json(tmp_path / "fake" / COLLECTED, collected)
    assert studies_of(tmp_path / "fake") == {"fake", "other"}
    write_json(tmp_path / "fake" / COLLECTED, {"runs": []})
    with pytest.raises(BrokenRecord, match="is no collection of run records"):
        studies_of(tmp_path / "fake")


def test_the_same_results_give_the_same_archive(folder: Path, tmp_path: Path) -> None:
    first, second = (pack(folder, tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second
    unpack(tmp_path / "a", tmp_path / "unpacked")
    assert pack(tmp_path / "unpacked", tmp_path / "c").read_bytes() == first


def test_results_that_are_not_packed_are_read_where_they_are(folder: Path) -> None:
    with unpacked(folder.parent, ["fake"]) as place:
        assert place == folder.parent


def test_a_packed_study_finds_the_runs_that_it_shares_beside_it(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "fake")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/note.md").write_text("here", encoding="utf-8")
    with unpacked(tmp_path, ["fake", "other", "absent"]) as place:
        assert (place / "fake/collect.json").is_file() and (place / "other/note.md").is_file()
    assert not place.exists() and (tmp_path / "other/note.md").is_file()


def test_a_damaged_archive_says_so(folder: Path, tmp_path: Path) -> None:
    path = pack(folder, tmp_path / "fake")
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:1000], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(BrokenRecord, match="cannot be read"), unpacked(tmp_path, ["fake"]):
            pass
        with pytest.raises(BrokenRecord, match="get the file again"):
            unpack(tmp_path / "fake", tmp_path / "restored")
        assert not (tmp_path / "restored").exists()
    with pytest.raises(BrokenRecord, match=r"has no collect\.json"):
        pack(tmp_path / "absent", tmp_path / "target")


def test_an_archived_log_keeps_all_but_steps() -> None:
    kinds = ["validation" if number % 100 == 99 else "step" for number in range(1_000)]
    log = "".join(json.dumps({"kind": kind, "step": number}) + "\n" for number, kind in enumerate(kinds))
    path = Path("log.jsonl")
    kept = [json.loads(line) for line in thin_log(log, path).splitlines()]
    steps = [line["step"] for line in kept if line["kind"] == "step"]
    assert LOGGED_STEPS / 2 < len(steps) <= LOGGED_STEPS and steps[-1] == 998
    assert sum(line["kind"] == "validation" for line in kept) == 10
    assert [line["step"] for line in kept] == sorted(line["step"] for line in kept)
    assert thin_log(thin_log(log, path), path) == thin_log(log, path) and thin_log("", path) == ""
    assert thin_log(log + log[:9], path) == thin_log(log, path), "a line that was being written when a run was killed"
    for torn in ("{\n", "[]\n"):
        with pytest.raises(BrokenRecord, match=r"log\.jsonl, line 1001: no entry of a log"):
            thin_log(log + torn + log, path)


def test_a_digest_of_a_frame_is_that_of_its_content(tmp_path: Path) -> None:
    values = {"id": ["a", "b"], "n": [1, None], "x": [0.5, 2.0], "right": [True, False], "draws": [[], ["3"]]}
    digest = frame_digest(pa.table(values))
    narrow = {"n": pa.int32(), "x": pa.float32(), "id": pa.large_string()}
    assert frame_digest(pa.table({k: pa.array(v, narrow.get(k)) for k, v in values.items()})) == digest
    assert digest == "67f2df19f8ce13da6d254eee4e602ce0b105e7bc223bd3e0f7ab6c30c558fdd6"
    for name, other in (("id", ["a", "c"]), ("n", [1, 0]), ("x", [0.5, 2.5]), ("right", [True, True])):
        assert frame_digest(pa.table(values | {name: other})) != digest


def test_archives_hold_no_paths_outside_their_folder(folder: Path, tmp_path: Path) -> None:
    path = pack(folder, tmp_path / "fake")
    assert read_json(folder / "collect.json")["study"] == "fake"
    with tarfile.open(path, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(BrokenRecord, match="cannot be read"):
        unpack(tmp_path / "fake", tmp_path / "new")
    assert not (tmp_path / "outside").exists()


def test_predictions_are_restored_in_their_folder_alone(tmp_path: Path) -> None:
    name = "../outside.parquet"
    table = pa.table({"id": ["a"]}).replace_schema_metadata({"files": json.dumps({name: (1, ["id"])})})
    pq.write_table(table, tmp_path / PREDICTIONS)
    (tmp_path / "fake").mkdir()
    with tarfile.open(tmp_path / "fake" / ARCHIVE, "w:xz") as made:
        made.add(tmp_path / PREDICTIONS, PREDICTIONS)
    with pytest.raises(BrokenRecord, match=r"has a file outside its folder \(\.\./outside\.parquet\)"):
        unpack(tmp_path / "fake", tmp_path / "new")
    assert not (tmp_path / "outside.parquet").exists()


def test_archives_of_an_older_version_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"file": ["a.parquet"], "row": [0], "id": ["a"]}), tmp_path / PREDICTIONS)
    (tmp_path / "fake").mkdir()
    with tarfile.open(tmp_path / "fake" / ARCHIVE, "w:xz") as made:
        made.add(tmp_path / PREDICTIONS, PREDICTIONS)
    with pytest.raises(BrokenRecord, match="was packed by an older version: unpack it with that, and pack it again"):
        unpack(tmp_path / "fake", tmp_path / "new")


def test_results_are_not_packed_into_themselves(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be packed into itself"):
        pack(folder, folder)
    assert not (folder / ARCHIVE).exists()


def test_nothing_is_rendered_into_packed_results(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "fake")
    for use in (results.load_collected, results.require_records):
        with pytest.raises(InputError, match=r"fake is packed: `marcos-bench unpack .*fake RESULTS/fake`, and use"):
            use(study(), tmp_path)
    assert (tmp_path / "fake/table_main.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") in (
        report(tmp_path / "fake").read_text(encoding="utf-8")
    )
