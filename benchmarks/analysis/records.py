"""Reads what analyse has written, and checks it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict

from benchmarks.files import BrokenRecord, read_parquet
from benchmarks.records.schema import read_model, read_records
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import Block, Row
from benchmarks.studies.study import Study


class EncodingRecord(BaseModel):
    test: str
    dims: list[int | None]
    values: list[float | None]
    agreement: list[float | None]  # by digit
    explained: dict[Literal["digit", "level"], list[float | None]]  # by step

    @property
    def digit_dimensions(self) -> list[int]:
        """The digits' own dimensions, in the order of the digits."""
        return [dim for dim in self.dims if dim is not None]


class AnalysisRecord(BaseModel):
    model_config = ConfigDict(extra="allow")
    run: str
    digest: str
    weights_sha256: str | None = None  # of the weights that were analysed; missing in older records
    name: str  # of the latents
    source: Literal["encoded", "drawn"] = "drawn"  # the origin of the frame `latents`
    dimensions: int
    active: int
    frequent: list[int]
    clique: list[int]
    encoding: EncodingRecord | None
    files: dict[str, str]  # SHA-256 by name


@dataclass(frozen=True)
class Analysis:
    """One run's record and the frames beside it. ``row`` is the row of the study that is drawn; the run's own study
    (``spec``) may have another name for it."""

    block: Block
    row: Row
    spec: RunSpec
    folder: Path
    record: AnalysisRecord

    def frame(self, name: str) -> pd.DataFrame:
        return read_parquet(self.folder / f"{name}.parquet", self.record.files.get(name), "`analyse`")

    @cached_property
    def latents(self) -> tuple[pd.DataFrame, np.ndarray]:
        """The test, question and step of each sample, and the (N, D) values."""
        frame = self.frame("latents")
        return frame.loc[:, ["test", "id", "step"]], np.stack(frame["values"].tolist())


def analysed(study: Study, every_row: bool = False) -> list[tuple[Block, Row, RunSpec]]:
    """Return the runs that figures of latents are drawn from: in each block, the rows (controls aside) whose latents
    can be set by hand, or the first of them."""
    found = []
    for block in study.blocks:
        rows = [row for row in study.rows_of(block) if not row.control]
        runs = [(row, study.sources[run.id]) for row in rows for run in study.trainings(block.id, row.id)[:1]]
        steerable = [(block, row, spec) for row, spec in runs if spec.steerable_latents]
        found += steerable if every_row else steerable[:1]
    return found


def read_analysis(study: Study, block: Block, row: Row, spec: RunSpec, results: Path) -> Analysis:
    """Return a run's analysis, or raise :class:`BrokenRecord` if it is missing, broken or out of date."""
    path, mend = Paths(results, spec).analysis.absolute(), study.home(spec).command("analyse", results, spec.id)
    record = read_model(path, AnalysisRecord, f"run `{mend}` again", f"run `{mend}`")
    if record.digest != spec.digest("analyse"):
        raise BrokenRecord(f"{path} was made from another specification: run `{mend}` again")
    train = read_records(results, spec).train  # None if the results were kept without this record
    if train and record.weights_sha256 not in (None, train.weights_sha256):
        raise BrokenRecord(f"{path} was made from other weights: run `{mend}` again")
    return Analysis(block, row, spec, path.parent, record)
