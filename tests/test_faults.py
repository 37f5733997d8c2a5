"""What goes wrong on real machines, one fault after the other: nothing that was whole is lost, and the same command
goes on to the result that an undisturbed run has."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from benchmarks import checkpoints, features, files, launch, training
from benchmarks.data import prepare
from benchmarks.paths import Paths
from benchmarks.preemption import EXIT_CODE
from benchmarks.specs import RunSpec
from benchmarks.steps import NonFiniteLoss
from copies import copy_suite, snakemake
from small import MARCOS, small_study
from test_locks import HOLD_WORKFLOW, process

ROWS = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos", "options": MARCOS}]
STEPS = 20  # of either run; 10 of MarCos's are its second phase

# Runs that are to die do so in processes of their own, forked from one that has imported everything and used nothing
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["benchmarks.training", "methods.registry"])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study, results = small_study(ROWS), tmp_path_factory.mktemp("results")
    prepare(study, study.blocks[0], results)
    return results


@pytest.fixture
def results(prepared: Path, tmp_path: Path) -> Path:
    """A results folder with data and no runs."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "data").symlink_to(prepared / "small" / "data")
    return tmp_path


def run_of(row: str, **settings: Any) -> RunSpec:
    return small_study(ROWS, training=settings).runs[f"equation/{row}/s0"]


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunSpec], str]:
    """The digest of the weights that a run has when nothing goes wrong."""
    known: dict[str, str] = {}

    def digest(spec: RunSpec) -> str:
        if spec.row not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            (folder / "small").mkdir()
            (folder / "small" / "data").symlink_to(prepared / "small" / "data")
            known[spec.row] = launch.train(spec, folder)["weights_sha256"]
        return known[spec.row]

    return digest


# -- faults: each sees to it that the process that it is called in meets it while it trains

Fault = Callable[[int], None]


def nth_call(owner: Any, name: str, count: int, act: Callable[..., None], chosen: Callable[..., bool] | None = None):
    """Replace a function by one that acts before its ``count``-th call, of those ``chosen``."""
    real, calls = getattr(owner, name), [0]

    def counting(*arguments: Any, **settings: Any) -> Any:
        counts = chosen is None or chosen(*arguments)
        calls[0] += counts
        if counts and calls[0] == count:
            act(*arguments)
        return real(*arguments, **settings)

    setattr(owner, name, counting)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_step(count: int) -> None:
    nth_call(torch.optim.AdamW, "step", count, die)


def in_writing(count: int) -> None:
    def half(tensors: Any, path: Path) -> None:
        Path(path).write_bytes(b"half a file")
        die()

    nth_call(checkpoints, "save_file", count, half)


def is_checkpoint(source: Any, target: Any) -> bool:
    return Path(target).name.startswith("step-")


def before_renaming(count: int) -> None:
    nth_call(os, "replace", count, die, is_checkpoint)


def after_renaming(count: int) -> None:
    """When a new checkpoint is in its place, and the oldest is still there."""
    nth_call(checkpoints, "_by_age", count, die)


def before_the_record(_: int) -> None:
    nth_call(os, "replace", 1, die, lambda source, target: Path(target).name == "train.json")


def told_to_go(count: int) -> None:
    def tell(*_: Any) -> None:
        Path("told").touch()
        os.kill(os.getpid(), signal.SIGTERM)

    nth_call(torch.optim.AdamW, "step", count, tell)


def told_to_go_while_features_are_computed(_: int) -> None:
    nth_call(features.FeatureStore, "_column", 2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def _train(fault: Fault, count: int, spec: RunSpec, results: Path) -> None:
    os.chdir(results)
    fault(count)
    launch.train(spec, results)


def exit_code(fault: Fault, count: int, spec: RunSpec, results: Path) -> int | None:
    child = FORKS.Process(target=_train, args=(fault, count, spec, results))
    child.start()
    child.join()
    return child.exitcode


def saved(spec: RunSpec, results: Path) -> list[int]:
    """The steps that resumable checkpoints stand at."""
    return sorted(int(path.name.split("-")[1]) for path in Paths(results, spec).checkpoints.glob("step-*"))


def logged_steps(spec: RunSpec, results: Path) -> list[int]:
    lines = map(json.loads, (Paths(results, spec).run / "log.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if line["kind"] == "step"]


# -- SIGKILL


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        *[("cot_sft", fault) for fault in (in_step, in_writing, before_renaming, after_renaming, before_the_record)],
        ("marcos", in_step),  # with features that are computed again
    ],
)
def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(
    fault: Fault, row: str, results: Path, undisturbed: Callable[[RunSpec], str]
) -> None:
    spec = run_of(row, log_every=1)
    for count in (7, 13):
        assert exit_code(fault, count, spec, results) == -signal.SIGKILL
    assert not (Paths(results, spec).run / "train.json").exists()
    assert launch.train(spec, results)["weights_sha256"] == undisturbed(spec)
    assert logged_steps(spec, results) == list(range(1, STEPS + 1))
    left = {path.name for path in Paths(results, spec).checkpoints.iterdir()}
    assert left == {"best.safetensors"}


# -- SIGTERM


def test_a_run_that_is_told_to_go_saves_itself_at_once(
    results: Path, undisturbed: Callable[[RunSpec], str], caplog: pytest.LogCaptureFixture
) -> None:
    """No checkpoint was due: the one that is there was written for this reason."""
    spec = run_of("cot_sft", checkpoint_seconds=1e6)
    assert exit_code(told_to_go, 6, spec, results) == EXIT_CODE
    assert saved(spec, results) == [6]
    (checkpoint,) = Paths(results, spec).checkpoints.glob("step-*")
    assert checkpoint.stat().st_mtime - (results / "told").stat().st_mtime < 10
    assert launch.train(spec, results)["weights_sha256"] == undisturbed(run_of("cot_sft"))
    assert "going on from step 6" in caplog.text


def test_features_that_would_be_computed_again_are_left(results: Path, undisturbed: Callable[[RunSpec], str]) -> None:
    spec = run_of("marcos", checkpoint_seconds=1e6)
    assert exit_code(told_to_go_while_features_are_computed, 1, spec, results) == EXIT_CODE
    assert saved(spec, results) == [10]
    assert launch.train(spec, results)["weights_sha256"] == undisturbed(run_of("marcos"))


TERMINATED_ONCE = """
import os, signal
import torch
real = torch.optim.AdamW.step

def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError:  # it has ended meanwhile
        return None

def step(*arguments, **settings):
    if not os.path.exists("told"):
        open("told", "w").close()
        shell = os.getppid()
        for pid in [shell, *(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == shell)]:
            os.kill(pid, signal.SIGTERM)  # as a scheduler does: the shell, tee and all
    return real(*arguments, **settings)

torch.optim.AdamW.step = step
"""


def test_the_workflow_tries_again_and_goes_on(tmp_path: Path) -> None:
    folder = copy_suite(tmp_path)
    path = folder / "benchmarks/cli/__main__.py"
    path.write_text(path.read_text().replace("app(", f"{TERMINATED_ONCE}\napp("))
    output = snakemake(folder, "--config", "study=smoke", "--", "results/smoke/runs/equation/cot_sft/s0/train.json")
    assert re.search(r"told to go; step \d+ is saved", output) and re.search(r"going on from step \d+", output)
    assert "Trying to restart job" in output
    assert (folder / "results/smoke/runs/equation/cot_sft/s0/train.json").exists()


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
        patch.setattr(checkpoints, "save_file", checkpoints.save_file)  # put back afterwards
        nth_call(checkpoints, "save_file", 8, fail)
        with pytest.raises(
            files.DiskFull, match=rf"{folder}.*: the disk is full \([\d.]+ GB were to be written, .* free"
        ):
            launch.train(spec, results)
    assert saved(spec, results) and not list(folder.glob(".*"))
    assert launch.train(spec, results)["weights_sha256"] == undisturbed(spec)


def test_a_full_disk_spares_the_record_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    files.write_json(path, {"a": 1})

    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(files.DiskFull, match=rf"{tmp_path}: the disk is full"):
        files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_room_for_features_is_taken_before_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "features"
    files.reserve(path, 10_000)
    assert path.stat().st_size == 10_000 and path.stat().st_blocks * 512 >= 10_000

    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
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
    """What one flipped bit can do to a digit."""
    path.write_text(path.read_text().replace('"stage_step": 6', '"stage_step": 7'))


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
    name: str,
    damage: Callable[[Path], None],
    results: Path,
    undisturbed: Callable[[RunSpec], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = run_of("cot_sft")
    assert exit_code(in_step, 7, spec, results) == -signal.SIGKILL
    assert saved(spec, results) == [5, 6]
    newest = max(Paths(results, spec).checkpoints.glob("step-*"))
    before = (newest / name).read_bytes()
    damage(newest / name)
    assert not (newest / name).exists() or (newest / name).read_bytes() != before
    assert launch.train(spec, results)["weights_sha256"] == undisturbed(spec)
    assert str(newest / name) in caplog.text and "going back to the checkpoint before it" in caplog.text
    assert "going on from step 5" in caplog.text


# -- numbers that are none


def spoil_weights(engine: Any, *_: Any) -> None:
    next(engine.method.parameters()).data.fill_(float("nan"))


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
        patch.setattr(owner, name, getattr(owner, name))  # put back afterwards
        nth_call(owner, name, 9, spoil)
        message = (
            rf"step 8 \(chain\): {term} is not finite; loss terms .*'cross_entropy'.*examples .*'embedded-train-\d"
        )
        with pytest.raises(NonFiniteLoss, match=message):
            launch.train(spec, results)
    assert saved(spec, results) == [7, 8]
    assert launch.train(spec, results)["weights_sha256"] == undisturbed(spec)


# -- two workflows


def test_a_second_workflow_on_the_same_results_says_who_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder, whose results are a link to those of the first."""
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "results").mkdir(parents=True)
    copy_suite(second)
    (second / "results").symlink_to(first / "results")
    monkeypatch.chdir(first)
    with process(HOLD_WORKFLOW) as holder:
        output = snakemake(second, "--config", "study=smoke", "--", "results/table_main.md", fails=True)
        assert f"is already being done by process {holder.pid} on" in output
        assert not (first / "results/smoke").exists()
