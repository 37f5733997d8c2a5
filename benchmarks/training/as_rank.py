"""Train a run as one of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import Ranks, deterministic
from benchmarks.engine.device import memory_for_training
from benchmarks.files import read_json
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.finished import publish
from benchmarks.training.loop import Trainer


@deterministic()
def train_as(ranks: Ranks, spec: RunSpec, results: Path) -> dict[str, Any]:
    """Train a run as one of its ranks, and return its record. The caller holds the run's lock."""
    torch.set_num_threads(spec.threads)
    paths = Paths(results, spec)
    with memory_for_training(spec):
        record = Trainer(spec, results, ranks).run()
    if ranks.first:
        publish(paths, record)
    ranks.wait("the record")
    return read_json(paths.record("train"))
