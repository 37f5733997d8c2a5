"""The table of the long-range copy: accuracy by the number of steps, and which step was copied."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from benchmarks.markup import Cell, Column, Grid, Line
from benchmarks.scoring.copying import bins, repeats
from benchmarks.specs import Block, Row
from benchmarks.summary import answers
from benchmarks.tables.cells import percent
from benchmarks.tables.synthetic import SyntheticTable


class LongRangeTable(SyntheticTable):
    """Every block is a K."""

    extra = ("Sampled repeats (%)", "Greedy repeats (%)")

    def grids(self) -> list[Grid]:
        return [self._scores(), self._copied(), self._detail()]

    def extra_cells(self, block: Block, row: Row) -> Iterator[Cell]:
        for drawn in (True, False):
            line, own = self.found(block, row, drawn), None
            if line and self.results:
                own = answers(self.study, self.runs, self.results, f"{block.id}/{row.id}", line["decoding"], ("text",))
            yield Cell() if own is None else Cell(percent(fmean(map(repeats, own["text"]))))

    def _copied(self) -> Grid:
        """Shares of the steps that right answers copied."""
        columns = tuple(Column(f"{self.study.row_title(row)} (%)") for row in self.study.rows)
        sections = tuple((block.title, tuple(self._bins(block))) for block in self.study.blocks)
        return Grid(
            "Which step was copied, of the answers that copied one", (*columns, Column("Uniform (%)")), sections
        )

    def _bins(self, block: Block) -> Iterator[Line]:
        counts = [self._counts(block, row) for row in self.study.rows]
        yield Line(Cell("answers (number)"), (*(Cell(f"{sum(own):,}") for own in counts), Cell()))
        choices = max((len(own) for own in counts), default=0)
        for part in bins(choices):
            copied = slice(part[0] - 1, part[-1])
            cells = [Cell(percent(sum(own[copied]) / sum(own))) if sum(own) else Cell() for own in counts]
            name = f"step {part[0]}" if len(part) == 1 else f"steps {part[0]} to {part[-1]}"
            yield Line(Cell(name), (*cells, Cell(percent(len(part) / choices))))

    def _counts(self, block: Block, row: Row) -> list[int]:
        """How often each step was copied, over all questions, decoding seeds and training seeds."""
        draws = self.draws(block, row, drawn=True)
        if not draws:
            return []
        steps = range(1, draws[0][0].choices + 1)
        return [sum(seed.counts.get(str(step), 0) for seed in draws[0]) for step in steps]

    scoring = """Each of K - 1 steps says five random digits, and the last repeats those of one of them. Right: the five
        are those of an earlier step that was said. Every step is said and scored, of all methods. Strict: in the form
        asked for too. Repeats: of the steps before the last, those that an earlier one equals, as random ones hardly
        ever do. Where they are many, the last step repeats one without having to remember it."""
