"""What is timed is warm, and is what training does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import launch, timing, training
from benchmarks.data import prepare
from benchmarks.engine import Ranks
from benchmarks.load import OtherLoad
from benchmarks.models import build_method
from benchmarks.paths import Paths
from small import small_study
from tiny import make, questions

ROWS = [{"id": "cot_sft", "method": "cot_sft"}]


def test_a_whole_pass_over_the_questions_comes_before_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a single batch, the others would be cold in the first repeat."""
    (spec,) = small_study(ROWS, timing={"repeats": 2, "batch_size": 2}).runs.values()
    asked: list[list[list[int]]] = []
    generate = timing.generate

    def noted(method: Any, questions: Any, *rest: Any) -> Any:
        asked.append(questions)
        return generate(method, questions, *rest)

    monkeypatch.setattr(timing, "generate", noted)
    times = timing.time_test(make("cot_sft").eval(), spec, questions(), answer_only=True)
    assert len(times["seconds"]) == 2 and times["n"] == 4
    assert len(asked) == 6 and asked[:2] == asked[2:4] == asked[4:]


def test_the_cpu_time_of_other_processes_is_noticed() -> None:
    """A process is other until it has ended: its parent counts it then."""
    load = OtherLoad()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(1.0)
        beside = load.share()
        busy.kill()
    assert beside > 0.5 / (os.cpu_count() or 1)
    load = OtherLoad()
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    assert load.share() < beside


def test_training_is_timed_with_the_kernels_that_it_trains_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(ROWS, training={"epochs": 1})
    (spec,) = study.runs.values()
    prepare(study, study.blocks[0], tmp_path)
    paths, before = Paths(tmp_path, spec), torch.are_deterministic_algorithms_enabled()
    modes: dict[str, set[bool]] = {}
    for module in (training, timing):
        seen, step = modes.setdefault(module.__name__, set()), module.optimizer_step

        def noted(*arguments: Any, seen: set[bool] = seen, step: Any = step) -> Any:
            seen.add(torch.are_deterministic_algorithms_enabled())
            return step(*arguments)

        monkeypatch.setattr(module, "optimizer_step", noted)
    timing.time_training(build_method(spec, paths.data), spec, paths, Ranks())
    launch.train(spec, tmp_path)
    assert modes == {"benchmarks.training": {True}, "benchmarks.timing": {True}}
    assert torch.are_deterministic_algorithms_enabled() == before
