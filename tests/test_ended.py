"""Runs that are killed or told to stop at any moment.

Nothing that was whole is lost, and the same command goes on to the result of a run without interruptions.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import checkpoints
from benchmarks.processes.preemption import EXIT_CODE, Preempted, StopRequest, defer_signals
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training import batches, loop
from benchmarks.training.loop import train
from conftest import needs_linux
from copies import copy_suite, printed, snakemake
from inflict import STEPS, Fault, die, exit_code, in_step, logged, nth_call, run_of, saved
from test_locks import HOLD_WORKFLOW, process


def in_writing(count: int) -> None:
    def half(tensors: Any, path: Path, *_: Any) -> None:
        Path(path).write_bytes(b"half a file")
        die()

    nth_call(checkpoints, "save_file", count, half)


def is_checkpoint(source: Any, target: Any) -> bool:
    return Path(target).name.startswith("step-")


def before_renaming(count: int) -> None:
    nth_call(os, "replace", count, die, is_checkpoint)


def after_renaming(count: int) -> None:
    """Die when a new checkpoint is in place and the oldest still exists."""
    nth_call(checkpoints, "_by_age", count, die)


def before_the_weights(_: int) -> None:
    """Die before the weights are in place, which leaves the export incomplete."""
    nth_call(os, "replace", 1, die, lambda source, target: Path(target).name == "weights.safetensors")


def before_the_record(_: int) -> None:
    nth_call(os, "replace", 1, die, lambda source, target: Path(target).name == "train.json")


def after_the_record(_: int) -> None:
    nth_call(shutil, "rmtree", 1, die, is_folder_of_checkpoints)


def is_folder_of_checkpoints(path: Any, **_: Any) -> bool:
    return Path(path).name == "checkpoints"


def told_to_go(count: int) -> None:
    def tell(*_: Any) -> None:
        Path("told").touch()
        os.kill(os.getpid(), signal.SIGTERM)

    nth_call(torch.optim.AdamW, "step", count, tell)


def told_to_go_while_features_are_computed(_: int) -> None:
    nth_call(batches.FeatureStore, "_column", 2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


# -- SIGKILL


@pytest.mark.parametrize(
    ("row", "faults"),
    [
        # One after the other: each number is of calls in the process that goes on
        ("cot_sft", [(in_step, 5), (in_writing, 6), (before_renaming, 3), (after_renaming, 4)]),
        ("cot_sft", [(before_the_weights, 1), (before_the_record, 1)]),
        ("marcos", [(in_step, 7), (in_step, 7)]),  # in each of its phases, with features that are computed again
    ],
    ids=["checkpoints", "end", "phases"],
)
def test_a_killed_run_ends_with_the_weights_and_the_log_of_one_that_was_not(
    faults: list[tuple[Fault, int]],
    row: str,
    results: Path,
    undisturbed: Callable[[RunSpec], str],
    undisturbed_run: Callable[[RunSpec], Path],
) -> None:
    spec = run_of(row, log_every=1)
    for fault, count in faults:
        assert exit_code(fault, count, spec, results) == -signal.SIGKILL
    assert not (Paths(results, spec).run / "train.json").exists()
    assert train(spec, results)["weights_sha256"] == undisturbed(spec)
    lines = logged(spec, results)
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, STEPS + 1))
    assert lines == logged(spec, undisturbed_run(spec))
    assert not Paths(results, spec).checkpoints.exists()
    assert not [path.name for path in Paths(results, spec).model.iterdir() if path.name.startswith(".")]


def test_a_run_that_has_ended_is_not_trained_again_when_its_record_is_removed(
    results: Path,
    undisturbed: Callable[[RunSpec], str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Snakemake removes the output of a job that fails, however late. No model is built to find out."""
    spec = run_of("cot_sft")
    paths = Paths(results, spec)
    assert exit_code(after_the_record, 1, spec, results) == -signal.SIGKILL
    assert saved(spec, results) and not (paths.run / "train.json").exists()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "Trainer", None)
        record = train(spec, results)
    assert record["weights_sha256"] == undisturbed(spec)
    assert "is trained already" in caplog.text and (paths.run / "train.json").exists()
    assert not paths.checkpoints.exists()
    damaged = bytearray(paths.weights.read_bytes())
    damaged[-1] ^= 1
    paths.weights.write_bytes(damaged)
    caplog.clear()
    assert train(spec, results)["weights_sha256"] == undisturbed(spec)  # trained again
    assert "is trained already" not in caplog.text


# -- SIGTERM


def test_a_run_that_is_told_to_go_saves_itself_at_once(
    results: Path, undisturbed: Callable[[RunSpec], str], caplog: pytest.LogCaptureFixture
) -> None:
    """No checkpoint was due, so the one that exists was written for this reason."""
    spec = run_of("cot_sft", checkpoint_seconds=1e6)
    assert exit_code(told_to_go, 6, spec, results) == EXIT_CODE
    assert saved(spec, results) == [6]
    (checkpoint,) = Paths(results, spec).checkpoints.glob("step-*")
    assert checkpoint.stat().st_mtime - (results / "told").stat().st_mtime < 10
    assert train(spec, results)["weights_sha256"] == undisturbed(run_of("cot_sft"))
    assert "going on from step 6" in caplog.text


def test_features_that_would_be_computed_again_are_left(results: Path, undisturbed: Callable[[RunSpec], str]) -> None:
    spec = run_of("marcos", checkpoint_seconds=1e6)
    assert exit_code(told_to_go_while_features_are_computed, 1, spec, results) == EXIT_CODE
    assert saved(spec, results) == [10]
    assert train(spec, results)["weights_sha256"] == undisturbed(run_of("marcos"))


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_leaves_its_work_says_so(before: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The signal arrives before or during such work."""
    notice = StopRequest()
    with defer_signals(notice.note), pytest.raises(Preempted):
        if before:
            os.kill(os.getpid(), signal.SIGTERM)
        with notice.immediate():
            os.kill(os.getpid(), signal.SIGTERM)
    assert "told to stop; the next attempt resumes from the last checkpoint" in caplog.text


# -- a workflow, by Ctrl-C and by a scheduler

ENDED_TWICE = """
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
    if not os.path.exists("interrupted"):
        open("interrupted", "w").close()
        os.killpg(0, signal.SIGINT)  # as a terminal does: all that the command has started
    elif not os.path.exists("terminated"):
        open("terminated", "w").close()
        shell = os.getppid()
        children = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == shell]
        for pid in [parent(shell), shell, *children]:
            os.kill(pid, signal.SIGTERM)  # as a scheduler does: the shells, tee and all
    return real(*arguments, **settings)

torch.optim.AdamW.step = step
"""
# In a process group of its own, which obeys Ctrl-C wherever these tests run (background jobs of a shell ignore it)
IN_A_TERMINAL = """
import os, signal, sys
from snakemake.cli import main

os.setpgid(0, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
main(sys.argv[1:])
"""


@needs_linux
def test_a_workflow_goes_on_after_ctrl_c_and_after_a_scheduler_ended_its_job(tmp_path: Path) -> None:
    """The first ends the workflow; after the second, it tries again by itself."""
    folder = copy_suite(tmp_path)
    path = folder / "benchmarks/cli/__main__.py"
    path.write_text(path.read_text(encoding="utf-8").replace("app(", f"{ENDED_TWICE}\napp("), encoding="utf-8")
    record = "results/smoke/runs/equation/cot_sft/s0/train.json"
    arguments = ["--cores", "2", "--config", "study=smoke", "--", record]
    output = printed(folder, [sys.executable, "-c", IN_A_TERMINAL, *arguments], fails=True)
    assert re.search(r"told to stop; step 1 is saved", output) and "Trying to restart job" not in output

    output = snakemake(folder, *arguments)
    assert "going on from step 1" in output and "Trying to restart job" in output
    saved = re.search(r"told to stop; step (\d+) is saved", output)
    assert saved and f"going on from step {saved[1]}" in output
    log = folder / "results/smoke/logs/train/equation/cot_sft/s0.log"
    assert "going on from" in log.read_text(encoding="utf-8") and "told to stop" in Path(f"{log}.1").read_text(
        encoding="utf-8"
    )
    assert (folder / record).exists()


def test_a_second_ctrl_c_is_obeyed_and_one_of_the_background_is_not_noted() -> None:
    before, told = signal.getsignal(signal.SIGINT), []
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt), defer_signals(lambda: told.append("once")):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        assert told == ["once"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with defer_signals(lambda: told.append("again")):
            os.kill(os.getpid(), signal.SIGINT)
        assert told == ["once"] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# -- two workflows


def test_a_second_workflow_on_the_same_results_says_who_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second workflow runs in another folder, whose results are a link to those of the first."""
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "results").mkdir(parents=True)
    copy_suite(second)
    (second / "results").symlink_to(first / "results")
    monkeypatch.chdir(first)
    with process(HOLD_WORKFLOW) as holder:
        output = snakemake(second, "--config", "study=smoke", "--", "results/table_main.md", fails=True)
        assert f"is already being done by process {holder.pid} on" in output
        assert not (first / "results/smoke").exists()
