"""What the analyse stage left behind, checked when it is read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.files import BrokenRecord, read_json, sha256
from benchmarks.paths import Paths
from benchmarks.records import first_problem
from benchmarks.specs import Block, RunSpec
from benchmarks.study import Study
from methods.registry import get_method

FOLDER = "analysis"


class EncodingRecord(BaseModel):
    test: str
    dims: list[int | None]
    values: list[float | None]
    agreement: list[float | None]  # by digit

    @property
    def own(self) -> list[int]:
        """Dimensions that digits have to themselves, in the order of the digits."""
        return [dim for dim in self.dims if dim is not None]


class AnalysisRecord(BaseModel):
    model_config = ConfigDict(extra="allow")
    run: str
    digest: str
    name: str  # of the latents
    source: Literal["encoded", "drawn"] = "drawn"  # what `latents` are
    dimensions: int
    active: int
    frequent: list[int]
    clique: list[int]
    encoding: EncodingRecord | None
    files: dict[str, str]  # sha256


@dataclass(frozen=True)
class Analysis:
    """One run's record and the frames beside it."""

    block: Block
    spec: RunSpec
    folder: Path
    record: AnalysisRecord

    def frame(self, name: str) -> pd.DataFrame:
        path = self.folder / f"{name}.parquet"
        if not path.is_file() or sha256(path) != self.record.files.get(name):
            raise BrokenRecord(f"{path} is not what analysis.json recorded: run `analyse` again")
        return pd.read_parquet(path)

    @property
    def latents(self) -> tuple[pd.DataFrame, np.ndarray]:
        """Where each sample is from, its question and step, and (N, D) values."""
        frame = self.frame("latents")
        return frame.loc[:, ["test", "id", "step"]], np.stack(frame["values"].tolist())


def steered(spec: RunSpec) -> str | None:
    """The name of a run's latents that can be set by hand."""
    method = get_method(spec.method)
    return method.steers(method.Options.model_validate(spec.options))


def analysed(study: Study) -> list[tuple[Block, RunSpec]]:
    """The runs that figures of latents are drawn from: each block's first row whose latents can be set by hand."""
    found = []
    for block in study.blocks:
        runs = [f"{block.id}/{row.id}/s{study.seeds[0]}" for row in study.rows if not row.control]
        steerable = [study.sources[run] for run in runs if run in study.sources and steered(study.sources[run])]
        found += [(block, spec) for spec in steerable[:1]]
    return found


def analyses(study: Study, results: Path) -> list[Analysis]:
    """Those of the runs that figures are drawn from that are there and up to date."""
    found = []
    for block, spec in analysed(study):
        with suppress(BrokenRecord):
            found.append(read_analysis(block, spec, results))
    return found


def record_path(results: Path, spec: RunSpec) -> Path:
    return Paths(results, spec).run / FOLDER / "analysis.json"


def read_analysis(block: Block, spec: RunSpec, results: Path) -> Analysis:
    """A run's analysis, or :class:`BrokenRecord`."""
    path = record_path(results, spec)
    try:
        record = AnalysisRecord.model_validate(read_json(path))
    except ValidationError as error:
        raise BrokenRecord(f"{path} is broken ({first_problem(error)}): run `analyse` again") from error
    if record.digest != spec.digest("analyse"):
        raise BrokenRecord(f"{path} was made from another specification: run `analyse {spec.study} {spec.id}` again")
    return Analysis(block, spec, path.parent, record)
