"""The table of speaking without autoregression: a fixed number of tokens at once, and perhaps their refinement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.markup import Column, Grid, Line
from benchmarks.specs import Block, Row
from benchmarks.tables import COUNTERPARTS, Table
from benchmarks.tables.accuracy import AccuracyTable
from benchmarks.tables.cells import cell
from benchmarks.tables.maker import PASSES


class NarTable(AccuracyTable):
    """The paper's table has the rows that speak at once; the numbers of all other rows are those of its main table."""

    references = (COUNTERPARTS[Table.nar], COUNTERPARTS[Table.main])

    def grids(self) -> list[Grid]:
        columns = (Column("Passes/question"), Column("Tokens/question"))
        *others, last = super().grids()
        return [*others, Grid("What an answer takes", columns, self.by_test(self._cost_lines)), last]

    def _cost_lines(self, block: Block, row: Row, test: str) -> Iterator[Line]:
        line = self.line(block, row, test)
        costs = (cell(line["forward_passes"], "{:.2f}".format), cell(line["tokens_per_question"], "{:.1f}".format))
        yield Line(self.row_title(line), costs, row.indent)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield f"{PASSES} Rows that speak at once were trained to do so."
