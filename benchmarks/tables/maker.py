"""What the tables share: their rows, sections and notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from benchmarks.markup import Cell, Document, Grid, Line
from benchmarks.paper import PaperTable, paper_table
from benchmarks.records import RunRecords
from benchmarks.specs import Block, DecodingSpec, Row
from benchmarks.study import Study
from benchmarks.summary import Summary
from benchmarks.tables.cells import percent

TIE = "="


@dataclass
class Maker(ABC):
    """Turns a summary into a document; ``notes`` gathers why something has no number. ``beside``: the studies that this
    one names so, for a table that ``reads_beside``. ``runs``: the records themselves, by run. ``results``: where the
    studies lie."""

    reads_beside: ClassVar[bool] = False

    study: Study
    summary: Summary
    titles: Mapping[str, str]
    beside: tuple[tuple[Study, Summary], ...] = ()
    runs: Mapping[str, RunRecords] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    results: Path | None = None

    @classmethod
    @abstractmethod
    def shows(cls, name: str, spec: DecodingSpec) -> bool:
        """Whether a decoding belongs into this table; `default` does into every one."""

    @property
    def title(self) -> str:
        return self.study.title

    @cached_property
    def paper(self) -> PaperTable | None:
        """The table of the paper that has the study's setting, if any."""
        return paper_table(self.study.paper) if self.study.paper else None

    @abstractmethod
    def grids(self) -> list[Grid]: ...

    @abstractmethod
    def legend(self) -> Iterable[str]:
        """What every column, spread and mark means, in this study."""

    @property
    def frame(self) -> pd.DataFrame:
        """The numbers, for CSV and JSON."""
        return self.summary.lines

    @property
    def tests(self) -> pd.DataFrame:
        """The paired tests that the table rests on."""
        return self.summary.pairs

    def document(self, footer: dict[str, str]) -> Document:
        grids, legend = tuple(self.grids()), (" ".join(text.split()) for text in self.legend())
        return Document(self.title, grids, tuple(legend), tuple(self.notes), footer)

    @property
    def test_names(self) -> tuple[str, ...]:
        return self.study.evaluation.tests

    def test_title(self, test: str) -> str:
        return self.titles.get(test, test)

    def decodings(self) -> dict[str, DecodingSpec]:
        """Those that the table shows, besides `default`."""
        shown = self.study.evaluation.decodings.items()
        return {name: spec for name, spec in shown if name != "default" and self.shows(name, spec)}

    def note(self, reason: Any) -> str:
        """The number of a note; the same reason has the same number."""
        if pd.isna(reason) or not reason:
            return ""
        if reason not in self.notes:
            self.notes.append(reason)
        return str(self.notes.index(reason) + 1)

    def row_title(self, line: Mapping[str, Any]) -> Cell:
        """A row's title, with the note of what was wrong with its training to the end."""
        return Cell(line["title"], mark=self.note(line["warning"]))

    def absent(self, line: Mapping[str, Any]) -> Cell:
        """Stands where a run has no result."""
        return Cell("skipped" if line["status"] == "skipped" else "not run", mark=self.note(line["reason"]))

    def lacking(self, line: Mapping[str, Any]) -> str:
        """The note of a mean that some training seeds are missing from."""
        return self.note(line["reason"]) if line["training_seeds"] < len(self.study.seeds) else ""

    def accuracy(self, line: Mapping[str, Any]) -> Cell:
        """A row's accuracy with its spread, bold or with the mark of a tie."""
        if pd.isna(line["accuracy"]):
            return self.absent(line)
        tail = {"nothing drawn": " (det.)", "one seed": " (1 seed)"}.get(line["spread_over"], "")
        if pd.notna(line["spread"]):
            tail = f" ± {percent(line['spread'])}"
        marks = [TIE if line["mark"] == "tie" else "", self.lacking(line)]
        return Cell(percent(line["accuracy"]), tail, line["mark"] == "best", " ".join(mark for mark in marks if mark))

    def rows(self, block: Block) -> Iterable[tuple[str, list[Row]]]:
        """Rows of a block under headings: those compared, then controls."""
        own = [row for row in self.study.rows if row.blocks is None or block.id in row.blocks]
        for heading, control in ((block.title, False), (f"{block.title} (controls, never ranked)", True)):
            if rows := [row for row in own if row.control == control]:
                yield heading, rows

    def by_test(self, lines: Callable[[Block, Row, str], Iterable[Line]]) -> tuple[tuple[str, tuple[Line, ...]], ...]:
        """Sections of a grid, one for each block and test set."""
        sections = []
        for block in self.study.blocks:
            rows = [row for _, rows in self.rows(block) for row in rows]
            for test in self.study.tests_of(block):
                heading = f"{block.title} · {self.test_title(test)}"
                sections.append((heading, tuple(line for row in rows for line in lines(block, row, test))))
        return tuple(sections)


def spoken(name: str) -> str:
    """A decoding's name as a heading says it."""
    return name.replace("_", " ")
