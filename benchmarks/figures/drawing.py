"""The base class of all figures: sources of their numbers, captions, and names and colours of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.style import GREY, PAGE, colour, marker, shade
from benchmarks.records.study_records import StudyRecords
from benchmarks.records.summary import Summary, summarise
from benchmarks.studies.specs import Block, Row
from benchmarks.studies.study import Study
from methods.base import Method
from methods.errors import InputError
from methods.registry import available


class NothingToDraw(InputError):
    """A study lacks the numbers of a figure. The message says what is missing."""


@dataclass
class Drawing(ABC):
    """One figure of one study: a frame with its numbers, the drawing of the frame, and the caption."""

    records: StudyRecords

    @property
    def study(self) -> Study:
        return self.records.study

    @classmethod
    def needs(cls, study: Study, results: Path) -> list[Path]:
        """Return the files that the figure needs besides what ``collect`` wrote and the predictions."""
        return []

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def data(self) -> pd.DataFrame:
        """Return the numbers that are drawn, also written as CSV. Raise :class:`NothingToDraw` if there are none."""

    @abstractmethod
    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        """Draw on an empty canvas, and set its size."""

    @abstractmethod
    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        """Yield paragraphs: what is shown, over how many questions, what the error bars are, and what is missing."""

    def by_row(self, lines: Callable[[Block, Row], Iterable[dict[str, Any]]], nothing: str) -> pd.DataFrame:
        """Return the ``lines`` of all rows of all blocks. If there are none, raise :class:`NothingToDraw` with the
        message ``nothing``."""
        found = [line for block in self.study.blocks for row in self.study.rows_of(block) for line in lines(block, row)]
        if not found:
            raise NothingToDraw(nothing)
        return pd.DataFrame(found)

    @cached_property
    def summary(self) -> Summary:
        return summarise(self.records, ["default"])

    @property
    def and_trainings(self) -> str:
        """What means and intervals of the default decoding are over besides seeds or questions, for a caption."""
        return " and trainings" if len(self.study.seeds) > 1 else ""

    def test_title(self, test: str) -> str:
        return self.records.test_title(test)

    def row_name(self, row: Row) -> str:
        """Return a row's title for use outside a table, where an ablation also needs the title of its parent row."""
        title = self.study.row_title(row)
        if not row.indent:
            return title
        above = self.study.rows[: self.study.rows.index(row)]
        parents = [self.study.row_title(other) for other in above if not other.indent]
        return f"{parents[-1]} {title.lstrip('- ')}" if parents else title

    def look(self, row: Row) -> dict[str, Any]:
        """Return the colour and marker of a row.

        A method has the same colour in every study, so that the figures of a report can be read side by side. Further
        rows of the method have shades of this colour and markers of their own. Controls are grey.
        """
        if row.control:
            return {"color": GREY, "marker": "x"}
        ranked = [other for other in self.study.rows if not other.control]
        kin = [other.id for other in ranked if other.method == row.method]
        order = colour_order()
        if row.id == kin[0]:
            return {"color": colour(order[row.method]), "marker": marker(order[row.method])}
        first = {other.method: other.id for other in reversed(ranked)}
        variants = [other.id for other in ranked if other.id != first[other.method]]
        chosen = shade(colour(order[row.method]), kin.index(row.id))
        return {"color": chosen, "marker": marker(len(order) + variants.index(row.id))}


def colour_order() -> dict[str, int]:
    """Return the position of each registered method in the order of colours.

    Methods of other packages come last, so that installing them does not change the colours of this package's methods.
    """
    known = available()
    return {name: at for at, name in enumerate(sorted(known, key=lambda name: (_foreign(known[name]), name)))}


def _foreign(method: type[Method]) -> bool:
    return method.__module__.partition(".")[0] != Method.__module__.partition(".")[0]


def grid(canvas: Canvas, rows: int, columns: int, size: tuple[float, float], **settings: object) -> list[list[Axes]]:
    """Return panels of ``size`` inches each, row by row. They are narrower if they would not fit the page's width."""
    canvas.set_size_inches(min(columns * size[0], PAGE), rows * size[1])
    return canvas.subplots(rows, columns, squeeze=False, **settings).tolist()  # type: ignore[arg-type]


def legend_below(canvas: Canvas, panels: Sequence[Axes]) -> None:
    """Add one legend for all panels, with every label once, in as many columns as fit."""
    entries = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    longest = max(map(len, entries))
    columns = max(1, int(canvas.get_figwidth() / (0.075 * longest + 0.45)))
    canvas.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
