"""The base class of all figures: sources of their numbers, captions, and names and colours of rows."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from benchmarks.records import statistics
from benchmarks.records.results import StudyRecords
from benchmarks.records.summary import Summary, summarise
from benchmarks.studies.specs import Block, Row
from benchmarks.studies.study import Study
from methods.base import Method
from methods.errors import InputError
from methods.registry import available

# Okabe and Ito's palette, with olive in place of their yellow, which is faint on paper, and Tol's wine
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999933", "#882255")
MARKERS = "osD^vP*XhdpH8<>"
GREY = "#888888"
PAGE = 7.0  # inches
SEQUENTIAL, DIVERGING = "cividis", "RdBu_r"

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType, so that text stays text
}


class NothingToDraw(InputError):
    """A study lacks the numbers of a figure. The message says what is missing."""


@dataclass
class FigureBuilder(ABC):
    """One figure of one study: a frame with its numbers, the drawing of the frame, and the caption. ``topic``: what its
    title says behind that of the study."""

    records: StudyRecords
    topic: ClassVar[str]

    @property
    def study(self) -> Study:
        return self.records.study

    @classmethod
    def needs(cls, study: Study, results: Path) -> list[Path]:
        """Return the files that the figure needs besides what ``collect`` wrote and the predictions."""
        return []

    @property
    def title(self) -> str:
        return f"{self.study.title}: {self.topic}"

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
        every: list[dict[str, Any]] = []
        for block in self.study.blocks:
            for row in self.study.rows_of(block):
                every += lines(block, row)
        if not every:
            raise NothingToDraw(nothing)
        return pd.DataFrame(every)

    def undrawn(self, data: pd.DataFrame) -> list[str]:
        """Return the names of the rows, each with its block, that have no line in the figure's ``data``."""
        drawn = set(zip(data["block"], data["row"], strict=True))
        return [
            f"{self.row_name(row)} ({block.id})"
            for block in self.study.blocks
            for row in self.study.rows_of(block)
            if (block.id, row.id) not in drawn
        ]

    @cached_property
    def summary(self) -> Summary:
        return summarise(self.records, "default")

    @property
    def and_trainings(self) -> str:
        """What means and intervals of the default decoding are over besides seeds or questions, for a caption."""
        return " and trainings" if len(self.study.seeds) > 1 else ""

    @property
    def timed_batch(self) -> str:
        """How many questions were answered at once for the times shown, for a caption. A study that times nothing may
        show those of runs that it shares."""
        sizes = sorted({timing.batch_size for timing in self.study.timings.values()})
        return " or ".join(map(str, sizes)) or "unknown size"

    def test_title(self, test: str) -> str:
        return self.records.test_title(test)

    def row_name(self, row: Row) -> str:
        """Return a row's title for use outside a table, where an ablation also needs the title of its parent row."""
        title = self.study.row_titles[row.id]
        if not row.indent:
            return title
        above = self.study.rows[: self.study.rows.index(row)]
        parents = [self.study.row_titles[other.id] for other in above if not other.indent]
        return f"{parents[-1]} {title.lstrip('- ')}" if parents else title

    def look(self, row: Row) -> dict[str, Any]:
        """Return the colour and marker of a row. A method has one colour in all studies, so that the figures of a
        report can be read side by side. Its further rows have shades of it and other markers. Controls are grey."""
        if row.control:
            return {"color": GREY, "marker": "x"}
        ranked = [other for other in self.study.rows if not other.control]
        kin = [other.id for other in ranked if other.method == row.method]
        order = colour_order()
        if row.id == kin[0]:
            return look_of(order[row.method])
        first = {other.method: other.id for other in reversed(ranked)}
        variants = [other.id for other in ranked if other.id != first[other.method]]
        chosen = shade(colour(order[row.method]), kin.index(row.id))
        return look_of(len(order) + variants.index(row.id)) | {"color": chosen}


def colour_order() -> dict[str, int]:
    """Return the position of each method in the order of colours. Those of other packages come last, so that installing
    them does not change the colours of this package's methods."""
    ours = Method.__module__.partition(".")[0]
    foreign = {name: method.__module__.partition(".")[0] != ours for name, method in available().items()}
    return {name: at for at, name in enumerate(sorted(foreign, key=lambda name: (foreign[name], name)))}


def accuracy_and_interval(correct: pd.DataFrame) -> dict[str, float]:
    """Return the accuracy and its 95 % interval, under the names of a figure's columns. Shares of 1."""
    low, high = statistics.interval(correct)
    return {"accuracy": statistics.accuracy(correct), "low": low, "high": high}


def error_bars(lines: Any) -> list[Any]:
    """Return how far the 95 % intervals of ``lines`` reach below and above their accuracies, in percentage points. An
    interval is over distinct questions: where a test set repeats some, the accuracy of all may lie outside."""
    reach = lines["accuracy"] - lines["low"], lines["high"] - lines["accuracy"]
    return [100 * np.maximum(one, 0.0) for one in reach]


def grid(canvas: Canvas, rows: int, columns: int, size: tuple[float, float], **settings: object) -> list[list[Axes]]:
    """Return panels of ``size`` inches each, row by row. They are narrower if they would not fit the page's width."""
    canvas.set_size_inches(min(columns * size[0], PAGE), rows * size[1])
    return canvas.subplots(rows, columns, squeeze=False, **settings).tolist()  # type: ignore[arg-type]


def legend_below(canvas: Canvas) -> None:
    """Add one legend for all panels, with every label once, in as many columns as fit. Lines after the third make the
    figure higher, since a narrow one would have no room left for its panels."""
    entries = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    longest = max(map(len, entries))
    columns = max(1, int(canvas.get_figwidth() / (0.075 * longest + 0.45)))
    lines = math.ceil(len(entries) / columns)
    canvas.set_figheight(canvas.get_figheight() + 0.16 * max(0, lines - 3))
    canvas.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def bars(axes: Axes, places: Sequence[float], heights: Sequence[float], at: int, of: int, **look: Any) -> None:
    """Draw one of ``of`` groups of bars that stand side by side at each place, the ``at``-th."""
    width = 0.8 / of
    axes.bar([place + width * (at - (of - 1) / 2) for place in places], heights, width, **look)


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def look_of(index: int) -> dict[str, Any]:
    """Return the colour and marker of one of several lines."""
    return {"color": colour(index), "marker": MARKERS[index % len(MARKERS)]}


def shade(name: str, index: int) -> tuple[float, float, float]:
    """Return a shade of a colour, easy to tell from it and each other: darker for odd ``index``, lighter for even."""
    other = 0.0 if index % 2 else 1.0
    red, green, blue = (0.6 * part + 0.4 * other for part in to_rgb(name))
    return red, green, blue


def log_axis(axes: Axes, label: str) -> None:
    """Make the x axis of a finished plot logarithmic, with few ticks, in plain numbers if these are short. Within one
    decade ticks are evenly spaced: of those at 1, 2 and 5 there might be just one, and no value could be read off."""
    axes.set_xscale("log")
    axes.set_xlabel(label)
    low, high = axes.get_xlim()
    narrow = high < 10 * low
    axes.xaxis.set_major_locator(MaxNLocator(4) if narrow else LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: re.sub(r"e\+0*", "e", f"{value:g}")))
    axes.xaxis.set_minor_formatter(NullFormatter())


def picture(axes: Axes) -> None:
    """Remove the grid and the tick marks, for heat maps and graphs."""
    axes.grid(False)
    axes.tick_params(length=0)
