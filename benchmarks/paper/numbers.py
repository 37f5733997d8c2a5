"""The paper's own numbers, and those that the authors of its baselines report (``numbers.yaml``), validated."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from benchmarks.studies.specs import Strict
from methods.errors import InputError

PATH = Path(__file__).with_name("numbers.yaml")


class Printed(NamedTuple):
    """A printed number, with its spread if the paper gives one."""

    mean: float
    spread: float | None = None


class PaperScore(Strict):
    accuracy: Printed
    seconds: Printed | None = None


class PaperRow(Strict):
    """A row of a table. ``source``: what prints it."""

    title: str
    source: str = "the paper"
    note: str | None = None
    train_hours: Printed | None = None
    tests: dict[str, PaperScore]

    @property
    def in_paper(self) -> str | None:
        """The row's note, worded for a table that also has rows that are not the paper's."""
        return f"{self.title} in {self.source}: {self.note}" if self.note else None


class PaperBlock(Strict):
    title: str
    rows: dict[str, PaperRow]


class PaperTable(Strict):
    """A table of the paper, or one of numbers that stand in other places."""

    source: str = "the paper's LaTeX source"  # where it stands
    label: str | None = None  # its label there
    caption: str
    setting: str
    spreads: str = "It does not say what its ± covers."
    unit: Literal["percent", "share"]  # of its accuracies
    tests: dict[str, str]  # titles of its test sets, by name
    about_tests: str = ""  # what these titles leave out
    blocks: dict[str, PaperBlock]

    @property
    def place(self) -> str:
        """What the table shows and where it stands, for a reader."""
        return f"{self.caption.rstrip('.')} ({f'{self.label} in ' if self.label else ''}{self.source})"

    def rows(self, block: str) -> dict[str, PaperRow]:
        """Return a block's rows by id. Empty if the table does not have the block."""
        return self.blocks[block].rows if block in self.blocks else {}

    @property
    def decimals(self) -> int:
        """The number of decimals of the table's accuracies."""
        rows = [row for block in self.blocks.values() for row in block.rows.values()]
        means = [score.accuracy.mean for row in rows for score in row.tests.values()]
        return max(len(str(mean).partition(".")[2]) for mean in means)


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Load all tables of the paper, by name. Those that name no test sets are on the three benchmarks."""
    content = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    shared = {key: content[key] for key in ("tests", "about_tests")}
    tables = content["tables"].items()
    return {name: PaperTable.model_validate(table if "tests" in table else shared | table) for name, table in tables}


def paper_table(name: str) -> PaperTable:
    """Return a table of the paper. Raise :class:`InputError`, which lists the known ones, if the name is unknown."""
    tables = paper_tables()
    if name not in tables:
        raise InputError(f"{PATH.name} has no table {name!r}: a study's `paper` is one of {', '.join(tables)}")
    return tables[name]
