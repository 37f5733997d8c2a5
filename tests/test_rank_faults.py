"""A run on two ranks that is killed and stopped in every way ends like an undisturbed run on one process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file

from benchmarks import checkpoints
from benchmarks.data import prepare
from benchmarks.engine.adapters import whole_weights
from benchmarks.models import exported_method
from benchmarks.processes.heartbeat import Beat, RankFailure, read_beat
from benchmarks.processes.launch import alive
from benchmarks.processes.preemption import EXIT_CODE
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study
from benchmarks.training import loop as training
from benchmarks.training.loop import train
from conftest import ROOT, needs_deepspeed
from inflict import nth_call
from small import MARCOS, fresh, small_study

pytestmark = needs_deepspeed

RANKS = {"kind": "deepspeed", "gpus": 2, "zero_stage": 3}
PATIENCE = 600  # seconds: other work may use the cores
# Imported by every Python process that has it on its path. TEST_FAULT, "RANK CALL PART COUNT", kills one rank at that
# call
FAULT = """
import os, signal

rank, name, part, count = os.environ.get("TEST_FAULT", "- - - 0").split()
original, seen = getattr(os, name, None), 0

def faulty(*arguments, **named):
    global seen
    path = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[-1])
    seen += part in path
    if seen == int(count) and part in path:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **named)

if os.environ.get("RANK") == rank:
    setattr(os, name, faulty)
"""


def study(**engine: Any) -> Study:
    data = {"train": "embedded", "validation": 16, "limit": 96}
    return small_study(
        [{"id": "marcos", "method": "marcos", "options": MARCOS}],
        blocks=[{"id": "equation", "title": "Equation", "data": data}],
        training={"batch_size": 16, "epochs": 2, "log_every": 1},
        engine=engine,
    )


def run_of(of: Study) -> RunSpec:
    return of.runs["equation/marcos/s0"]


@dataclass
class Place:
    """A results folder with a run that two ranks train."""

    results: Path

    @property
    def paths(self) -> Paths:
        return Paths(self.results, run_of(study()))

    def environment(self, fault: str = "") -> dict[str, str]:
        """Return the variables that arm a ``fault`` as in FAULT in the ranks."""
        (self.results / "sitecustomize.py").write_text(FAULT, encoding="utf-8")
        path = os.pathsep.join([str(self.results), str(ROOT)])
        return {"PYTHONPATH": path} | ({"TEST_FAULT": fault} if fault else {})

    def start(self) -> subprocess.Popen[str]:
        """Start ``marcos-bench train`` on two ranks."""
        content = study(**RANKS).model_dump(mode="json", exclude_unset=True)
        (file := self.results / "study.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.cli", "train", str(file), "equation/marcos/s0"]
        return subprocess.Popen(
            [*command, "--results", str(self.results)],
            env=os.environ | self.environment(),
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def train(self, fault: str = "", meanwhile: Callable[[], None] | None = None, **engine: Any) -> None:
        """Train on two ranks that this process starts and watches over, which saves the start of one that does."""
        with pytest.MonkeyPatch.context() as patched:
            for name, value in self.environment(fault).items():
                patched.setenv(name, value)
            if meanwhile:
                threading.Thread(target=meanwhile).start()
            train(run_of(study(**RANKS, **engine)), self.results)

    def beats(self) -> list[Beat]:
        return [beat for rank in range(2) if (beat := read_beat(self.paths.ranks / "train", rank))]

    def saved(self) -> list[str]:
        return sorted(path.name for path in self.paths.checkpoints.glob("step-*"))

    def after_next_checkpoint(self) -> list[Beat]:
        """Wait until both ranks have written another checkpoint, and return their beats."""
        before = self.saved()
        wait(lambda: self.saved()[-1:] > before[-1:])
        return self.beats()


def wait(for_what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not for_what():
        assert time.monotonic() < deadline, "nothing happened for too long"
        time.sleep(0.02)


@dataclass
class Outcome:
    """The end of a process.

    It has its exit code and output, its ranks, the seconds for which the last rank outlived it, and the checkpoints
    before and after.
    """

    code: int
    printed: str
    beats: list[Beat]
    outlived: float
    before: list[str]
    after: list[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    results = tmp_path_factory.mktemp("faults")
    prepare(study(), study().blocks[0], results)
    return Place(results)


@pytest.fixture(scope="module")
def faults(place: Place) -> dict[str, Outcome]:
    """Return the outcomes of one run that was started again after each fault."""
    return dict(_faults(place))


def _faults(place: Place) -> Iterator[tuple[str, Outcome]]:
    def outcome(code: int, printed: str, before: list[str]) -> Outcome:
        ended = time.monotonic()
        while any(alive(beat.pid) for beat in place.beats()) and time.monotonic() - ended < 90:
            time.sleep(0.02)
        outlived = time.monotonic() - ended
        return Outcome(code, printed, place.beats(), outlived, before, place.saved())

    def fails(*arguments: Any, **engine: Any) -> Outcome:
        before = place.saved()
        with pytest.raises(RankFailure) as failure:
            place.train(*arguments, **engine)
        return outcome(failure.value.code, str(failure.value), before)

    def ends(act: Callable[[subprocess.Popen[str]], None]) -> Outcome:
        before, process = place.saved(), place.start()
        place.after_next_checkpoint()
        act(process)
        _, printed = process.communicate(timeout=PATIENCE)
        return outcome(process.returncode, printed, before)

    def freeze() -> None:
        os.kill(place.after_next_checkpoint()[1].pid, signal.SIGSTOP)

    def tell_all(process: subprocess.Popen[str]) -> None:  # like a scheduler, which signals the launcher too
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            one.terminate()

    yield "kill", fails("0 fsync .partial/model 2")  # in the midst of a checkpoint
    yield "hang", fails("", freeze, hang_seconds=12)
    yield "told to stop", ends(tell_all)
    yield "parent", ends(lambda process: process.kill())  # the ranks end by themselves


def test_one_rank_killed_ends_all_and_is_named(faults: dict[str, Outcome]) -> None:
    outcome = faults["kill"]
    assert outcome.code == 128 + signal.SIGKILL
    assert f"rank 0 (process {outcome.beats[0].pid} on " in outcome.printed
    # If ranks end faster than they are looked after, the launcher may have cleared away the one that was killed
    assert re.search("ended by (a signal that nobody saw, most likely )?SIGKILL; all others are", outcome.printed)


@pytest.mark.parametrize("moment", ["kill", "hang", "told to stop", "parent"])
def test_no_rank_outlives_a_fault_and_no_checkpoint_is_lost(faults: dict[str, Outcome], moment: str) -> None:
    outcome = faults[moment]
    assert outcome.code != 0
    assert outcome.outlived < 60
    assert outcome.after[-1:] > outcome.before[-1:] or not outcome.before


def test_a_rank_that_hangs_is_named(faults: dict[str, Outcome]) -> None:
    outcome = faults["hang"]
    assert outcome.code == EXIT_CODE, "the workflow tries again"
    assert f"nothing has moved for 12 s. rank 1 (process {outcome.beats[1].pid} on " in outcome.printed
    assert "it hangs, and all others wait for it" in outcome.printed


def test_ranks_that_are_told_to_go_save_themselves(faults: dict[str, Outcome]) -> None:
    outcome = faults["told to stop"]
    assert outcome.code == EXIT_CODE
    assert re.search(
        r"told to stop; (step \d+ is saved|the next attempt resumes from the last checkpoint)", outcome.printed
    )


def losses(paths: Paths) -> torch.Tensor:
    lines = [json.loads(line) for line in (paths.run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return torch.tensor([line["loss"] for line in lines if line["kind"] == "step"])


@pytest.fixture(scope="module")
def undisturbed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """Train the same run on one process."""
    results = fresh(place.results, tmp_path_factory.mktemp("undisturbed"))
    train(run_of(study()), results)
    return Paths(results, run_of(study()))


def test_a_damaged_shard_sends_all_ranks_to_the_checkpoint_before(
    faults: dict[str, Outcome], place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    *_, before, newest = faults["parent"].after
    copy = shutil.copytree(place.paths.checkpoints, tmp_path / "checkpoints")
    shard = copy / newest / "model-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    state = json.loads((copy / before / "state.json").read_text(encoding="utf-8"))
    found = checkpoints.load_latest(copy, state["key"])
    assert found and found.state == state
    assert f"{shard} is damaged" in caplog.text and "going back to the checkpoint before it" in caplog.text


def test_one_process_goes_on_with_what_two_ranks_left(
    faults: dict[str, Outcome], place: Place, undisturbed: Paths, caplog: pytest.LogCaptureFixture
) -> None:
    newest = place.paths.checkpoints / faults["parent"].after[-1]
    assert len(list(newest.glob("model-*-of-00002.safetensors"))) == 2
    train(run_of(study()), place.results)
    assert f"going on from step {int(newest.name.split('-')[1])}" in caplog.text
    assert_same(place.paths, undisturbed)


def assert_same(paths: Paths, expected: Paths) -> None:
    """Assert that the losses of all steps and the final weights agree."""
    torch.testing.assert_close(losses(paths), losses(expected), rtol=1e-4, atol=1e-5)
    weights = load_file(paths.weights)
    for name, tensor in load_file(expected.weights).items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-2, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")


def stop(*_: Any) -> None:
    raise InterruptedError


def test_two_ranks_go_on_with_what_one_process_left_to_the_end(
    place: Place,
    undisturbed: Paths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """This covers both phases, features included. The resulting weights can be loaded anywhere."""
    own = Place(fresh(place.results, tmp_path))
    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(training, "optimizer_step", training.optimizer_step)  # undone afterwards
        nth_call(training, "optimizer_step", 4, stop)
        train(run_of(study()), own.results)
    own.train()
    assert "going on from step 3" in capsys.readouterr().err
    assert_same(own.paths, undisturbed)
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # as if it were not installed
    moved = own.paths.model.rename(tmp_path / "moved")
    exported = dict(whole_weights(exported_method(moved)))
    record = json.loads((own.paths.run / "train.json").read_text(encoding="utf-8"))
    assert checkpoints.digest(exported) == record["weights_sha256"]
