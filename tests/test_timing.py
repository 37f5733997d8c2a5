"""Timing happens after a warm-up, and times what training does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine import Ranks
from benchmarks.models import build_method
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import TimingSpec
from benchmarks.timing import machine
from benchmarks.timing import steps as step_timing
from benchmarks.timing import task as timing
from benchmarks.timing.steps import flop_counter
from benchmarks.training import loop as training
from benchmarks.training.loop import optimizer_step, train
from conftest import ROOT, needs_deepspeed
from small import MARCOS, small_study
from tiny import make, questions

ROWS = [{"id": "cot_sft", "method": "cot_sft"}]
TOGETHER = {"steps_per_epoch", "epoch_seconds", "once_seconds", "peak_memory_bytes"}  # of a phase, besides its steps


def test_a_whole_pass_over_the_questions_comes_before_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a single batch, the other batches would be cold in the first repeat."""
    (spec,) = small_study(ROWS, timing={"repeats": 2, "batch_size": 2}).runs.values()
    asked: list[list[list[int]]] = []
    generate = timing.generate

    def noted(method: Any, questions: Any, *rest: Any) -> Any:
        asked.append(questions)
        return generate(method, questions, *rest)

    monkeypatch.setattr(timing, "generate", noted)
    times = timing.time_test(make("cot_sft").eval(), spec, questions(), answer_only=True)
    assert len(times["seconds"]) == 2 and times["n"] == 4
    assert times.keys() == {"seconds", "n", "n_total", "tokens_per_second", "peak_memory_bytes"}, "all that is read"
    assert len(asked) == 6 and asked[:2] == asked[2:4] == asked[4:]


@pytest.mark.parametrize(("warmup", "steps"), [(1, 1), (10, 12)])
def test_steps_warm_up_as_they_are_timed(
    warmup: int, steps: int, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm-up steps follow uncompiled ones whose FLOPs are counted, and may need more batches than an epoch has."""
    study = small_study([{"id": "cot_sft", "method": "cot_sft"}], training={"epochs": 1})
    (spec,) = study.runs.values()
    paths, counting, noted = Paths(results, spec), list[bool](), list[bool]()

    @contextmanager
    def counter() -> Iterator[FlopCounterMode]:
        with flop_counter() as own:
            counting.append(True)
            yield own
        counting.clear()

    def step(*arguments: Any) -> Any:
        noted.append(bool(counting))
        return optimizer_step(*arguments)

    monkeypatch.setattr(step_timing, "flop_counter", counter)
    monkeypatch.setattr(step_timing, "optimizer_step", step)
    asked = spec.model_copy(update={"timing": TimingSpec.model_construct(train_steps=steps)})
    step_timing.time_training(build_method(spec, paths.data), asked, paths, Ranks(), warmup)
    counted = sum(noted)
    assert 0 < counted <= warmup and noted == [True] * counted + [False] * (warmup + steps)


def test_a_stage_on_cached_features_is_timed_on_full_batches(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is left over at an epoch's end may be the one with the shortest rows."""
    study = small_study([{"id": "marcos", "method": "marcos", "options": MARCOS}])
    (spec,) = study.runs.values()
    paths, batches, take = Paths(results, spec), step_timing.StepTimer._batches, step_timing.take
    sizes = set[int]()

    def left_over_first(self: step_timing.StepTimer, steps: int) -> list[Any]:
        first, *others = batches(self, steps)
        return [first[:1], *others][:steps]

    def noted(engine: Any, data: Any, chosen: list[Any]) -> Any:
        sizes.update(map(len, chosen) if data.features is not None else ())
        return take(engine, data, chosen)

    monkeypatch.setattr(step_timing.StepTimer, "_batches", left_over_first)
    monkeypatch.setattr(step_timing, "take", noted)
    step_timing.time_training(build_method(spec, paths.data), spec, paths, Ranks())
    assert sizes == {spec.training.batch_size}


def test_layers_are_compiled_though_flops_are_counted_first(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is first called while a dispatch mode watches each operation would never be compiled."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    counters.clear()
    study = small_study(ROWS, training={"epochs": 1}, engine={"compile": True})
    (spec,) = study.runs.values()
    paths = Paths(results, spec)
    step_timing.time_training(build_method(spec, paths.data), spec, paths, Ranks())
    assert counters["stats"]["unique_graphs"] > 0


class Machine(NamedTuple):
    """CPU seconds as psutil gives them; those of guests are part of `user` too.

    Those of a process are its own in user and system mode, the same of its children that have ended, and of waiting.
    """

    user: float
    system: float
    idle: float = 500.0
    iowait: float = 0.0
    guest: float = 0.0


@pytest.mark.parametrize(
    ("after", "own", "share"),
    [
        (Machine(104, 11), (6, 2, 0, 0), 0.0),
        (Machine(114, 13), (6, 2, 0, 0), 0.3),  # 12 of the 40 seconds that four CPUs have in ten
        (Machine(114, 13, idle=520, iowait=7, guest=6), (6, 2, 0, 0, 5), 0.3),
        # A process counts as other until it has ended: only then does its parent include it
        (Machine(114, 13), (6, 2, 6, 2), 0.1),
        (Machine(104, 11), (7, 2, 0, 0), 0.0),  # the two clocks may differ by a tick
    ],
)
def test_the_cpu_time_of_other_processes_is_noticed(
    after: Machine, own: tuple[float, ...], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Mock(cpu_times=Mock(side_effect=[(2, 1, 0, 0), own]))
    fake = Mock(cpu_count=lambda: 4, cpu_times=Mock(side_effect=[Machine(100, 10), after]), Process=lambda: process)
    monkeypatch.setattr(machine, "psutil", fake)
    monkeypatch.setattr(machine, "time", Mock(perf_counter=Mock(side_effect=[1000.0, 1010.0])))
    assert machine.OtherLoad().share() == pytest.approx(share)


def test_training_is_timed_with_the_kernels_that_it_trains_with(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = small_study(ROWS, training={"epochs": 1})
    (spec,) = study.runs.values()
    paths, before = Paths(results, spec), torch.are_deterministic_algorithms_enabled()
    modes: dict[str, set[bool]] = {}
    for module in (training, step_timing):
        seen, step = modes.setdefault(module.__name__, set()), module.optimizer_step

        def noted(*arguments: Any, seen: set[bool] = seen, step: Any = step) -> Any:
            seen.add(torch.are_deterministic_algorithms_enabled())
            return step(*arguments)

        monkeypatch.setattr(module, "optimizer_step", noted)
    times = step_timing.time_training(build_method(spec, paths.data), spec, paths, Ranks())
    train(spec, results)
    assert modes == {"benchmarks.training.loop": {True}, "benchmarks.timing.steps": {True}}
    assert torch.are_deterministic_algorithms_enabled() == before
    assert times["phases"]["train"].keys() == {*step_timing.PER_STEP, *TOGETHER}


@needs_deepspeed
def test_training_is_timed_on_the_ranks_that_train(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together, the ranks compute as much as a single process."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = [{"id": "marcos", "method": "marcos", "options": MARCOS}]
    alone, both = (
        small_study(
            rows, engine=engine, timing={"repeats": 1, "questions": 8, "train_steps": 3}, training={"epochs": 1}
        )
        for engine in ({}, {"kind": "deepspeed", "gpus": 2, "zero_stage": 3})
    )
    (spec,), (on_ranks,) = alone.runs.values(), both.runs.values()
    train(spec, results)
    records = [timing.time_run(run, results) for run in (spec, on_ranks)]
    times, times_of_ranks = (record["train"] for record in records)
    assert all(record["pace_seconds"] > 0 for record in records)
    assert (Paths(results, spec).ranks / "time" / "rank-1.log").is_file()
    assert times_of_ranks["training_flops"] == pytest.approx(times["training_flops"], rel=0.1)  # padding
    assert times_of_ranks["phases"].keys() == times["phases"].keys() == {"phase 1", "phase 2"}
