"""Full disks, damaged checkpoints and losses that are not finite.

What was whole is kept, and training goes on from it to the result of a run without faults.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from benchmarks import checkpoints, files
from benchmarks.data import DataError
from benchmarks.engine import Ranks
from benchmarks.models import build_method, exported_method, trained_method
from benchmarks.processes import locks
from benchmarks.processes.locks import FileLock
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training import loop as training
from benchmarks.training.batches import PrefetchingLoader
from benchmarks.training.loop import NonFiniteLoss, train
from inflict import exit_code, in_step, logged, nth_call, run_of, saved
from methods.errors import InputError
from small import fresh

# -- disks


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_named_and_the_last_checkpoint_kept(
    error: Exception,
    results: Path,
    undisturbed: Callable[[RunSpec], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, folder = run_of("cot_sft"), Paths(results, run_of("cot_sft")).checkpoints

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", checkpoints.save_file)  # undone afterwards
        nth_call(checkpoints, "save_file", 8, fail)
        with pytest.raises(
            files.DiskFull, match=rf"{folder}.*: the disk is full \([\d.]+ GB were to be written, .* free"
        ):
            train(spec, results)
    assert saved(spec, results) and not list(folder.glob(".*"))
    assert train(spec, results)["weights_sha256"] == undisturbed(spec)


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SecondOfTwo(Ranks):
    rank, world = 1, 2


def test_a_rank_with_a_full_disk_removes_its_own_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks still write to the folder. The next start removes what they left."""

    def half(_: Any, path: Path) -> None:
        path.write_bytes(b"half")
        no_space()

    others = tmp_path / ".step-2.partial/model-00001-of-00002.safetensors"
    files.write_text(others, "being written")
    with monkeypatch.context() as patch, pytest.raises(files.DiskFull):
        patch.setattr(checkpoints, "save_file", half)
        checkpoints.save(tmp_path, "step-2", [("weight", torch.ones(2))], [], {"key": "k"}, SecondOfTwo())
    assert list(tmp_path.rglob("*.safetensors")) == [others]
    assert checkpoints.load_latest(tmp_path, "k") is None
    save(tmp_path, 3, "k")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003-000"]


def test_a_full_disk_spares_the_record_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    files.write_json(path, {"a": 1})

    monkeypatch.setattr(files, "sync", no_space)
    with pytest.raises(files.DiskFull, match=rf"{tmp_path}: the disk is full"):
        files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_has_no_room_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks.json, "dump", no_space)
    with pytest.raises(files.DiskFull, match=rf"{tmp_path}: the disk is full"), FileLock(tmp_path / "lock", "the test"):
        pass


def test_room_for_features_is_taken_before_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "features"
    for platform in ("darwin", "linux"):
        monkeypatch.setattr(sys, "platform", platform)
        files.reserve(path, 10_000)
        assert path.stat().st_size == 10_000 and path.stat().st_blocks * 512 >= 10_000
        path.unlink()

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(files.DiskFull, match=r"2,000.00 GB were to be written"):
        files.reserve(path, 2 * 10**12)
    assert not path.exists()


# -- checkpoints that are damaged on disk


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_a_number(path: Path) -> None:
    """Change a digit, as a single flipped bit could."""
    path.write_text(path.read_text(encoding="utf-8").replace('"stage_step": 6', '"stage_step": 7'), encoding="utf-8")


@pytest.fixture(scope="module")
def killed(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with a run that was killed in its seventh step."""
    spec, folder = run_of("cot_sft"), fresh(small_data, tmp_path_factory.mktemp("killed"))
    assert exit_code(in_step, 7, spec, folder) == -signal.SIGKILL
    assert saved(spec, folder) == [5, 6]
    return folder


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", cut),
        ("model.safetensors", flip),
        ("optimizer.safetensors", flip),
        ("optimizer.safetensors", Path.unlink),
        ("state.json", cut),
        ("state.json", change_a_number),
    ],
)
def test_the_checkpoint_before_a_damaged_one_is_used(
    name: str, damage: Callable[[Path], None], killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(Paths(killed, run_of("cot_sft")).checkpoints, tmp_path / "checkpoints")
    newest = max(folder.glob("step-*"))
    before, key = (newest / name).read_bytes(), checkpoints.load(newest).state["key"]
    damage(newest / name)
    assert not (newest / name).exists() or (newest / name).read_bytes() != before
    found = checkpoints.load_latest(folder, key)
    assert found and found.state["train_state"]["stage_step"] == 5
    assert str(newest / name) in caplog.text and "going back to the checkpoint before it" in caplog.text


def test_a_run_with_a_damaged_checkpoint_ends_as_one_without(
    killed: Path, tmp_path: Path, undisturbed: Callable[[RunSpec], str], caplog: pytest.LogCaptureFixture
) -> None:
    spec, results = run_of("cot_sft"), shutil.copytree(killed, tmp_path / "results", symlinks=True)
    flip(max(Paths(results, spec).checkpoints.glob("step-*")) / "model.safetensors")
    assert train(spec, results)["weights_sha256"] == undisturbed(spec)
    assert "going on from step 5" in caplog.text


# -- numbers that are not finite


def spoil_weights(steps: PrefetchingLoader, *_: Any) -> None:
    next(steps.engine.method.parameters()).data.fill_(float("nan"))


def spoil_gradient(loss: torch.Tensor) -> None:
    loss.register_hook(lambda gradient: gradient * float("inf"))


@pytest.mark.parametrize(
    ("owner", "name", "spoil", "term"),
    [
        (training, "optimizer_step", spoil_weights, "cross_entropy"),
        (torch.Tensor, "backward", spoil_gradient, "grad_norm"),
    ],
)
def test_a_number_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(
    owner: Any,
    name: str,
    spoil: Callable[..., None],
    term: str,
    results: Path,
    undisturbed: Callable[[RunSpec], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = run_of("cot_sft")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, getattr(owner, name))  # undone afterwards
        nth_call(owner, name, 9, spoil)
        message = (
            rf"step 8 \(chain\): {term} is not finite; loss terms .*'cross_entropy'.*examples .*'embedded-train-\d"
        )
        with pytest.raises(NonFiniteLoss, match=message):
            train(spec, results)
    assert saved(spec, results) == [7, 8]
    assert train(spec, results)["weights_sha256"] == undisturbed(spec)


def fail(*_: Any) -> None:
    raise RuntimeError("failed")


def test_what_led_to_an_error_is_in_the_log(
    results: Path,
    undisturbed_run: Callable[[RunSpec], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what no checkpoint has kept: the run begins again, and its log with it."""
    spec = run_of("cot_sft", log_every=1, checkpoint_seconds=3600)
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", torch.optim.AdamW.step)  # undone afterwards
        nth_call(torch.optim.AdamW, "step", 9, fail)
        with pytest.raises(RuntimeError, match="failed"):
            train(spec, results)
    assert not saved(spec, results) and [line["step"] for line in logged(spec, results)] == [*range(1, 9)]
    train(spec, results)
    assert logged(spec, results) == logged(spec, undisturbed_run(spec))


# -- checkpoints that a run does not continue from


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def save(folder: Path, step: int, key: str, **state: float) -> None:
    tensors = [("weight", torch.full((3,), float(step)))]
    checkpoints.save(folder, f"step-{step:09d}-000", tensors, [], {"key": key, **state})


def test_the_first_checkpoint_of_other_settings_outlives_those_of_the_settings_before(tmp_path: Path) -> None:
    for step in (5, 6):
        save(tmp_path, step, "before")
    assert checkpoints.load_latest(tmp_path, "now") is None
    # For someone who goes back to the earlier settings
    assert names(tmp_path) == ["step-000000005-000", "step-000000006-000"]
    save(tmp_path, 1, "now")
    assert names(tmp_path) == ["step-000000001-000"]
    found = checkpoints.load_latest(tmp_path, "now")
    assert found and found.model["weight"].tolist() == [1.0] * 3


def test_hours_of_work_under_other_code_are_not_thrown_away(tmp_path: Path) -> None:
    save(tmp_path, 5, "before", seconds=9000)
    with pytest.raises(InputError, match=r"step-000000005-000 holds 2\.5 hours of .* or remove"):
        checkpoints.load_latest(tmp_path, "now")
    found = checkpoints.load_latest(tmp_path, "before")
    assert found and found.state["seconds"] == 9000


def test_a_damaged_checkpoint_takes_no_good_one_s_place(tmp_path: Path) -> None:
    for step in (4, 5, 6):
        save(tmp_path, step, "key")
    assert names(tmp_path) == ["step-000000005-000", "step-000000006-000"]
    (tmp_path / "step-000000006-000/model.safetensors").write_bytes(b"damaged")
    assert checkpoints.load_latest(tmp_path, "key")
    save(tmp_path, 5, "key")  # again at this step, as happens when checkpoints are due by time
    assert names(tmp_path) == ["step-000000005-000"]


def test_a_state_that_is_no_text_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        save(tmp_path, step, "key")
    path = tmp_path / "step-000000002-000/state.json"
    path.write_bytes(bytes([path.read_bytes()[0] | 0x80]) + path.read_bytes()[1:])
    found = checkpoints.load_latest(tmp_path, "key")
    assert found and found.model["weight"].tolist() == [1.0] * 3 and "not UTF-8" in caplog.text


# -- final weights


def test_weights_of_other_settings_are_refused(undisturbed_run: Callable[[RunSpec], Path]) -> None:
    """This happens after an edit of the study without a new training."""
    results = undisturbed_run(run_of("cot_sft"))
    trained_method(run_of("cot_sft"), results)
    with pytest.raises(
        files.BrokenRecord, match=r"other settings than equation/cot_sft/s0 of study small has now: train"
    ):
        trained_method(run_of("cot_sft", learning_rate=3e-3), results)


def test_a_training_s_record_that_lacks_its_weights_is_named(
    undisturbed_run: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    spec = run_of("cot_sft")
    results = shutil.copytree(undisturbed_run(spec), tmp_path / "copy")
    record = Paths(results, spec).record("train")
    record.write_text(json.dumps({"digest": spec.digest("train")}), encoding="utf-8")
    with pytest.raises(files.BrokenRecord, match=r"train.json has no 'weights_sha256': it is damaged"):
        trained_method(spec, results)
    shutil.rmtree(Paths(results, spec).data / "tokenizer")
    with pytest.raises(DataError, match=r"tokenizer is not there: remove .*equation, and run `marcos-bench data`"):
        build_method(spec, Paths(results, spec).data)


@pytest.mark.parametrize("damage", ["bit", "cut", "other"])
def test_final_weights_that_are_not_those_of_training_are_refused(
    damage: str, undisturbed_run: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    spec = run_of("cot_sft")
    results = shutil.copytree(undisturbed_run(spec), tmp_path / "results", symlinks=True)
    path = Paths(results, spec).weights
    content = bytearray(path.read_bytes())
    if damage == "bit":
        content[-5] ^= 1
    if damage == "other":
        tensors = dict(checkpoints.read_weights(path))
        checkpoints.save_weights(path, {name: tensor + 1 for name, tensor in tensors.items()})
    else:
        path.write_bytes(content[:-40] if damage == "cut" else content)
    with pytest.raises(files.BrokenRecord, match=f"{path} is (damaged|not what .*train.json recorded)"):
        trained_method(spec, results)
    if damage != "other":
        with pytest.raises(files.BrokenRecord, match="is damaged"):
            exported_method(path.parent)
