"""How many micro-batches a batch is cut into: one rule for training, plans and digests."""

from __future__ import annotations

import math

from benchmarks.studies.specs import EngineSpec


def cuts(engine: EngineSpec) -> bool:
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


def parts_of(batch: int, ranks: int, engine: EngineSpec, longest: int) -> int:
    """Return the number of micro-batches of a batch whose longest example has ``longest`` tokens. Unless
    ``micro_batch`` is set, it is rounded up so that no rank waits for others."""
    parts = math.ceil(batch / rows_per_pass(batch, ranks, engine.micro_batch, engine.micro_tokens, longest))
    if engine.micro_batch:
        return parts
    return min(batch, math.ceil(parts / ranks) * ranks)
