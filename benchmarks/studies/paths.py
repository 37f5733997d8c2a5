"""Where the files of studies and runs are."""

from __future__ import annotations

from pathlib import Path

from benchmarks.studies.runs import RunSpec, StageName

WEIGHTS = "weights.safetensors"
AT_STAGE = "default@"  # no decoding of a study can have a name like this
DONE = "done.json"  # in a folder of prepared data: what they are, written last


def data_folder(results: Path, study: str, block: str) -> Path:
    """Where the prepared data of a study's block are."""
    return results / study / "data" / block


def at_stage(number: int) -> str:
    """What a run's records call the default decoding by the weights that a stage of its curriculum ended with."""
    return f"{AT_STAGE}{number}"


class Paths:
    """Where a run's files are, under ``results/<study>``."""

    def __init__(self, results: Path, spec: RunSpec) -> None:
        self.study = results / spec.study
        self.run = results / spec.folder
        self.data = data_folder(results, spec.study, spec.block)
        self.checkpoints = self.run / "checkpoints"
        self.ranks = self.run / "ranks"  # by task: what ranks print while they work, and their heartbeats
        self.model = self.run / "model"  # the final weights, in a folder that can be used without any other file
        self.weights = self.model / WEIGHTS
        self.start = results / spec.starts_at / "model" / WEIGHTS if spec.starts_at else None
        self.kept = self.run / "stages"  # the weights that stages ended with, where the training keeps them
        self.ended = self.model / "train.json"  # the record of training once more: proof that it has ended

    def stage_weights(self, number: int) -> Path:
        """The weights that a stage of the curriculum ended with."""
        return self.kept / f"{number:03d}.safetensors"

    def record(self, stage: StageName) -> Path:
        """What a stage leaves behind when it is done."""
        return self.run / f"{stage}.json"

    def predictions(self, decoding: str) -> Path:
        """What was answered to each question under a decoding, or :func:`at_stage`."""
        return self.run / "predictions" / f"{decoding}.parquet"
