"""The table of speaking without autoregression: a fixed number of tokens at once, perhaps refined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.markup import Column, Grid, Line
from benchmarks.specs import Block, Row
from benchmarks.tables.accuracy import AccuracyTable
from benchmarks.tables.cells import cell


class NarTable(AccuracyTable):
    """The paper's table has the rows that speak at once; those beside them are looked for in its main table."""

    references = ("one_shot", "main_0.5b")

    def grids(self) -> list[Grid]:
        columns = (Column("Passes/question"), Column("Tokens/question"))
        return [*super().grids(), Grid("What an answer takes", columns, self.by_test(self._cost_lines))]

    def _cost_lines(self, block: Block, row: Row, test: str) -> Iterator[Line]:
        line = self.summary.line(block.id, row.id, "default", test)
        if line is not None:
            costs = (cell(line["forward_passes"], "{:.2f}".format), cell(line["tokens_per_question"], "{:.1f}".format))
            yield Line(self.row_title(line), costs, row.indent)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield """Passes: calls of a transformer in which a question took part, those that think included. A row that
        speaks at once was trained for it."""
