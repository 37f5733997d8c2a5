"""What the figures share: where their numbers come from, what is written, and how rows are named."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.style import GREY, PAGE, colour, marker, shade
from benchmarks.records.provenance import titles
from benchmarks.records.results import Collected, load_collected
from benchmarks.records.summary import Summary, summarise
from benchmarks.studies.specs import Row
from benchmarks.studies.study import Study
from methods.base import Method
from methods.errors import InputError
from methods.registry import available


class NothingToDraw(InputError):
    """A figure whose numbers a study does not have; the message says what would give them."""


@dataclass
class Drawing(ABC):
    """One figure of one study: a frame with a line for each mark, how it is drawn, and what its reader has to know."""

    study: Study
    results: Path

    @classmethod
    def needs(cls, study: Study, results: Path) -> list[Path]:
        """Files that the figure is drawn from, beside what ``collect`` wrote and the predictions."""
        return []

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def data(self) -> pd.DataFrame:
        """What is drawn, for CSV; :class:`NothingToDraw` where there is nothing."""

    @abstractmethod
    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        """Draw on an empty canvas, and set its size."""

    @abstractmethod
    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        """Paragraphs: what is shown, over how many questions, what the error bars are, what is missing."""

    @cached_property
    def collected(self) -> Collected:
        return load_collected(self.study, self.results)

    @cached_property
    def summary(self) -> Summary:
        return summarise(self.study, self.collected, self.results, ["default"])

    def test_title(self, test: str) -> str:
        return titles(self.collected).get(test, test)

    def row_name(self, row: Row) -> str:
        """A row's title outside a table, where an ablation needs the name of the row above it too."""
        title = self.study.row_title(row)
        if not row.indent:
            return title
        above = self.study.rows[: self.study.rows.index(row)]
        parents = [self.study.row_title(other) for other in above if not other.indent]
        return f"{parents[-1]} {title.lstrip('- ')}" if parents else title

    def look(self, row: Row) -> dict[str, Any]:
        """Colour and marker of a row. A method has the same colour in every study, or figures of one report could not
        be read side by side; further rows of a method have shades of it and markers of their own. Controls are grey."""
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
    """A place for each registered method. Those of other packages come last: what is installed beside this package must
    not change the colours of its own methods."""
    known = available()
    return {name: at for at, name in enumerate(sorted(known, key=lambda name: (_foreign(known[name]), name)))}


def _foreign(method: type[Method]) -> bool:
    return method.__module__.partition(".")[0] != Method.__module__.partition(".")[0]


def grid(canvas: Canvas, rows: int, columns: int, size: tuple[float, float], **settings: object) -> list[list[Axes]]:
    """Panels of ``size`` inches each, row by row; narrower where they would not fit the width of a page."""
    canvas.set_size_inches(min(columns * size[0], PAGE), rows * size[1])
    return canvas.subplots(rows, columns, squeeze=False, **settings).tolist()  # type: ignore[arg-type]


def legend_below(canvas: Canvas, panels: Sequence[Axes]) -> None:
    """One legend for all panels, every label once, in as many columns as fit."""
    entries = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    longest = max(map(len, entries))
    columns = max(1, int(canvas.get_figwidth() / (0.075 * longest + 0.45)))
    canvas.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
