"""Time the optimizer steps of all stages of a training and count their FLOPs, to find what an epoch takes.

FLOPs are counted by PyTorch's counter, extended by formulas for attention in all fused kernels: PyTorch has no formula
for the CPU kernel (in 2.13), and those in 2.11 fail if keys have fewer heads than queries. The convention is PyTorch's
for GPUs: causal attention counts in full, and backward passes compute the scores once more.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.module_tracker import ModuleTracker

from benchmarks.budgets import budget_of, curriculum, steps_of
from benchmarks.data import Corpus, epoch_batches, open_corpus
from benchmarks.data.corpus import spread_over
from benchmarks.engine import Engine, PlaceInPhase, Ranks, build_engine, deterministic, peak_memory, synchronize
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import TimingSpec
from benchmarks.studies.study import StudyError
from benchmarks.training.batches import FeatureStore, PrefetchingLoader, StageLoader
from benchmarks.training.loop import memory_for_training, optimizer_step
from methods.base import Method, Stage

T = TypeVar("T")
PER_STEP = ("step_seconds_median", "tokens_per_step", "flops_per_step")
WARMUP_STEPS = 3
COUNTED_STEPS = 3  # warm-up steps whose FLOPs are counted
FEATURED = 10  # batches whose features are computed to find the rate
KERNELS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


def timing_of(spec: RunSpec) -> TimingSpec:
    """Return a run's timing settings. Raise StudyError if its study times nothing."""
    if spec.timing is None:
        raise StudyError(f"study {spec.study} times nothing: give its file a `timing`")
    return spec.timing


@deterministic()  # as in training
def time_training(
    method: Method, spec: RunSpec, paths: Paths, ranks: Ranks, warmup: int = WARMUP_STEPS, rows: int | None = None
) -> dict[str, Any]:
    """Return the seconds of one epoch of each phase, and the FLOPs of the whole training.

    An epoch takes its number of steps times the median step. A phase of several stages is their mean, weighted by
    their epochs. A cached stage costs its epoch and one pass that computes the features. A stage warms up with at most
    as many steps as are timed. All ranks call this; FLOPs are summed over them, and memory is that of the rank that
    takes most. ``rows`` is the number of rows of an epoch, if the data at hand stand in for a larger set."""
    corpus = open_corpus(paths.data, "train")
    budget = budget_of(spec.training, corpus, rows)
    timer = StepTimer(method, spec, corpus, budget.steps_per_epoch, paths, ranks)
    stages = curriculum(method, budget)
    phases: dict[str, dict[str, Any]] = {}
    weights: dict[str, float] = defaultdict(float)
    training_flops = 0.0
    sizes = Counter(stage.phase for stage in stages)
    for stage in stages:
        steps = max(1, timing_of(spec).train_steps // sizes[stage.phase])
        with memory_for_training(spec):
            measured = timer.time(stage, steps, min(warmup, steps))
        phase = phases.setdefault(stage.phase, defaultdict(float))
        for name in PER_STEP:
            phase[name] += stage.epochs * measured[name]
        phase["once_seconds"] += measured["once_seconds"]
        phase["peak_memory_bytes"] = max(phase["peak_memory_bytes"], measured["peak_memory_bytes"])
        weights[stage.phase] += stage.epochs
        training_flops += measured["flops_per_step"] * steps_of(stage, budget.steps_per_epoch) + measured["once_flops"]
    for name, phase in phases.items():
        for key in PER_STEP:
            phase[key] /= weights[name]
        phase["steps_per_epoch"] = budget.steps_per_epoch
        phase["epoch_seconds"] = phase["step_seconds_median"] * budget.steps_per_epoch + phase["once_seconds"]
    return {
        "phases": {name: dict(phase) for name, phase in phases.items()},
        "epoch_seconds": sum(phase["epoch_seconds"] for phase in phases.values()),
        "training_flops": training_flops,
    }


@dataclass(frozen=True)
class StepTimer:
    """Times steps of a run's stages on its training data. An epoch has ``steps_per_epoch`` steps."""

    method: Method
    spec: RunSpec
    corpus: Corpus
    steps_per_epoch: int
    paths: Paths
    ranks: Ranks

    def time(self, stage: Stage, steps: int, warmup: int) -> dict[str, float]:
        """Return the median seconds of ``steps`` optimizer steps over batches of all lengths, after ``warmup`` steps of
        warm-up; their mean FLOPs, counted over some of the warm-up batches; and the cost of what is done once."""
        method, spec, device = self.method, self.spec, self.method.device
        data = StageLoader(method, self.corpus, stage, spec.seed)
        batches = self._batches(steps)
        chosen = [batches[i] for i in spread_over(len(batches), steps)]
        once = {"once_seconds": 0.0, "once_flops": 0.0}
        if stage.cached:
            once = self._cache(data, [chosen[i] for i in spread_over(len(chosen), FEATURED)])
            chosen = [np.arange(max(map(len, chosen)))] * steps  # not the size of an epoch's smaller, last batch
        place = PlaceInPhase(before=0, steps=1)
        engine = build_engine(method, stage, spec.training, spec.engine, place, self.ranks)  # may split weights
        method.train()
        warm = [chosen[i] for i in spread_over(len(chosen), warmup)]
        counted = warm[:: -(-len(warm) // COUNTED_STEPS)]  # batches of all lengths
        # without force_eager, layers first called under the FLOP counter would never be compiled
        with torch.compiler.set_stance("force_eager"), flop_counter() as counter:
            take(engine, data, counted)
        take(engine, data, warm)  # like the timed steps: layers are compiled here
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds, tokens = take(engine, data, chosen)
        engine.close()
        method.eval()
        data.close()
        return {
            "step_seconds_median": float(np.median(seconds)),
            "tokens_per_step": tokens / len(chosen),
            "flops_per_step": self._total(counter.get_total_flops()) / len(counted),
            "peak_memory_bytes": max(self.ranks.gather(peak_memory(device))),
            **once,
        }

    def _batches(self, steps: int) -> list[np.ndarray]:
        """Return the batches of as many epochs as it takes for that many steps, sorted by mean length."""
        lengths, size, grouped = self.corpus.lengths, self.spec.training.batch_size, self.spec.training.group_by_length
        epochs = range(math.ceil(steps / math.ceil(len(lengths) / size)))
        batches = [batch for epoch in epochs for batch in epoch_batches(lengths, size, self.spec.seed, epoch, grouped)]
        return sorted(batches, key=lambda indices: float(lengths[indices].mean()))

    def _cache(self, data: StageLoader, chosen: list[np.ndarray]) -> dict[str, float]:
        """Give the loader the features of the chosen batches. Return the cost of a pass over all batches of an epoch at
        the same rate."""
        precision, size = self.spec.engine.precision, self.spec.feature_batch_size
        store = FeatureStore(self.paths.checkpoints / "features-timing", "features", self.ranks)
        fill = partial(store.fill, data, np.concatenate(chosen), precision, size)
        with flop_counter() as counter:  # also a warm-up; counting slows it down, so it is not timed
            fill()
        _, seconds = timed(self.method.device, fill)
        scale = self.steps_per_epoch / len(chosen)
        data.features = store
        return {"once_seconds": seconds * scale, "once_flops": self._total(counter.get_total_flops()) * scale}

    def _total(self, counted: int) -> float:
        """Return the FLOPs that were counted, summed over all ranks."""
        return self.ranks.sum({"flops": counted})["flops"]


def take(engine: Engine, data: StageLoader, batches: Sequence[np.ndarray]) -> tuple[list[float], int]:
    """Make an optimizer step on each batch. Return the seconds of each step, and the tokens of all steps. As in
    training, a step collates the next batch while the device works."""
    steps = PrefetchingLoader(
        engine, data, ((indices, data.context(0, number)) for number, indices in enumerate(batches))
    )
    seconds, tokens = [], 0
    for number in range(len(batches)):
        sums, taken = timed(data.method.device, partial(optimizer_step, steps, number))
        seconds.append(taken)
        tokens += sums.tokens
    return seconds, tokens


def timed(device: torch.device, work: Callable[[], T]) -> tuple[T, float]:
    """Do some work. Return its result and the seconds it takes, until the device has finished."""
    synchronize(device)
    began = time.perf_counter()
    result = work()
    synchronize(device)
    return result, time.perf_counter() - began


def flop_counter() -> FlopCounterMode:
    """Return a context manager that counts the FLOPs of matrix products and attention inside it."""
    formulas: dict[Any, Any] = {}
    for name in KERNELS:
        formulas[getattr(torch.ops.aten, name)] = _forward
        formulas[getattr(torch.ops.aten, f"{name}_backward")] = _backward
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    counter.mod_tracker = cast("ModuleTracker", Everywhere())
    return counter


class Everywhere:
    """Replaces PyTorch's tracker, which tells modules apart: its hooks keep recomputed activations alive, step after
    step. Only the total is counted here."""

    parents = frozenset({"Global"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None: ...


def _forward(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of a forward pass with these shapes: queries (B, H, L, D), keys (B, G, M, D) and values (B, G,
    M, E), where each of the G heads serves H / G heads of queries."""
    return sdpa_flop_count(query, _repeated(key, query), _repeated(value, query))


def _backward(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Return the FLOPs of the backward pass, given the shape of the output's gradient (B, H, L, E) and the shapes of
    the forward pass."""
    return sdpa_backward_flop_count(gradient, query, _repeated(key, query), _repeated(value, query))


def _repeated(shape: Sequence[int], query: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of keys or values once they are repeated for each head of queries."""
    batch, _, *rest = shape
    return (batch, query[1], *rest)
