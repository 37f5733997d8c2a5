"""The train stage: in this process, or on the ranks of the run's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.files import read_json
from benchmarks.launch import run_ranks
from benchmarks.locks import RunLock
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec


def train(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Train a run unless it is trained already, and return its record."""
    paths = Paths(results, spec)
    with RunLock(paths.run):
        if paths.ended.exists():
            from benchmarks.training.records import restore  # slow to import, as is what trains in this process

            if record := restore(spec, paths):
                return record
        if spec.engine.kind == "process":
            from benchmarks.engine import Ranks
            from benchmarks.training.live import followed
            from benchmarks.training.loop import Trainer

            trainer = Trainer(spec, results, Ranks())
            with followed(trainer, results):
                return trainer.run()
        run_ranks(spec, results, "train")
    return read_json(paths.record("train"))
