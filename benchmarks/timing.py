"""The time stage: test and training times, measured alone on the machine, the same way for all methods.

Questions are tokenised before and answers decoded after the clock runs; one whole pass comes first, as a warm-up; the
device is waited for at both ends; passes are repeated.
"""

from __future__ import annotations

import logging
import math
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import launch
from benchmarks.answering import batches_by_length, decoding_of, generate
from benchmarks.casting import answering
from benchmarks.data import Corpus, epoch_batches, open_corpus, open_test
from benchmarks.engine import Engine, Phase, Ranks, build_engine, deterministic, pick_device, synchronize
from benchmarks.environment import ended, environment
from benchmarks.features import FeatureStore
from benchmarks.files import read_json, write_json
from benchmarks.flops import flop_counter
from benchmarks.lengths import spread_over
from benchmarks.load import MUCH, OtherLoad
from benchmarks.locks import RunLock
from benchmarks.models import trained_method, trained_weights
from benchmarks.pace import Pace
from benchmarks.paths import Paths
from benchmarks.progress import Progress
from benchmarks.runs import RunSpec
from benchmarks.specs import TimingSpec
from benchmarks.steps import StageData, Steps, budget_of, optimizer_step, steps_of
from benchmarks.study import StudyError
from methods.base import Budget, Method, Stage
from methods.generation import Length

log = logging.getLogger(__name__)
PER_STEP = ("step_seconds_median", "tokens_per_step", "flops_per_step")
WARMUP_STEPS = 3
COUNTED_STEPS = 3  # of the warm-up, whose FLOPs are counted
FEATURED = 10  # batches whose features are computed, for the rate
TRAINING = "time/timed.json"  # what the ranks of a run measured


def time_run(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Time a trained run; returns its record."""
    timing = timing_of(spec)
    torch.set_num_threads(spec.timing_threads)
    made, paths, device = environment(spec.method), Paths(results, spec), pick_device()
    with RunLock(paths.run):
        load, pace = OtherLoad(), Pace()
        if several := spec.engine.kind == "deepspeed":
            launch.run_ranks(spec, results, "time")
        method = trained_method(spec, results).to(device)
        tests = {}
        with Progress(f"{spec.id} timing", len(spec.evaluation.tests)) as progress, answering(method, spec.engine):
            for name in spec.evaluation.tests:
                pace.take()
                questions = open_test(paths.data, name).questions
                tests[name] = {"answer_only": time_test(method, spec, questions, True)}
                if method.says_steps:
                    tests[name]["all_steps"] = time_test(method, spec, questions, False)
                progress.advance()
        pace.take()
        train = read_json(paths.ranks / TRAINING) if several else time_training(method, spec, paths, Ranks())
        pace.take()
        if (others := load.share()) > MUCH:
            log.warning("%s: other processes took %.0f %% of the CPU time: run `time` again when the machine is idle",
                        spec.id, 100 * others)  # fmt: skip
        record = {
            "run": spec.id,
            "digest": spec.digest("time"),
            "weights_sha256": trained_weights(paths),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "precision": spec.engine.precision,
            "threads": spec.timing_threads,
            "batch_size": timing.batch_size,
            "other_load": others,
            "pace_seconds": pace.seconds(),
            "tests": tests,
            "train": train,
            "environment": ended(made),
        }
        write_json(paths.record("time"), record)
    return record


def time_as(ranks: Ranks, spec: RunSpec, results: Path) -> None:
    """Time training as one of the ranks that train the run; the first writes what :func:`time_run` reads."""
    torch.set_num_threads(spec.timing_threads)
    paths = Paths(results, spec)
    measured = time_training(trained_method(spec, results).to(ranks.device), spec, paths, ranks)
    if ranks.first:
        write_json(paths.ranks / TRAINING, measured)
    ranks.wait("the times")


def timing_of(spec: RunSpec) -> TimingSpec:
    """What is to be timed, or an error if the study times nothing."""
    if spec.timing is None:
        raise StudyError(f"study {spec.study} times nothing: give its file a `timing`")
    return spec.timing


def time_test(
    method: Method,
    spec: RunSpec,
    questions: Sequence[Sequence[int]],
    answer_only: bool,
    lengths: Sequence[Length] | None = None,
) -> dict[str, Any]:
    """Seconds to answer a test set in batches, each repeat with its own decoding seed; ``lengths``, one per question,
    are forced on the answers."""
    timing, device = timing_of(spec), method.device
    by_length = sorted(range(len(questions)), key=lambda i: len(questions[i]))
    timed = [by_length[i] for i in spread_over(len(by_length), timing.questions or len(by_length))]
    parts = batches_by_length([questions[i] for i in timed], timing.batch_size)
    batches = [[timed[i] for i in part] for part in parts]

    def answer_all(seed: int) -> int:
        """Tokens of all answers."""
        decoding = decoding_of(spec.evaluation.decodings["default"], spec.evaluation, seed, answer_only)
        tokens = 0
        for batch in batches:
            how = replace(decoding, lengths=tuple(lengths[i] for i in batch)) if lengths else decoding
            tokens += generate(method, [questions[i] for i in batch], how, spec.engine.precision).cost.tokens
        return tokens

    # On a GPU every shape of batch has a CUDA graph, which is captured here; answers that are drawn have lengths of
    # their own under each seed, where none are forced
    for seed in range(timing.repeats if device.type == "cuda" and lengths is None else 1):
        answer_all(seed)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, tokens = [], 0
    for repeat in range(timing.repeats):
        synchronize(device)
        began = time.perf_counter()
        tokens += answer_all(repeat)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": seconds,
        "n": len(timed),
        "n_total": len(questions),
        "tokens_per_second": tokens / sum(seconds),
        "peak_memory_bytes": peak_memory(device),
    }


def peak_memory(device: torch.device) -> int:
    """Bytes that the GPU held at most since the last reset, or this process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@deterministic()  # as training is
def time_training(
    method: Method, spec: RunSpec, paths: Paths, ranks: Ranks, warmup: int = WARMUP_STEPS, rows: int | None = None
) -> dict[str, Any]:
    """Seconds and FLOPs of one epoch of each phase: steps per epoch times the median step, measured here, alone.

    A phase of several stages is their mean, weighted by their epochs. A cached stage costs its epoch and one pass
    that computes the features. A stage warms up with at most as many steps as are timed. Each of several ranks calls
    this; FLOPs are the sum over all, memory is that of the rank that takes most. ``rows`` of an epoch, where those at
    hand stand in for more.
    """
    corpus = open_corpus(paths.data, "train")
    budget = budget_of(spec.training, corpus, rows)
    stages = method.stages(budget)
    phases: dict[str, dict[str, Any]] = {}
    weights: dict[str, float] = defaultdict(float)
    training_flops = 0.0
    sizes = Counter(stage.phase for stage in stages)
    for stage in stages:
        steps = max(1, timing_of(spec).train_steps // sizes[stage.phase])
        measured = time_stage(method, spec, corpus, stage, steps, min(warmup, steps), budget, paths.checkpoints, ranks)
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


def time_stage(
    method: Method,
    spec: RunSpec,
    corpus: Corpus,
    stage: Stage,
    steps: int,
    warmup: int,
    budget: Budget,
    scratch: Path,
    ranks: Ranks,
) -> dict[str, float]:
    """Median seconds and mean FLOPs of an optimizer step, over batches of all lengths, and the cost of what is done
    once."""
    device = method.device
    data = StageData(method, corpus, stage, spec.seed, None)
    batches = _batches(corpus, spec, steps)
    chosen = [batches[i] for i in spread_over(len(batches), steps)]
    once = {"once_seconds": 0.0, "once_flops": 0.0}
    if stage.cached:
        few = [chosen[i] for i in spread_over(len(chosen), FEATURED)]
        data, once = _cached(method, spec, data, few, budget.steps_per_epoch, scratch, ranks)
        chosen = [np.arange(len(chosen[0]))] * steps
    engine = build_engine(method, stage, spec.training, spec.engine, Phase(0, 1), ranks)  # may take weights apart
    method.train()
    warm = [chosen[i] for i in spread_over(len(chosen), warmup)]
    counted = warm[:: -(-len(warm) // COUNTED_STEPS)]  # of all lengths
    # layers that are called while FLOPs are counted would never be compiled
    with torch.compiler.set_stance("force_eager"), flop_counter() as counter:
        _take(engine, data, counted)
    _take(engine, data, warm)  # as the steps that are timed: layers are compiled here
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, tokens = _take(engine, data, chosen)
    engine.close()
    method.eval()
    if data.features is not None:
        data.features.remove()
    return {
        "step_seconds_median": float(np.median(seconds)),
        "tokens_per_step": tokens / len(chosen),
        "flops_per_step": total_flops(counter.get_total_flops(), ranks) / len(counted),
        "peak_memory_bytes": max(ranks.gather(peak_memory(device))),
        **once,
    }


def _take(engine: Engine, data: StageData, batches: Sequence[np.ndarray]) -> tuple[list[float], int]:
    """The seconds of an optimizer step on each batch, and the tokens of all. As in training, a step collates the batch
    of the next one while the device works."""
    steps = Steps(engine, data, ((indices, data.context(0, number)) for number, indices in enumerate(batches)))
    seconds, tokens, device = [], 0, data.method.device
    for number in range(len(batches)):
        synchronize(device)
        began = time.perf_counter()
        tokens += optimizer_step(steps, number).tokens
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return seconds, tokens


def total_flops(counted: int, ranks: Ranks) -> float:
    """What was counted on all ranks together."""
    return ranks.sum({"flops": counted})["flops"]


def _cached(
    method: Method, spec: RunSpec, data: StageData, chosen: list[np.ndarray], batches: int, scratch: Path, ranks: Ranks
) -> tuple[StageData, dict[str, float]]:
    """Features of the chosen batches, and what a pass over all batches costs at their rate."""
    rows, size = np.concatenate(chosen), spec.rows_at_once
    store = FeatureStore(scratch / "features-timing", "features", ranks)
    context = data.context(0, 0)
    with flop_counter() as counter:  # warms up too; counting slows down, so it is not timed
        store.fill(method, spec.engine.precision, data.corpus, rows, context, size)
    synchronize(method.device)
    began = time.perf_counter()
    store.fill(method, spec.engine.precision, data.corpus, rows, context, size)
    synchronize(method.device)
    seconds = time.perf_counter() - began
    scale = batches / len(chosen)
    filled = StageData(method, data.corpus, data.stage, data.seed, store)
    once_flops = total_flops(counter.get_total_flops(), ranks) * scale
    return filled, {"once_seconds": seconds * scale, "once_flops": once_flops}


def _batches(corpus: Corpus, spec: RunSpec, steps: int) -> list[np.ndarray]:
    """The batches of as many epochs as have so many steps, by mean length."""
    epochs = math.ceil(steps / math.ceil(len(corpus) / spec.training.batch_size))
    batches = [
        batch
        for epoch in range(epochs)
        for batch in epoch_batches(corpus.lengths, spec.training.batch_size, spec.seed, epoch)
    ]
    return sorted(batches, key=lambda indices: float(corpus.lengths[indices].mean()))
