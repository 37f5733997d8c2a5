"""The table of baselines on a larger backbone: the main table, and the backbone of each row."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.records.provenance import backbone
from benchmarks.studies.specs import Table
from benchmarks.tables import COUNTERPARTS
from benchmarks.tables.cells import cell, count
from benchmarks.tables.main import MainTable
from benchmarks.tables.markup import Cell, Column, Grid, Line


class ScaleTable(MainTable):
    """The main table with the backbone and number of parameters of each row.

    The paper compares MarCos, each of whose modules has its own backbone, with baselines on one backbone of six times
    that size.
    """

    reference = COUNTERPARTS[Table.scale]

    def grids(self) -> list[Grid]:
        first, *others = super().grids()
        return [first, self._sizes(), *others]

    def _sizes(self) -> Grid:
        sections = []
        for block in self.study.blocks:
            lines = []
            for row in self.all_rows(block):
                if runs := self.study.trainings(block.id, row.id):
                    line = self.line(block, row)
                    sizes = (Cell(backbone(runs[0].backbone)), cell(line["parameters"], count))
                    lines.append(Line(self.row_title(line), sizes, row.indent))
            sections.append((block.title, tuple(lines)))
        return Grid("Backbone of each row, and all parameters", (Column("Backbone"), Column("Params")), tuple(sections))

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield """MarCos has a transformer of the smaller backbone for each of its modules; the paper compares it with
        baselines of about the size of all of these together."""
