"""Train a run as one of its ranks, unless it is trained already, and never lose a finished one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkpoints
from benchmarks.checkpoints import DIGEST, read_weights
from benchmarks.engine import Ranks, deterministic
from benchmarks.files import BrokenRecord, read_json, write_json
from benchmarks.out_of_memory import memory_for_training
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.loop import Trainer

log = logging.getLogger(__name__)


@deterministic()
def train_as(ranks: Ranks, spec: RunSpec, results: Path) -> dict[str, Any]:
    """Train a run unless it is trained already, as one of its ranks, and return its record. The caller holds the run's
    lock."""
    torch.set_num_threads(spec.threads)
    paths = Paths(results, spec)
    with memory_for_training(spec):
        trainer = Trainer(spec, results, ranks)
    record = finished(paths, trainer.key) if ranks.first else None
    if ranks.any(record is not None):
        log.warning("%s is trained already; to train it again, remove its folder %s", spec.id, paths.run)
    else:
        with memory_for_training(spec):
            record = trainer.run()
        if ranks.first:
            write_json(paths.ended, record)
    if ranks.first:
        checkpoints.discard(paths.checkpoints)
        write_json(paths.record("train"), record)
    ranks.wait("the record")
    return record or read_json(paths.record("train"))


def finished(paths: Paths, key: str) -> dict[str, Any] | None:
    """Return the record of a finished training with this key if all of its weights are intact, otherwise None.

    Snakemake removes ``train.json`` of a job that fails, even at its very end, and of one that it is about to run. The
    proof that a run has ended therefore lies beside its weights.
    """
    try:
        record = read_json(paths.ended)
        if record["key"] != key:
            return None
        left = {paths.weights: record["weights_sha256"]}
        left |= {paths.stage_weights(at): stage.get("weights_sha256") for at, stage in enumerate(record["stages"])}
        whole = all(read_weights(path).metadata[DIGEST] == digest for path, digest in left.items() if digest)
    except BrokenRecord:
        return None
    return record if whole else None
