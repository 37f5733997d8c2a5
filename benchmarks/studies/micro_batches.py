"""How many GPUs share a batch, and how many micro-batches it is cut into: one rule for training, plans and digests."""

from __future__ import annotations

import math
import os

from benchmarks.studies.specs import EngineSpec, TrainingSpec
from methods.errors import InputError

GPUS_VARIABLE = "MARCOS_BENCH_GPUS"  # how many GPUs of a machine every run takes, in place of what its study says


def requested_gpus() -> int | None:
    """Return the number of GPUs that :data:`GPUS_VARIABLE` asks for, or None if it is not set."""
    asked = os.environ.get(GPUS_VARIABLE)
    if asked is not None and not (asked.isdecimal() and int(asked)):
        raise InputError(f"{GPUS_VARIABLE} is {asked!r}: set it to the number of GPUs that every run takes, such as 8")
    return int(asked) if asked else None


def on_gpus(engine: EngineSpec, gpus: int, training: TrainingSpec, statistics: bool) -> EngineSpec:
    """Return an engine for the same run on so many GPUs of one machine: by DeepSpeed, at ZeRO 1 at least.

    A rank computes its whole share of a batch in one pass, unless ``micro_batch`` allows fewer examples. Loss terms
    that are ``statistics`` of a pass are then those of the whole batch, which ``micro_tokens`` would prevent; for other
    methods this limit stays, as it changes nothing that is learned. A run that answers ``validation_questions`` while
    it trains, for which a process needs all weights, keeps its engine.
    """
    if gpus == 1 == engine.ranks or training.validation_questions:
        return engine
    changes: dict[str, object] = {
        "kind": "deepspeed",
        "gpus": gpus,
        "nodes": 1,
        "zero_stage": max(1, engine.zero_stage),
    }
    if engine.micro_batch is None or engine.micro_batch >= math.ceil(training.batch_size / gpus):
        changes["micro_batch"] = None
        if statistics:
            changes["micro_tokens"] = None
    return EngineSpec.model_validate(engine.model_dump() | changes)


def splits_batches(engine: EngineSpec) -> bool:
    """Return whether a batch may be cut into more parts than there are ranks."""
    return bool(engine.micro_batch or engine.micro_tokens)


def rows_per_pass(
    batch: int, ranks: int, micro_batch: int | None, micro_tokens: int | None = None, longest: int = 1
) -> int:
    """Return the examples per forward pass of an optimizer step: ``micro_batch``, or a rank's whole share of the batch
    if it is None; at most the batch; fewer if ``micro_tokens`` has no room for as many examples of length
    ``longest``."""
    rows = min(batch, micro_batch or math.ceil(batch / ranks))
    return rows if micro_tokens is None else max(1, min(rows, micro_tokens // longest))


def micro_batch_count(batch: int, ranks: int, engine: EngineSpec, longest: int) -> int:
    """Return the number of micro-batches of a batch whose longest example has ``longest`` tokens. Unless
    ``micro_batch`` is set, it is rounded up so that no rank waits for others."""
    parts = math.ceil(batch / rows_per_pass(batch, ranks, engine.micro_batch, engine.micro_tokens, longest))
    if engine.micro_batch:
        return parts
    return min(batch, math.ceil(parts / ranks) * ranks)
