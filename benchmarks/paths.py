"""Where the files of a run are."""

from __future__ import annotations

from pathlib import Path

from benchmarks.specs import RunSpec

WEIGHTS = "weights.safetensors"


class Paths:
    """Where a run's files are, under ``results/<study>``."""

    def __init__(self, results: Path, spec: RunSpec) -> None:
        self.study = results / spec.study
        self.run = self.study / "runs" / spec.id
        self.data = self.study / "data" / spec.block
        self.checkpoints = self.run / "checkpoints"
        self.ranks = self.run / "ranks"  # by task: what they print and say while they work
        self.model = self.run / "model"  # what the run ends with, in a folder that needs nothing else to be used
        self.weights = self.model / WEIGHTS

    def predictions(self, decoding: str) -> Path:
        """What was answered to each question."""
        return self.run / "predictions" / f"{decoding}.parquet"

    def sibling(self, run: str) -> Path:
        """The final weights of another run of the study."""
        return self.study / "runs" / run / "model" / WEIGHTS
