"""The comparisons that a study plans, and all other pairs of rows, which were looked up afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import pandas as pd

from benchmarks.records.statistics import ALPHA
from benchmarks.records.summary import groups, index_by
from benchmarks.studies.specs import Block
from benchmarks.tables.base import TableBuilder, cell, interval_cell, p_value, points
from benchmarks.tables.markup import Cell, Column, Grid, Line

COLUMNS = tuple(map(Column, ("n", "Δ", "95 % interval", "p", "p (Holm)", "Separated")))
AFTERWARDS = "Looked up afterwards: all other pairs of rows, which the study did not plan to compare"


class ComparisonsTable(TableBuilder):
    """A line for each pair of rows, in sections by block and test set, which are the families of tests."""

    topic = "planned comparisons"

    def grids(self) -> list[Grid]:
        planned = []
        for block in self.study.blocks:
            for test in self.study.tests_of(block) if self.study.planned(block) else ():
                lines = [self._planned(block, test, a, b) for a, b in self.study.planned(block)]
                planned.append((self._heading(block.id, test), lines))
        grids = [Grid(self.title, COLUMNS, planned, head="Rows")]
        looked_up = []
        for place, tests in groups(self.frame.loc[~self.frame["planned"]], ["block", "test"]):
            looked_up.append((self._heading(*place), [*map(self._line, tests.to_dict("records"))]))
        if looked_up:
            grids.append(Grid(AFTERWARDS, COLUMNS, looked_up, head="Rows"))
        return grids

    @property
    def frame(self) -> pd.DataFrame:
        return self.summary.comparisons

    @cached_property
    def _by_pair(self) -> dict[tuple[str, ...], dict[str, Any]]:
        return index_by(self.frame, "block", "test", "a", "b")

    def _heading(self, block: str, test: str) -> str:
        return f"{self.study.block(block).title} · {self.test_title(test)}"

    def _planned(self, block: Block, test: str, a: str, b: str) -> Line:
        """Return the line of a planned pair, with a note if a row of it has no answers."""
        if paired_test := self._by_pair.get((block.id, test, a, b)):
            return self._line(paired_test)
        missing = next(line for line in self._rows(block.id, test, a, b) if pd.isna(line["accuracy"]))
        return Line(self._pair(block.id, test, a, b), (self.missing_cell(missing), *[Cell()] * (len(COLUMNS) - 1)))

    def _line(self, test: dict[str, Any]) -> Line:
        untested = pd.isna(test["p_holm"])
        cells = (
            cell(test["n"], "{:,}".format),
            cell(test["difference"], points),
            interval_cell(test, points),
            cell(test["p_value"], p_value),
            cell(test["p_holm"], p_value),
            Cell() if untested else Cell("yes" if test["p_holm"] < ALPHA else "no"),
        )
        return Line(self._pair(test["block"], test["test"], test["a"], test["b"]), cells)

    def _pair(self, block: str, test: str, a: str, b: str) -> Cell:
        """Return the title of a pair, with notes on rows that lack trainings or answers."""
        lines = self._rows(block, test, a, b)
        first, second = (line["title"].removeprefix("- ") + self.dead_r_suffix(line) for line in lines)
        marks = dict.fromkeys(mark for line in lines if (mark := self.missing_seeds(line)))
        return Cell(f"{first} minus {second}", mark=" ".join(marks))

    def _rows(self, block: str, test: str, *rows: str) -> list[dict[str, Any]]:
        """Return the lines of these rows; every row of a block has one."""
        lines = (self.summary.line(block, row, "default", test) for row in rows)
        return [line for line in lines if line is not None]

    def legend(self) -> Iterable[str]:
        yield """Planned: pairs of rows that the study names in `comparisons`. Δ: accuracy of the default decoding on n
        questions, the first row minus the second, in percentage points, with its 95 % interval, which is of this pair
        alone. p: paired test over the same questions."""
        yield f"""p (Holm): corrected for the planned pairs of the block and test set, which are a section here. In the
        last table, it is corrected for all pairs of rows of the block and test set, controls and the planned pairs
        included: whoever looks for differences there has all of them to choose from. Separated: p (Holm) < {ALPHA}.
        Test sets and blocks are families of their own: nothing is corrected for their number."""
        yield from self.about_own_decodings()
        yield self.generalisation
        if len(self.study.seeds) > 1:
            yield """Intervals are of the t distribution, over questions and the training seeds of both rows; where
            nothing varies, or with one training of each, by the method of Agresti and Min (2005) for paired
            proportions."""
        else:
            yield "Intervals are over questions, by the method of Agresti and Min (2005) for paired proportions."
