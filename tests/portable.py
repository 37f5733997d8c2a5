"""Train every method for a few steps with portable kernels, and print the digests of the weights as JSON:
`python tests/portable.py`. It starts itself anew with the variables that pin the kernels."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.data import prepare
from benchmarks.processes.kernels import PORTABLE
from benchmarks.training.loop import train
from methods.registry import available
from small import small_study

SIZE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
CHANGES: dict[str, Any] = {
    "kernels": "portable",
    "backbone": {"name": "qwen2-tiny", "overrides": SIZE},
    "blocks": [{"id": "equation", "title": "Equation", "data": {"train": "embedded", "validation": 16, "limit": 96}}],
    "training": {"epochs": 1, "batch_size": 32, "validations": 1, "checkpoint_seconds": 600},
}


def rows() -> list[dict[str, Any]]:
    """Return a row for each method of the suite, not of plugins."""
    found = []
    for name, cls in available().items():
        if cls.__module__.startswith("methods."):
            row = {"id": name, "method": name, "options": dict(cls.tested_options)}
            start = cls.starts_from(cls.Options.model_validate(row["options"]))
            found.append(row | ({"starts_from": start} if start else {}))
    return found


def weights(threads: int = 1) -> dict[str, str]:
    """Return the digests of the weights that trainings end with, by row."""
    study = small_study(rows(), threads=threads, **CHANGES)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        prepare(study, study.blocks[0], results)
        return {run.row: train(run, results)["weights_sha256"] for run in study.runs.values()}


if __name__ == "__main__":
    environment = os.environ | PORTABLE
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    print(json.dumps(weights(*map(int, sys.argv[1:])), indent=1))
