"""What a training depends on, and whether it has ended: a finished run is never trained again, nor lost."""

from __future__ import annotations

import logging
from typing import Any

from benchmarks import checkpoints
from benchmarks.checkpoints import DIGEST, read_weights
from benchmarks.code import stage_modules
from benchmarks.engine.adapters import whole_weights
from benchmarks.files import BrokenRecord, json_digest, read_json, write_json
from benchmarks.models import published_model
from benchmarks.studies.paths import DONE, Paths
from benchmarks.studies.runs import RunSpec
from methods.registry import code_digest

log = logging.getLogger(__name__)


def training_key(spec: RunSpec, paths: Paths, parent: str | None) -> str:
    """Return a digest of everything that training depends on. ``parent`` is the digest of the weights of the run that
    this one starts from. A checkpoint is resumed only if its key is the same."""
    data = read_json(paths.data / DONE)["tokenised"]
    parts = [spec.digest("train"), code_digest(spec.method, *stage_modules(spec, "train")), data, parent]
    if spec.backbone.pretrained:  # a folder, or a branch on the hub, may change under its name
        parts.append(checkpoints.digest(dict(whole_weights(published_model(spec, paths.data)))))
    return json_digest(parts)


def restore(spec: RunSpec, paths: Paths) -> dict[str, Any] | None:
    """Return the record of a run that is trained already, and put it where it belongs; return None if it is not.

    Snakemake removes ``train.json`` of a job that fails, even at its very end, and of one that it is about to run. The
    proof that a run has ended therefore lies beside its weights.
    """
    record = _intact(spec, paths)
    if record is not None:
        log.warning("%s is trained already; to train it again, remove its folder %s", spec.id, paths.run)
        publish(paths, record)
    return record


def publish(paths: Paths, record: dict[str, Any]) -> None:
    """Write the record of a run that has ended, whose checkpoints nobody needs any more."""
    write_json(paths.ended, record)
    checkpoints.discard(paths.checkpoints)
    write_json(paths.record("train"), record)


def _intact(spec: RunSpec, paths: Paths) -> dict[str, Any] | None:
    """Return the record of a training that ended with what this one would depend on, if its weights are intact."""
    try:
        record = read_json(paths.ended)
        parent = read_weights(paths.start).metadata[DIGEST] if paths.start else None
        if record["key"] != training_key(spec, paths, parent):
            return None
        left = {paths.weights: record["weights_sha256"]}
        left |= {paths.stage_weights(at): stage.get("weights_sha256") for at, stage in enumerate(record["stages"])}
        whole = all(read_weights(path).metadata[DIGEST] == digest for path, digest in left.items() if digest)
    except BrokenRecord:
        return None
    return record if whole else None
