"""Our numbers in the place of the paper's: of its own setting alone, since smaller models say nothing about them.

They come from shipped studies that name one of its tables (``paper``), once they have trained, or from times of their
untrained models that ``measure`` has recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.files import read_json
from benchmarks.paper.claims import Measure, Numbers, Place
from benchmarks.records.results import StudyRecords, load_collected
from benchmarks.records.summary import gpu_seconds_of_an_epoch, summarise
from benchmarks.studies.paths import COLLECTED
from benchmarks.studies.study import Study, load_study, shipped
from benchmarks.tables.measured import measured_lines

Lines = Mapping[tuple[str, str, str], Mapping[str, Any]]  # numbers by study, block and row
_ENDINGS = {"accuracy": "accuracy", "test": "seconds"}


def papers_studies() -> list[Study]:
    """Return the shipped studies that have the setting of one of the paper's tables."""
    return [study for name in shipped() if (study := load_study(name)).paper]


def collected(records: StudyRecords) -> list[StudyRecords]:
    """Return the collected records of the paper's studies in a folder of results; ``records`` are not read again."""
    there = [study for study in papers_studies() if (records.results / study.name / COLLECTED).is_file()]
    same = {records.study.name: records}
    return [same.get(study.name) or load_collected(study, records.results) for study in there]


def trained(studies: list[StudyRecords]) -> Numbers:
    """Return a function to the accuracies and times of studies that have trained."""
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for records in studies:
        for line in summarise(records, ["default"]).lines.to_dict("records"):
            own = lines.setdefault((records.study.name, line["block"], line["row"]), {})
            own[f"{line['test']}_accuracy"] = 100 * line["accuracy"]
            own[f"{line['test']}_seconds"] = line["test_seconds_median"]
            own["epoch_seconds"] = gpu_seconds_of_an_epoch(records, line["block"], line["row"])
    return _by_place(lines)


def timed(results: Path) -> Iterator[Numbers]:
    """Yield a function to the times in each folder of ``measure``: two folders may be of different machines."""
    for folder in sorted({path.parent for path in measurements(results)}):
        lines: dict[tuple[str, str, str], dict[str, Any]] = {}
        for name in sorted({path.name for path in folder.iterdir()} & {*shipped()}):
            records = [read_json(path) for path in sorted(folder.glob(f"{name}/*/*.json"))]
            by_row = {(record["block"], record["row"]): record for record in records}
            for line in measured_lines(load_study(name), by_row):
                lines[name, line["block"], line["row"]] = line
        yield _by_place(lines)


def measurements(results: Path) -> list[Path]:
    """Return the folders of records of the paper's studies that ``measure`` has written to a folder of results."""
    return [*results.glob("*/runs/paper_*"), *results.glob("measured/*/runs/paper_*")]


def _by_place(lines: Lines) -> Numbers:
    """Return a function from a cell of the paper's tables to our number in its place.

    The paper's tasks are test sets of one block there; our studies have a block for each, and names that contain the
    paper's. A row that a study shares may have been measured in the study that trains it.
    """
    studies = papers_studies()

    def number(place: Place, measure: Measure) -> float | None:
        for study in studies:
            for run in study.runs.values():
                if (study.paper, run.row) != (place.table, place.row) or place.block not in (run.block, "all"):
                    continue
                for test in run.evaluation.tests:
                    if place.test not in (test, *test.split("_")):
                        continue
                    name = "epoch_seconds" if measure == "train" else f"{test}_{_ENDINGS[measure]}"
                    for home in (run, study.sources[run.id]):
                        value: Any = lines.get((home.study, home.block, home.row), {}).get(name)
                        if not pd.isna(value):
                            return float(value)
        return None

    return number
