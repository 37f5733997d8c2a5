"""Memory of a rank by ZeRO stage, and advice for runs that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.plan.costs import USABLE, RunPlan
from benchmarks.plan.hardware import GPU
from benchmarks.plan.memory import Memory
from benchmarks.studies.specs import EngineSpec
from small import PLANNED, small_study


def test_zero_splits_moments_then_gradients_then_weights() -> None:
    """It also adds a second copy of the weights that a rank updates, and the gathered weights."""
    memory = Memory(weights=4.0, copy=2.0, gradients=4.0, moments=8.0, activations=1.0)
    assert [memory.on(1, stage) for stage in range(4)] == [19.0, 23.0, 23.0, 27.0]
    assert [memory.on(8, stage) for stage in range(4)] == [19.0, 12.5, 9.0, 9.5]
    assert [memory.on(8, 2, "optimizer"), memory.on(8, 3, "weights")] == [7.5, 7.5]
    assert Memory(80e9, 0.0, 0.0, 0.0, 0.0).on(8, 3) == 14e9


@pytest.mark.parametrize(
    ("ranks", "stage", "offload", "weights", "activations", "advice"),
    [
        (1, 0, "none", 10, 100, ": set micro_batch to 11"),
        (8, 0, "none", 110, 30, ": set zero_stage to 1"),
        (8, 0, "none", 300, 30, ": set zero_stage to 3"),
        (8, 0, "none", 100, 200, ": set zero_stage to 3 and micro_batch to 4"),
        (1, 0, "none", 200, 10, "take more GPUs, or larger ones"),
        (8, 1, "optimizer", 200, 30, ": set zero_stage to 2"),
        (8, 3, "weights", 200, 100, ": set micro_batch to 4"),
    ],
)
def test_advice_fits(ranks: int, stage: int, offload: str, weights: int, activations: int, advice: str) -> None:
    """``weights`` are in GB, with gradients and moments, at micro-batch 16, on a GPU with 100 GB of room."""
    part = weights * 1e9 / 4
    memory = Memory(part, 0.0, part, 2 * part, activations * 1e9)
    engine = {"kind": "deepspeed", "gpus": ranks, "zero_stage": stage, "offload": offload}
    run = small_study(PLANNED, engine=engine).runs["equation/cot_sft/s0"]
    made = RunPlan(run, 1, 1.0, 1.0, 1.0, 0.0, memory, 1.0, 1.0, activations * 1e9 / 16, "made up", (1,), True)
    gpu = GPU("made up", 100e9 / USABLE, 1.0, 1.0)
    assert not made.fits(gpu) and made.advice(gpu).endswith(advice)


def test_advice_to_split_weights_leaves_compilation_out() -> None:
    """Compilation needs layers with whole weights."""
    engine = {"kind": "deepspeed", "gpus": 8, "zero_stage": 2, "compile": True}
    run = small_study(PLANNED, engine=engine).runs["equation/cot_sft/s0"]
    memory = Memory(80e9, 0.0, 80e9, 160e9, 1e9)
    made = RunPlan(run, 1, 1.0, 1.0, 1.0, 0.0, memory, 1.0, 1.0, 1e9, "made up", (1,), True)
    advice = made.advice(GPU("made up", 100e9 / USABLE, 1.0, 1.0))
    assert advice == "DOES NOT FIT: set zero_stage to 3 and compile to false"
    uneven = replace(made, even_passes=False)  # ZeRO 3 is refused for such a method
    assert uneven.advice(GPU("made up", 100e9 / USABLE, 1.0, 1.0)).endswith("take more GPUs, or larger ones")
    EngineSpec.model_validate({**engine, "zero_stage": 3, "compile": False})


@pytest.mark.parametrize(
    ("row", "ranks", "batch", "advice"),
    [
        ("cot_sft", 1, 256, "set micro_batch to 22"),
        ("cot_sft", 8, 256, "set micro_batch to 16"),  # 22 would give 12 micro-batches, and 4 ranks would wait
        ("cot_sft", 3, 250, "set micro_batch to 21"),
        ("cot_sft", 8, 9, "set micro_batch to 9"),  # no size keeps 8 ranks busy
        ("codi", 1, 256, "set micro_batch to 22 (another run: distillation depends on it)"),
    ],
)
def test_advice_leaves_no_rank_idle_and_says_where_it_makes_another_run(
    row: str, ranks: int, batch: int, advice: str
) -> None:
    """There is room for 22 rows."""
    engine = {"kind": "deepspeed", "gpus": ranks, "zero_stage": 3}
    study = small_study(PLANNED, engine=engine, training={"batch_size": batch})
    memory = Memory(0.0, 0.0, 0.0, 0.0, 32e9)
    run = study.runs[f"equation/{row}/s0"]
    made = RunPlan(run, 1, 1.0, 1.0, 1.0, 0.0, memory, 1.0, 1.0, 1e9, "made up", (1,), True)
    assert made.advice(GPU("made up", 22.5e9 / USABLE, 1.0, 1.0)) == f"DOES NOT FIT: {advice}"
    engine = made.run.engine.model_copy(update={"micro_batch": int(advice.split()[3])})
    taken = replace(made, run=made.run.model_copy(update={"engine": engine}))
    assert taken.occupancy > 0.99 or batch == 9
