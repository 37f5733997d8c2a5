"""A study together with what is recorded of its runs: what tables, figures and checks are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.files import read_parquet
from benchmarks.records.schema import EvaluateRecord, RunRecords
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study


@dataclass(frozen=True)
class StudyRecords:
    """The collected records of a study.

    * ``results``: the folder of all studies' results, in which the runs' answers lie.
    * ``runs``: the records of each run, by its id.
    * ``data``: the ``done.json`` of each block's data, by the block's id.
    """

    study: Study
    results: Path
    runs: Mapping[str, RunRecords]
    data: Mapping[str, dict[str, Any]]

    @property
    def folder(self) -> Path:
        """The folder of the study's own results."""
        return self.results / self.study.name

    @cached_property
    def test_titles(self) -> dict[str, str]:
        """The data sets' titles by name, from the cards that were recorded when the data were prepared."""
        cards = {name: card for data in self.data.values() for name, card in data.get("cards", {}).items()}
        return {name: card["title"] for name, card in cards.items() if "title" in card}

    def test_title(self, test: str) -> str:
        return self.test_titles.get(test, test)

    def paths(self, run: str) -> Paths:
        """Return the paths of a run's files, which another study may have made."""
        return Paths(self.results, self.study.sources[run])

    def evaluations(self, block: str, row: str) -> list[EvaluateRecord]:
        """Return the evaluation records of a row's trainings, as far as there are any."""
        found = (self.runs[run.id].evaluate for run in self.study.trainings(block, row))
        return [record for record in found if record]

    def answers_of(self, run: RunSpec, decoding: str, columns: Sequence[str]) -> pd.DataFrame | None:
        """Return a run's answers, with a column ``training_seed``, or None if none are recorded."""
        record = self.runs[run.id].evaluate
        if not record or decoding not in record.predictions:
            return None
        path, digest = self.paths(run.id).predictions(decoding), record.predictions[decoding]
        return read_parquet(path, digest, "`evaluate`, then `collect`", columns).assign(training_seed=run.seed)

    def answers(self, block: str, row: str, decoding: str, columns: Sequence[str]) -> pd.DataFrame | None:
        """Return a row's answers in all of its trainings, or None without any."""
        found = (self.answers_of(run, decoding, columns) for run in self.study.trainings(block, row))
        frames = [frame for frame in found if frame is not None]
        return pd.concat(frames, ignore_index=True) if frames else None
