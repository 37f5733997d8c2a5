"""Where the files of studies and runs are."""

from __future__ import annotations

from pathlib import Path

from benchmarks.studies.runs import RunSpec, TaskName

WEIGHTS = "weights.safetensors"
SPEC = "spec.json"  # the specification of a run, beside its records, its final weights and the logs of its ranks
AT_STAGE = "default@"  # no decoding of a study can have a name like this
COLLECTED = "collect.json"  # the gathered records of a study's runs
LOG = "log.jsonl"  # of a run: one line of JSON per event of its training
DONE = "done.json"  # describes the prepared data in a folder; written last

# What else has a place in a folder of results, or may get one
TAKEN = {"reference", "report.html", "mlflow.db", "mlartifacts", "mlruns", "measured", "stand_in", "rehearsal", "logs"}


def data_folder(results: Path, study: str, block: str) -> Path:
    """Return the folder of the prepared data of a study's block."""
    return results / study / "data" / block


def at_stage(number: int) -> str:
    """Return the name that a run's records give to the default decoding with the weights that a stage of its curriculum
    ended with."""
    return f"{AT_STAGE}{number}"


class Paths:
    """The paths of a run's files, under ``results/<study>``."""

    def __init__(self, results: Path, spec: RunSpec) -> None:
        self.study = results / spec.study
        self.run = results / spec.folder
        self.data = data_folder(results, spec.study, spec.block)
        self.log = self.run / LOG
        self.checkpoints = self.run / "checkpoints"
        self.ranks = self.run / "ranks"  # one folder per task: logs and heartbeats of the ranks
        self.model = self.run / "model"  # the final weights, in a folder that can be used without any other file
        self.weights = self.model / WEIGHTS
        self.answers = self.run / "predictions"
        self.nats = self.run / "nats.parquet"  # what the gold texts of validation rows cost the final weights
        self.analysis = self.run / "analysis" / "analysis.json"  # what its latents carry; frames lie beside it
        self.start = results / spec.starts_at / "model" / WEIGHTS if spec.starts_at else None
        self.kept = self.run / "stages"  # the weights that stages ended with, if training keeps them
        self.ended = self.model / "train.json"  # a second copy of the training record: proof that training has ended

    def stage_weights(self, number: int) -> Path:
        """Return the path of the weights that a stage of the curriculum ended with."""
        return self.kept / f"{number:03d}.safetensors"

    def record(self, task: TaskName) -> Path:
        """Return the path of the record that a task writes when it is done."""
        return self.run / f"{task}.json"

    def predictions(self, decoding: str) -> Path:
        """Return the path of the answers to each question under a decoding, or :func:`at_stage`."""
        return self.answers / f"{decoding}.parquet"
