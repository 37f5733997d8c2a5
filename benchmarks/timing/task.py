"""The time task: test and training times, measured alone on the machine, the same way for all methods.

Questions are tokenised before the clock runs, and answers decoded after it stops. At least one whole pass comes first,
as a warm-up. The clock is read when the device has finished, at both ends. Passes are repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.console import Progress
from benchmarks.data import open_test
from benchmarks.data.corpus import spread_over
from benchmarks.engine import Ranks, peak_memory, pick_device
from benchmarks.engine.adapters import add_adapters
from benchmarks.environment import environment, with_hardware
from benchmarks.evaluation.inference import batches_by_length, decoding_of, generate, temporarily_prepared
from benchmarks.files import read_json, write_json
from benchmarks.models import trained_method, trained_weights
from benchmarks.processes import launch
from benchmarks.processes.locks import RunLock
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.timing.machine import MUCH, OtherLoad, Pace
from benchmarks.timing.steps import time_training, timed, timing_of
from methods.base import Method
from methods.generation import Length

log = logging.getLogger(__name__)
TRAINING = "time/timed.json"  # the training times that a run's ranks measured


def time_run(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Time a trained run, write its record and return it."""
    timing_of(spec)  # refuses a study that times nothing, before it waits for a lock
    torch.set_num_threads(spec.timing_threads)
    made, paths, device = environment(spec.method), Paths(results, spec), pick_device()
    with RunLock(paths.run):
        load, pace = OtherLoad(), Pace()
        if several := spec.engine.kind == "deepspeed":
            launch.run_ranks(spec, results, "time")
        method = trained_method(spec, results).to(device)
        tests = {}
        with (
            Progress(f"{spec.id} timing", len(spec.evaluation.tests)) as progress,
            temporarily_prepared(method, spec.engine),
        ):
            for name in spec.evaluation.tests:
                pace.take()
                questions = open_test(paths.data, name).questions
                tests[name] = {"answer_only": time_test(method, spec, questions, True)}
                if method.can_skip_steps:
                    tests[name]["all_steps"] = time_test(method, spec, questions, False)
                progress.advance()
        pace.take()
        train = read_json(paths.ranks / TRAINING) if several else _timed_training(method, spec, paths, Ranks())
        pace.take()
        if (others := load.share()) > MUCH:
            log.warning(
                "%s: other processes took %.0f %% of the CPU time: run `time` again when the machine is idle",
                spec.id,
                100 * others,
            )
        record = {
            "run": spec.id,
            "digest": spec.digest("time"),
            "weights_sha256": trained_weights(paths),
            "other_load": others,
            "pace_seconds": pace.seconds(),
            "tests": tests,
            "train": train,
            "environment": with_hardware(made),
        }
        write_json(paths.record("time"), record)
    return record


def time_as(ranks: Ranks, spec: RunSpec, results: Path) -> None:
    """Time training as one of the ranks that train the run. The first rank writes what :func:`time_run` reads."""
    torch.set_num_threads(spec.timing_threads)
    paths = Paths(results, spec)
    measured = _timed_training(trained_method(spec, results).to(ranks.device), spec, paths, ranks)
    if ranks.first:
        write_json(paths.ranks / TRAINING, measured)
    ranks.wait("the times")


def _timed_training(method: Method, spec: RunSpec, paths: Paths, ranks: Ranks) -> dict[str, Any]:
    """Time the training steps of a trained method, with fresh adapters if it was trained by some."""
    return time_training(add_adapters(method, spec.training.lora, spec.seed), spec, paths, ranks)


def time_test(
    method: Method,
    spec: RunSpec,
    questions: Sequence[Sequence[int]],
    answer_only: bool,
    lengths: Sequence[Length] | None = None,
) -> dict[str, Any]:
    """Return the seconds that a method takes to answer a test set in batches, once per repeat, each with its own
    decoding seed; also tokens per second and peak memory. ``lengths``, one per question, are forced on the answers."""
    timing, device = timing_of(spec), method.device
    by_length = sorted(range(len(questions)), key=lambda i: len(questions[i]))
    chosen = [by_length[i] for i in spread_over(len(by_length), timing.questions or len(by_length))]
    parts = batches_by_length([questions[i] for i in chosen], timing.batch_size)
    batches = [[chosen[i] for i in part] for part in parts]

    def answer_all(seed: int) -> int:
        """Answer all questions and return the number of tokens emitted."""
        decoding = decoding_of(spec.evaluation.decodings["default"], spec.evaluation, seed, answer_only)
        tokens = 0
        for batch in batches:
            how = replace(decoding, lengths=tuple(lengths[i] for i in batch)) if lengths else decoding
            tokens += generate(method, [questions[i] for i in batch], how, spec.engine.precision).cost.tokens
        return tokens

    # Warm-up. On a GPU every batch shape has a CUDA graph, which is captured here; unless lengths are forced, sampled
    # answers have different lengths under each seed
    for seed in range(timing.repeats if device.type == "cuda" and lengths is None else 1):
        answer_all(seed)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, tokens = [], 0
    for repeat in range(timing.repeats):
        emitted, taken = timed(device, partial(answer_all, repeat))
        seconds.append(taken)
        tokens += emitted
    return {
        "seconds": seconds,
        "n": len(chosen),
        "n_total": len(questions),
        "tokens_per_second": tokens / sum(seconds),
        "peak_memory_bytes": peak_memory(device),
    }
