"""Into how many parts a batch is cut: one rule for training, plans and digests."""

from __future__ import annotations

import math

from benchmarks.studies.specs import EngineSpec


def cuts(engine: EngineSpec) -> bool:
    """Whether a batch may be cut into more parts than there are ranks."""
    return bool(engine.micro_batch or engine.micro_tokens)


def rows_per_pass(
    batch: int, ranks: int, micro_batch: int | None, micro_tokens: int | None = None, longest: int = 1
) -> int:
    """Examples per forward pass of an optimizer step: the micro-batch, or a rank's whole share of the batch where none
    is set; fewer, where ``micro_tokens`` has no room for as many of the ``longest``."""
    rows = micro_batch or math.ceil(batch / ranks)
    return rows if micro_tokens is None else max(1, min(rows, micro_tokens // longest))


def parts_of(batch: int, ranks: int, engine: EngineSpec, longest: int) -> int:
    """Micro-batches of a batch whose longest example has so many tokens. Where their number is free, none of the ranks
    waits for others."""
    parts = math.ceil(batch / rows_per_pass(batch, ranks, engine.micro_batch, engine.micro_tokens, longest))
    if engine.micro_batch:
        return parts
    return min(batch, math.ceil(parts / ranks) * ranks)
