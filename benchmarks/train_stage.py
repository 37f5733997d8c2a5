"""The train stage: a run is trained unless it is trained already, and nothing that has ended is lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkpoints
from benchmarks.checkpoints import DIGEST, read_weights
from benchmarks.engine import Ranks
from benchmarks.files import BrokenRecord, read_json, write_json
from benchmarks.paths import Paths
from benchmarks.specs import RunSpec
from benchmarks.training import Trainer

RECORD = "train.json"  # in a run's folder, and beside its weights

log = logging.getLogger(__name__)


def train_as(ranks: Ranks, spec: RunSpec, results: Path) -> dict[str, Any]:
    """Train a run unless it is trained already, as one of some ranks; who calls it holds the run's lock."""
    torch.set_num_threads(spec.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a check for bugs that costs a pass over memory
    paths = Paths(results, spec)
    trainer = Trainer(spec, results, ranks)
    record = finished(paths, trainer.key) if ranks.first else None
    if ranks.any(record is not None):
        log.warning("%s is trained already; to train it again, remove its folder %s", spec.id, paths.run)
    else:
        record = trainer.run()
        if ranks.first:
            write_json(paths.model / RECORD, record)
    if ranks.first:
        checkpoints.discard(paths.checkpoints)
        write_json(paths.run / RECORD, record)
    ranks.wait("the record")
    return record or read_json(paths.run / RECORD)


def finished(paths: Paths, key: str) -> dict[str, Any] | None:
    """The record of a training under this key whose weights are whole.

    Snakemake removes ``train.json`` of a job that fails or is cut off after its last word, and of one that it is about
    to run: what proves that a run has ended lies beside its weights.
    """
    try:
        record = read_json(paths.model / RECORD)
        whole = record["key"] == key and read_weights(paths.weights).metadata[DIGEST] == record["weights_sha256"]
    except (BrokenRecord, FileNotFoundError):
        return None
    return record if whole else None
