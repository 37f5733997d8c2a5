"""The table of claims: the paper's statements about its numbers (``claims.yaml``), what its own tables give when they
are computed again, and what ours do.

Ours are of the paper's own setting alone, since smaller models tell nothing about its numbers: of shipped studies that
name one of its tables (``paper``), once they have trained, or times of their untrained models that ``measure`` has
recorded.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from benchmarks.files import BrokenRecord, read_json
from benchmarks.paper.numbers import paper_table, paper_tables
from benchmarks.records.provenance import in_short
from benchmarks.records.results import StudyRecords, load_collected
from benchmarks.records.statistics import TIMES_DIFFER
from benchmarks.records.summary import gpu_seconds_of_an_epoch, summarise
from benchmarks.studies.paths import COLLECTED
from benchmarks.studies.specs import Strict
from benchmarks.studies.study import load_study, shipped
from benchmarks.tables.base import TableBuilder
from benchmarks.tables.markup import DASH, Cell, Column, Document, Grid, Line

TITLE = "What the paper says of its numbers"
LEGEND = f"""Paper's numbers: computed again from the cells of its tables (benchmarks/paper/numbers.yaml), in their
    order: differences in percentage points, or how many times as long the other takes. Verdict: whether they support
    the sentence in this reading. They are taken as they are: the paper gives no test, and does not say what its spreads
    cover. Ours: the same from our records, where studies of the paper's own setting have trained or, for times, where
    untrained models of its size were timed (measure). Training is compared in GPU time; times measured again may differ
    by a factor of {TIMES_DIFFER:g}. The tables of those studies test whether rows differ by more than chance."""
PATH = Path(__file__).with_name("claims.yaml")
Measure = Literal["accuracy", "test", "train"]
Numbers = dict[str, dict[Measure, float | None]]  # accuracies in percent, times in seconds, by cell: see `_cell`
_ROUNDING = 0.005 + 1e-9  # error of a printed number: the paper prints at most two decimals
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "=": lambda value, bound: abs(value - bound) < _ROUNDING,
    "within": lambda value, bound: abs(value) <= bound,
}
_CELLS = re.compile(r"^(\S+) (\S+): (\S+)(?: on (.+?))?(?: against (.+?)(?: of (\S+))?(?: on (\S+))?)?$")


class Claim(Strict):
    """One sentence of the paper in one reading. The fields are explained in ``claims.yaml``."""

    id: str
    place: str
    says: str
    reading: str | None = None
    cells: tuple[str, ...] = ()
    measure: Measure = "accuracy"
    versus: Literal["each", "best"] = "each"
    bound: str | None = None
    judge: Literal["each", "most", "some"] = "each"
    without: str | None = None

    def met(self, value: float) -> bool:
        """Return whether a number meets the bound."""
        assert self.bound is not None
        name, bound = self.bound.split()
        return _BOUNDS[name](round(value, 9), float(bound))  # a difference of two numbers has a rounding error

    def holds(self, values: list[float]) -> bool:
        """Return whether comparisons, of which there is at least one, support the claim."""
        met = [*map(self.met, values)]
        return {"each": all(met), "most": 2 * sum(met) > len(met), "some": any(met)}[self.judge]


@cache
def load_claims() -> tuple[Claim, ...]:
    return tuple(map(Claim.model_validate, yaml.safe_load(PATH.read_text(encoding="utf-8"))["claims"]))


@cache
def _tables() -> set[str]:
    """Return the names of the paper's own tables. Studies may name one of numbers that stand in other places."""
    return {cells.partition(" ")[0] for claim in load_claims() for cells in claim.cells}


@cache
def papers_numbers() -> Numbers:
    numbers: Numbers = {}
    for name, table in paper_tables().items():
        percent = 100 if table.unit == "share" else 1
        for id, block in table.blocks.items():
            for row, line in block.rows.items():
                for test, score in line.tests.items():
                    numbers[_cell(name, id, row, test)] = {
                        "accuracy": percent * score.accuracy.mean,
                        "test": score.seconds and score.seconds.mean,
                        "train": line.train_hours and 3600 * line.train_hours.mean,
                    }
    return numbers


def compared(claim: Claim, numbers: Numbers) -> Iterator[float | None]:
    """Yield the claim's comparisons, in the order of its cells and tests. None: a number is missing."""
    for cells in claim.cells:
        ((table, block, row, on, against, other_table, other_test),) = _CELLS.findall(cells)
        tests = on.split(", ") if on else [*paper_table(table).tests]
        if claim.measure == "train":  # which has no test set
            tests = tests[:1]
        for test in tests:
            number = numbers.get(_cell(table, block, row, test), {}).get(claim.measure)
            others: list[float | None] = [0.0]
            if against:
                places = (_cell(other_table or table, block, one, other_test or test) for one in against.split(", "))
                others = [numbers.get(place, {}).get(claim.measure) for place in places]
            if claim.versus == "best":
                others = [max((other for other in others if other is not None), default=None)]
            for other in others:
                if number is None or other is None:
                    yield None
                elif claim.measure == "accuracy":
                    yield number - other
                else:
                    yield other / number


class ClaimsTable(TableBuilder):
    """One line per claim and reading, whatever study the table is made for."""

    @property
    def title(self) -> str:
        return TITLE

    @cached_property
    def collected(self) -> list[StudyRecords]:
        """The collected records of the studies of the paper's settings in the same folder of results."""
        results, found = self.records.results, []
        for name in shipped():
            if name == self.study.name:
                found += [self.records] if self.study.paper in _tables() else []
            elif (results / name / COLLECTED).is_file() and (study := load_study(name)).paper in _tables():
                try:
                    found.append(load_collected(study, results))
                except BrokenRecord as error:
                    self.note(f"{name} is left out: {error}")
        return found

    @cached_property
    def lines(self) -> list[dict[str, str]]:
        return claim_lines([_trained(self.collected), *_timed(self.records.results)])

    def document(self, footer: dict[str, str]) -> Document:
        # The setting of another study is none of these numbers'
        footers = footer if self.study.paper in _tables() else {}
        made = super().document(footers | {f"Ours, {one.study.name}": in_short(one) for one in self.collected})
        return replace(made, notes=())  # they are in the legend, as no cell refers to them

    def grids(self) -> list[Grid]:
        return [claims_grid(self.lines)]

    def legend(self) -> Iterator[str]:
        yield LEGEND
        yield from self.notes

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.lines)

    @property
    def paired_tests(self) -> pd.DataFrame:
        return pd.DataFrame()


def claim_lines(sources: Sequence[Numbers]) -> list[dict[str, str]]:
    """Return one line per claim. Ours are of the first of ``sources`` that has any: two are not compared with each
    other. Without sources, they are the paper's alone."""
    lines = []
    for claim in load_claims():
        papers = list(compared(claim, papers_numbers()))
        ours = [list(compared(claim, source)) for source in sources]
        beside = next((values for values in ours if any(value is not None for value in values)), [])
        lines.append(
            {
                "Claim": claim.says + (f" ({claim.reading})" if claim.reading else ""),
                "Where": claim.place,
                "Cells": "; ".join(claim.cells) or DASH,
                "Paper's numbers": _shown(claim, papers),
                "Verdict": _verdict(claim, [value for value in papers if value is not None]),
                "Ours": "not run at this size" if sources and claim.cells and not beside else _shown(claim, beside),
            }
        )
    return lines


def papers_own() -> Document:
    """Return the table without numbers of ours."""
    return Document(TITLE, (claims_grid(claim_lines([])),), [" ".join(LEGEND.split())])


def claims_grid(lines: list[dict[str, str]]) -> Grid:
    head, *columns = lines[0]
    rows = [Line(Cell(line[head]), [Cell(line[name]) for name in columns]) for line in lines]
    titles = [Column(name, text=True) for name in columns]
    return Grid(TITLE, titles, [("Claims, in the order of the paper", rows)], head=head)


def _shown(claim: Claim, values: list[float | None]) -> str:
    if not any(value is not None for value in values):
        return DASH
    compares = "against" in claim.cells[0]
    form, unit = (".2f", " times") if claim.measure != "accuracy" else ("+.2f", "") if compares else (".2f", " %")
    return ", ".join(DASH if value is None else format(value, form) for value in values) + unit


def _verdict(claim: Claim, papers: list[float]) -> str:
    """Return whether the paper's numbers support a claim, and in how many comparisons."""
    if not papers:
        return claim.without or "its table has no such row"
    count = f" ({sum(map(claim.met, papers))} of {len(papers)})" if len(papers) > 1 else ""
    return ("held" if claim.holds(papers) else "not held") + count


def _cell(table: str, block: str, row: str, test: str) -> str:
    return f"{table} {block}: {row} on {test}"


@cache
def _cells_of() -> dict[tuple[str, str, str, str], list[str]]:
    """Return the cells of the paper's tables whose place a number of ours has, by its study, block, row and test.

    The paper's tasks are test sets of one block there; our studies have a block for each, and names that contain the
    paper's. A row that a study shares may have been timed in the study that trains it.
    """
    cells = defaultdict(list)
    for study in map(load_study, shipped()):
        for run in study.runs.values():
            homes = {(home.study, home.block, home.row) for home in (run, study.sources[run.id])}
            for test in run.evaluation.tests:
                places = product((run.block, "all"), (test, *test.split("_")))
                of_test = [_cell(str(study.paper), block, run.row, name) for block, name in places]
                for home in homes:
                    cells[*home, test] += of_test
    return cells


def _placed(study: str, block: str, row: str, test: str, ours: dict[Measure, Any]) -> Numbers:
    """Return what is known of our numbers, for each cell of the paper's tables that they stand for."""
    known: dict[Measure, float | None] = {measure: value for measure, value in ours.items() if pd.notna(value)}
    return dict.fromkeys(_cells_of().get((study, block, row, test), ()), known) if known else {}


def _trained(studies: list[StudyRecords]) -> Numbers:
    """Return the accuracies and times of studies that have trained."""
    numbers: Numbers = {}
    for records in studies:
        for line in summarise(records, "default").lines.to_dict("records"):
            ours: dict[Measure, Any] = {
                "accuracy": 100 * line["accuracy"],
                "test": line["test_seconds_median"],
                "train": gpu_seconds_of_an_epoch(records, line["block"], line["row"]),
            }
            numbers |= _placed(records.study.name, line["block"], line["row"], line["test"], ours)
    return numbers


def _timed(results: Path) -> Iterator[Numbers]:
    """Yield the times in each folder of ``measure``: two folders may be of different machines."""
    paths = [*results.glob("*/table_paper_*.json"), *results.glob("measured/*/table_paper_*.json")]
    for _, tables in groupby(sorted(paths), key=lambda path: path.parent):
        numbers: Numbers = {}
        for table in map(read_json, tables):
            for line, test in product(table["lines"], load_study(table["study"]).evaluation.tests):
                ours: dict[Measure, Any] = {"test": line.get(f"{test}_seconds"), "train": line.get("epoch_seconds")}
                numbers |= _placed(table["study"], line["block"], line["row"], test, ours)
        yield numbers
