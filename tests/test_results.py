"""Collecting run records: missing, broken or stale ones stay visible."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.files import BrokenRecord, read_json, read_parquet, write_json, write_parquet, write_text
from benchmarks.records import results
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import Study
from fabricate import N, collected, fabricate, study, time_record, train_record, update_record
from methods import registry


@pytest.fixture
def fake(tmp_path: Path) -> tuple[Study, Path]:
    made = study()
    fabricate(made, tmp_path)
    return made, tmp_path


def line(frame: pd.DataFrame, run: str, decoding: str = "default", test: str = "alpha") -> Any:
    found = frame[(frame["run"] == run) & (frame["decoding"] == decoding) & (frame["test"] == test)]
    assert len(found) == 1
    return found.iloc[0]


def test_one_row_per_run_decoding_and_test(fake: tuple[Study, Path]) -> None:
    frame = results.collect(*fake)
    # per block and test: 4 rows with the default decoding, and mean R for both rows of MarCos
    assert len(frame) == 2 * 2 * (4 + 2)
    assert not frame.duplicated(["run", "decoding", "test"]).any()
    assert set(frame["status"]) == {"done"} and frame["reason"].dropna().empty
    assert list(frame.columns) == list(results.COLUMNS)


def test_values_of_a_sampled_row(fake: tuple[Study, Path]) -> None:
    marcos = line(results.collect(*fake), "equation/marcos/s0")
    recorded = read_json(fake[1] / "fake/runs/equation/marcos/s0/evaluate.json")
    accuracy = pd.Series(recorded["decodings"]["default"]["tests"]["alpha"]["accuracy"])
    assert marcos["accuracy_mean"] == pytest.approx(accuracy.mean())
    assert marcos["accuracy_std"] == pytest.approx(accuracy.std())
    assert (marcos["n"], marcos["n_seeds"], marcos["stochastic"]) == (N, 3, True)
    assert marcos["test_seconds_median"] == 2.0 and marcos["test_seconds_spread"] == pytest.approx(0.1)
    assert marcos["all_steps_seconds_median"] == 4.0 and marcos["all_steps_seconds_spread"] == 1.0
    assert marcos["ms_per_question"] == pytest.approx(10.0)
    assert marcos["train_epoch_seconds"] == 12.5 and marcos["training_flops"] == 3e12


def test_a_deterministic_row_has_no_spread_and_other_decodings_no_times(fake: tuple[Study, Path]) -> None:
    frame = results.collect(*fake)
    assert pd.isna(line(frame, "equation/marcos_wo_r/s0")["accuracy_std"])
    assert pd.isna(line(frame, "equation/cot/s0")["all_steps_seconds_median"])
    assert pd.isna(line(frame, "equation/marcos/s0", "mean_r")["test_seconds_median"])


def test_answers_of_weights_that_were_trained_again_are_stale(fake: tuple[Study, Path]) -> None:
    folder = fake[1] / "fake/runs/equation/cot/s0"
    for name in ("evaluate", "time"):
        update_record(folder / f"{name}.json", weights_sha256="of older weights")
    own = line(results.collect(*fake), "equation/cot/s0")
    assert own["status"] == "partial" and pd.isna(own["accuracy_mean"]) and pd.isna(own["test_seconds_median"])
    assert "stale evaluate.json: made from other weights" in own["reason"] and "stale time.json" in own["reason"]


def test_missing_broken_and_stale_records_are_rows_with_a_reason(fake: tuple[Study, Path]) -> None:
    made, folder = fake
    runs = folder / "fake" / "runs" / "text"
    (runs / "cot/s0/time.json").unlink()
    write_text(runs / "marcos/s0/evaluate.json", "{\n oops")
    stale = train_record(made.runs["text/marcos_wo_r/s0"]) | {"digest": "0" * 16}
    write_json(runs / "marcos_wo_r/s0/train.json", stale)
    lacking = time_record(made.runs["text/oracle/s0"])
    del lacking["tests"]["beta"]
    write_json(runs / "oracle/s0/time.json", lacking)
    write_json(folder / "fake/runs/equation/cot/s0/train.json", {"digest": "?"})
    frame = results.collect(made, folder)
    assert len(frame) == 24
    reasons = {run: line(frame, run)["reason"] for run in frame["run"].unique()}
    assert reasons["text/cot/s0"] == "no time.json"
    assert "line 2: broken JSON" in reasons["text/marcos/s0"]
    assert reasons["text/marcos_wo_r/s0"].startswith("stale train.json")
    assert "lacks times of ['beta']" in reasons["text/oracle/s0"]
    assert "is broken (environment" in reasons["equation/cot/s0"]
    partial = frame[frame["reason"].notna()]
    assert set(partial["status"]) == {"partial"}
    assert pd.isna(line(frame, "text/cot/s0")["train_epoch_seconds"])
    assert line(frame, "text/cot/s0")["accuracy_mean"] > 0  # existing results are shown


def test_a_run_without_any_record_has_not_run(tmp_path: Path) -> None:
    frame = results.collect(study(), tmp_path)
    assert len(frame) == 24 and set(frame["status"]) == {"not run"}
    assert frame["reason"].iloc[0] == "no train.json; no evaluate.json; no time.json"
    assert frame["accuracy_mean"].dropna().empty


def test_warm_starts_count_in_training_and_are_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = classmethod(lambda cls, options: "cot_sft")
    monkeypatch.setattr(registry.get_method("marcos"), "starts_from", start)
    rows = [{"id": "marcos", "method": "marcos"}]
    made = study(rows=rows)
    frame = collected(made, tmp_path)
    own, warm = line(frame, "text/marcos/s0"), line(frame, "text/cot_sft/s0")
    assert (own["shown"], warm["shown"]) == (True, False)
    assert own["train_epoch_seconds"] == 25.0 and own["training_flops"] == 6e12 and own["train_wall_seconds"] == 120.0
    assert warm["train_epoch_seconds"] == 12.5
    (tmp_path / "fake/runs/text/cot_sft/s0/evaluate.json").unlink()  # its own accuracy does not matter
    assert line(results.collect(made, tmp_path), "text/marcos/s0")["status"] == "done"
    (tmp_path / "fake/runs/text/cot_sft/s0/time.json").unlink()
    own = line(results.collect(made, tmp_path), "text/marcos/s0")
    assert pd.isna(own["train_epoch_seconds"]) and "warm start text/cot_sft/s0: no time.json" in own["reason"]


def test_a_warm_start_whose_row_is_not_for_its_block_is_no_row_there(tmp_path: Path) -> None:
    rows = [
        {"id": "cot_sft", "method": "cot_sft", "blocks": ["text"]},
        {"id": "coconut", "method": "coconut", "blocks": ["equation"]},
    ]
    made = study(rows=rows)
    frame = collected(made, tmp_path)
    assert set(frame["run"]) == set(made.runs)
    assert line(frame, "text/cot_sft/s0")["shown"] and line(frame, "equation/coconut/s0")["shown"]
    assert not line(frame, "equation/cot_sft/s0")["shown"]


def test_written_files(fake: tuple[Study, Path]) -> None:
    made, folder = fake
    frame = results.collect(made, folder)
    assert len(pd.read_csv(folder / "fake" / "frame.csv")) == len(frame)
    loaded = results.load_collected(made, folder)
    pd.testing.assert_frame_equal(results.to_frame(loaded), frame)
    assert loaded.runs["text/cot/s0"].train is not None
    assert loaded.data["text"]["overlaps"]["alpha"]["shared_with_train"] == 20


def test_what_was_collected_of_data_that_are_gone_is_kept(fake: tuple[Study, Path]) -> None:
    """Archives hold no data: without this, `collect` on unpacked results would lose the titles of test sets."""
    made, folder = fake
    results.collect(made, folder)
    shutil.rmtree(folder / "fake/data")
    before = results.load_collected(made, folder).data
    results.collect(made, folder)
    assert results.load_collected(made, folder).data == before


def test_a_collection_of_another_study_is_refused(fake: tuple[Study, Path]) -> None:
    made, folder = fake
    with pytest.raises(BrokenRecord, match=r"collect\.json does not exist: run `marcos-bench collect fake --results "):
        results.load_collected(made, folder)
    results.collect(made, folder)
    with pytest.raises(BrokenRecord, match=r"another version of the study: run `marcos-bench collect fake .*` again"):
        results.load_collected(study(threads=2), folder)


def test_a_collection_without_records_is_refused(fake: tuple[Study, Path]) -> None:
    made, folder = fake
    path = folder / "fake" / "collect.json"
    write_json(path, {"study": "fake"})
    with pytest.raises(BrokenRecord, match=r"collect\.json is broken \(runs: Field required\)"):
        results.load_collected(made, folder)


@pytest.fixture
def sharing(fake: tuple[Study, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Study, Path]:
    """Return a study that asks for less than the fabricated one. Its rows `chain` and `longer` are CoT-SFT."""
    monkeypatch.setattr("benchmarks.studies.study.load_study", lambda name: fake[0])
    rows = [{"id": "chain", "method": "cot_sft"}, {"id": "longer", "method": "cot_sft", "training": {"epochs": 2}}]
    evaluation = {"tests": ["beta"], "decodings": {"default": {"seeds": 3}}}
    return study(name="second", shares="fake", rows=rows, evaluation=evaluation, timing=None), fake[1]


def test_a_run_with_the_settings_of_a_shared_studys_run_is_that_run(sharing: tuple[Study, Path]) -> None:
    asked, folder = sharing
    assert asked.sources["text/chain/s0"].id == "text/cot/s0" and asked.sources["text/chain/s0"].study == "fake"
    assert asked.sources["text/longer/s0"] is asked.runs["text/longer/s0"]
    frame = results.collect(asked, folder)
    shared = line(frame, "text/chain/s0", test="beta")
    assert shared["status"] == "done" and shared["accuracy_mean"] == pytest.approx(0.5, abs=0.1)
    assert line(frame, "text/longer/s0", test="beta")["status"] == "not run"


def test_whom_else_a_decoding_is_meant_for_does_not_part_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def deciding(only: list[str] | None, **settings: Any) -> Study:
        decodings = {"default": {"seeds": 3}, "drawn": {"tokens": "sample", "only": only}}
        rows = [{"id": "chain", "method": "cot_sft"}, {"id": "marcos", "method": "marcos"}]
        return study(rows=rows, evaluation={"tests": ["alpha"], "decodings": decodings}, **settings)

    both = deciding(["cot_sft", "marcos"])
    monkeypatch.setattr("benchmarks.studies.study.load_study", lambda name: both)
    for only, homes in ((["cot_sft"], ["fake", "fake"]), (None, ["fake", "fake"])):
        found = deciding(only, name="second", shares="fake").sources
        assert [found[f"text/{row}/s0"].study for row in ("chain", "marcos")] == homes


@pytest.mark.parametrize(("shares", "homes"), [("b", "bb"), (["a", "b"], "ab"), (["b", "a"], "bb"), (None, "cc")])
def test_of_several_shared_studies_the_first_that_has_a_run_gives_it(
    shares: Any, homes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"a": study(name="a"), "b": study(name="b", seeds=[0, 1])}
    monkeypatch.setattr("benchmarks.studies.study.load_study", known.__getitem__)
    asked = study(name="c", shares=shares, rows=[{"id": "chain", "method": "cot_sft"}], seeds=[0, 1])
    runs = ["text/chain/s0", "text/chain/s1"]
    assert "".join(asked.sources[run].study for run in runs) == homes
    assert {home: [run for run in there if run in runs] for home, there in asked.shared.items()} == {
        home: [run for run, one in zip(runs, homes, strict=True) if one == home] for home in {*homes} - {"c"}
    }


def test_what_is_trained_here_starts_from_the_weights_of_a_shared_run(sharing: tuple[Study, Path]) -> None:
    rows = [{"id": "chain", "method": "cot_sft"}, {"id": "coconut", "method": "coconut"}]
    asked = study(name="second", shares="fake", rows=rows, timing=None)
    own = asked.runs["text/coconut/s0"]
    assert asked.sources[own.id] is own and asked.sources["text/chain/s0"].study == "fake"
    assert (own.starts_from, own.starts_at) == ("text/chain/s0", "fake/runs/text/cot/s0")
    assert Paths(sharing[1], own).start == Paths(sharing[1], asked.sources["text/chain/s0"]).weights
    alone = study(name="second", rows=rows, timing=None).runs[own.id]
    assert alone.starts_at == "second/runs/text/chain/s0" and alone.digest("train") == own.digest("train")


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"tests": ["beta", "gamma"]}},
        {"evaluation": {"tests": ["beta"], "max_new_tokens": 9}},
        {"seeds": [1]},
        {"threads": 2},
        {"timing": {"repeats": 1}},
    ],
)
def test_a_run_that_is_asked_more_is_not_shared(changes: dict[str, Any], sharing: tuple[Study, Path]) -> None:
    rows = [{"id": "chain", "method": "cot_sft"}]
    asked = study(**{"name": "second", "shares": "fake", "rows": rows, "timing": None} | changes)
    assert {source.study for source in asked.sources.values()} == {"second"}
    assert asked.shared_in_vain.startswith("No run is shared with fake: ")


def test_only_a_run_that_can_be_analysed_needs_the_same_analysis(sharing: tuple[Study, Path]) -> None:
    """A run's folder has one analysis. MarCos without R has none, as CoT-SFT."""
    rows = [{"id": "chain", "method": "cot_sft"}, *study().model_dump()["rows"][1:3]]
    for analysis, homes in (({}, ["fake"] * 3), ({"questions": 9}, ["fake", "second", "fake"])):
        asked = study(name="second", shares="fake", rows=rows, timing=None, analysis=analysis)
        assert [asked.sources[f"text/{row['id']}/s0"].study for row in rows] == homes


def test_a_study_without_times_is_done_without_them(tmp_path: Path) -> None:
    untimed = study(timing=None)
    fabricate(untimed, tmp_path)
    for path in (tmp_path / "fake/runs").rglob("time.json"):
        path.unlink()
    assert set(results.collect(untimed, tmp_path)["status"]) == {"done"}


def test_a_frame_must_be_the_recorded_one(tmp_path: Path) -> None:
    path = tmp_path / "predictions" / "default.parquet"
    frame = pd.DataFrame({"id": ["x", "y"], "correct": [True, False]})
    digest = write_parquet(path, frame)
    pd.testing.assert_frame_equal(read_parquet(path, digest, "`evaluate`"), frame)
    assert list(read_parquet(path, digest, "`evaluate`", ["id"])) == ["id"]
    for wrong in ("0" * 64, None):
        with pytest.raises(BrokenRecord, match=r"default\.parquet is not the file that was recorded: run `evaluate` "):
            read_parquet(path, wrong, "`evaluate`")
    path.unlink()
    with pytest.raises(BrokenRecord, match=r"default\.parquet does not exist: run `evaluate` again"):
        read_parquet(path, digest, "`evaluate`")
