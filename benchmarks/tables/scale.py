"""The table of baselines on a larger backbone: the main table, and what each row is built of."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.markup import Cell, Column, Grid, Line
from benchmarks.tables.cells import cell, count
from benchmarks.tables.main import MainTable


class ScaleTable(MainTable):
    """The paper sets MarCos, whose modules have a backbone each, beside baselines on one of six times their size."""

    reference = "main_3b"

    def grids(self) -> list[Grid]:
        first, *others = super().grids()
        return [first, self._sizes(), *others]

    def _sizes(self) -> Grid:
        sections = []
        for block in self.study.blocks:
            lines = []
            for row in (row for _, rows in self.rows(block) for row in rows):
                run = self.study.runs.get(f"{block.id}/{row.id}/s{self.study.seeds[0]}")
                line = self.summary.line(block.id, row.id, "default", self.test_names[0])
                if run is None or line is None:
                    continue
                sizes = ", ".join(f"{key} {value}" for key, value in run.backbone.overrides.items())
                built = f"{run.backbone.pretrained or run.backbone.name}{f' ({sizes})' if sizes else ''}"
                lines.append(Line(Cell(line["title"]), (Cell(built), cell(line["parameters"], count)), row.indent))
            sections.append((block.title, tuple(lines)))
        return Grid(
            "Backbone of each row, and parameters in all", (Column("Backbone"), Column("Params")), tuple(sections)
        )

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield """MarCos has a transformer of the smaller backbone for each of its modules; the paper compares it with
        baselines of about the size of all of them."""
