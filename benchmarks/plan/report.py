"""A plan as text: a Markdown table of what every run takes, and its assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tabulate import tabulate

from benchmarks.plan.costs import LAUNCH, MEMORY_ERROR, USABLE, RunPlan
from benchmarks.plan.hardware import GPU
from benchmarks.plan.memory import ZERO_STAGES
from benchmarks.studies.micro_batches import GPUS_VARIABLE, on_gpus
from benchmarks.studies.study import Study
from methods.registry import get_method

MACHINE = 8  # GPUs of one machine, as in the paper
WORTH_A_NOTE = 0.05  # share of idle ranks, or of additional passes, that is worth a note


def render(study: Study, plans: Sequence[RunPlan], gpu: GPU, utilisation: float) -> str:
    shared = [
        f"Runs of {other}, trained first where they are missing "
        f"(`marcos-bench plan {study.home(study.sources[runs[0]]).cli_name}`): {', '.join(runs)}."
        for other, runs in study.shared.items()
    ]
    if not plans:
        return "\n".join([f"{study.name} trains no run of its own.", *shared])
    header = ["Run", "Params", "Tokens/epoch", "Epochs", "FLOPs", *(f"ZeRO {zero}" for zero in ZERO_STAGES)]
    header += ["Activations", "Hours", "GPU-hours", "Disk", ""]
    lines = [_line(plan, gpu, utilisation) for plan in plans]
    table = tabulate(
        lines, header, tablefmt="github", disable_numparse=True, colalign=["left", *["right"] * 12, "left"]
    )
    total = _gpu_hours(plans, gpu, utilisation)
    speed = gpu.peak(study.engine.precision) / 1e12
    notes = [
        f"{study.name} on {study.engine.ranks} x {gpu.name} ({gpu.memory / 1e9:.0f} GB, of which {USABLE:.0%} count) "
        f"at {utilisation:.0%} of {speed:.0f} TFLOP/s: {total:,.1f} GPU-hours of training.",
        f"Lengths: {'; '.join(dict.fromkeys(plan.basis for plan in plans))}.",
        "ZeRO 0 to 3: GB on each GPU, activations of the largest micro-batch included; * the stage that the study asks "
        "for: columns from this stage on leave out what the study offloads to the CPU. Hours: training alone, "
        "without communication; a warm start has its own line.",
        f"Memory is an estimate: the tests hold it to within {MEMORY_ERROR:.0%} of what training takes on a CPU, "
        "for two methods at a small size. On an H200 five methods at 0.5B took 33% to 90% of it, as few rows are the "
        "longest, and layers were compiled.",
        f"Disk: GB of a run while it trains; {_gigabytes(sum(plan.left for plan in plans))} GB of weights stay of all.",
    ]
    notes += [*_idle(plans), *_launched(plans, gpu, utilisation), *_filled(plans, gpu, utilisation)]
    notes += shared
    notes += [study.shared_in_vain] if study.shared_in_vain else []
    return "\n".join([table, "", *notes])


def _idle(plans: Sequence[RunPlan]) -> list[str]:
    """Return warnings of ranks that wait for others, one for all runs whose batches are dealt alike."""
    waiting: dict[tuple[int, float, int], list[RunPlan]] = {}
    for plan in plans:
        if plan.occupancy < 1 - WORTH_A_NOTE:
            waiting.setdefault((plan.run.training.batch_size, plan.micro_batches, plan.ranks), []).append(plan)
    return [
        f"WARNING: ranks are idle for {1 - alike[0].occupancy:.0%} of the time: {batch} examples per step are split "
        f"into {count:.3g} micro-batches over {ranks} ranks ({', '.join(plan.run.id for plan in alike)}). Change "
        f"{'micro_batch' if alike[0].run.engine.micro_batch else 'batch_size'}, or use fewer ranks."
        for (batch, count, ranks), alike in waiting.items()
    ]


def _launched(plans: Sequence[RunPlan], gpu: GPU, utilisation: float) -> list[str]:
    """Return a note on the runs whose training time is set by the host rather than the GPU."""
    waiting = [plan for plan in plans if plan.waits_for_host(gpu, utilisation)]
    if not waiting:
        return []
    several = [plan.run.id for plan in waiting if plan.passes > 1 + WORTH_A_NOTE]
    fewer = f" Larger micro-batches, where they fit, take less ({', '.join(several)})." if several else ""
    return [
        f"Hours of {', '.join(plan.run.id for plan in waiting)}: the time that the host takes to launch their layers, "
        f"{LAUNCH * 1e3:g} ms each, forward and backward, as measured with an H200. It is longer than the GPU's.{fewer}"
    ]


def _filled(plans: Sequence[RunPlan], gpu: GPU, utilisation: float) -> list[str]:
    """Return a comparison of two ways to fill a machine, unless all runs take all of its GPUs already: as the study
    has it, or all GPUs to every run, one run after the other."""
    if all(plan.ranks >= MACHINE for plan in plans):
        return []
    every = [_on_all(plan) for plan in plans]
    kept = [plan.run.id for plan in plans if plan.run.training.validation_questions]

    def takes(plans: Sequence[RunPlan]) -> str:
        clock = makespan(plans, MACHINE, gpu, utilisation)
        return f"{clock:,.2f} hours on the clock and {_gpu_hours(plans, gpu, utilisation):,.2f} GPU-hours"

    pairs = zip(plans, every, strict=True)
    others = [plan.run.id for plan, own in pairs if own.run.digest("train") != plan.run.digest("train")]
    if len(kept) == len(plans):
        return [
            f"All runs on {MACHINE} x {gpu.name}, side by side: {takes(plans)}. {GPUS_VARIABLE} changes none of them, "
            "as runs that answer `validation_questions` keep their engine."
        ]
    note = f" The latter makes other runs of {', '.join(others)}, by what else shares a pass." if others else ""
    note += f" {', '.join(kept)} keep their engine, as they answer `validation_questions`." if kept else ""
    return [
        f"All runs on {MACHINE} x {gpu.name}: side by side, as the study has them, {takes(plans)}; one after the "
        f"other, each on all GPUs ({GPUS_VARIABLE}={MACHINE}), {takes(every)}.{note}"
    ]


def _gpu_hours(plans: Sequence[RunPlan], gpu: GPU, utilisation: float) -> float:
    return sum(plan.hours(gpu, utilisation) * plan.ranks for plan in plans)


def _on_all(plan: RunPlan) -> RunPlan:
    """Return a run's plan with all GPUs of a machine. It has the hours; memory is not counted anew."""
    run = plan.run
    engine = on_gpus(run.engine, MACHINE, run.training, bool(get_method(run.method).batch_terms))
    return replace(plan, run=run.model_copy(update={"engine": engine}))


def makespan(plans: Sequence[RunPlan], gpus: int, gpu: GPU, utilisation: float) -> float:
    """Return the hours until all runs are trained on so many GPUs, where a run begins, the longest first, once those
    that it starts from have ended and as many GPUs are free as it has ranks."""
    hours = {plan.run.id: plan.hours(gpu, utilisation) for plan in plans}
    waiting = sorted(plans, key=lambda plan: hours[plan.run.id], reverse=True)
    ends: dict[str, float] = {}
    now = 0.0
    while waiting:
        working = sum(min(plan.ranks, gpus) for plan in plans if ends.get(plan.run.id, now) > now)
        unfinished = {plan.run.id for plan in plans if ends.get(plan.run.id, math.inf) > now}
        for plan in waiting:
            if plan.run.starts_from not in unfinished and working + min(plan.ranks, gpus) <= gpus:
                ends[plan.run.id] = now + hours[plan.run.id]
                waiting.remove(plan)
                break
        else:
            now = min(end for end in ends.values() if end > now)
    return max(ends.values(), default=0.0)


def _line(plan: RunPlan, gpu: GPU, utilisation: float) -> list[str]:
    hours = plan.hours(gpu, utilisation)
    memory = [_gigabytes(plan.needed_at(zero)) for zero in ZERO_STAGES]
    memory[plan.run.engine.zero_stage] += " *"
    return [
        plan.run.id,
        f"{plan.parameters / 1e6:,.2f}M",
        f"{plan.tokens_per_epoch / 1e6:,.2f}M",
        f"{plan.epochs:g}",
        f"{plan.flops:.2e}".replace("e+", "e"),
        *memory,
        _gigabytes(plan.memory.activations),
        f"{hours:,.2f}",
        f"{hours * plan.ranks:,.2f}",
        _gigabytes(plan.disk),
        "" if plan.fits(gpu) else plan.advice(gpu),
    ]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f}" if size >= 1e9 else f"{size / 1e9:.2g}"
