"""The style of all figures: readable in print at the width of a text column or page, and by colour-blind readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

# Okabe and Ito's palette, with olive in place of their yellow, which is faint on paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999933")
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


@contextmanager
def styled() -> Iterator[None]:
    with matplotlib.rc_context(SETTINGS):
        yield


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def shade(name: str, index: int) -> tuple[float, float, float]:
    """Return a shade of a colour: darker for odd ``index``, lighter for even.

    Both are easy to tell apart from each other and from the colour itself.
    """
    other = 0.0 if index % 2 else 1.0
    red, green, blue = (0.6 * part + 0.4 * other for part in to_rgb(name))
    return red, green, blue


def log_axis(axes: Axes, label: str) -> None:
    """Make the x axis of a finished plot logarithmic, with few ticks, labelled with plain numbers if these are short.

    Within a single decade, the ticks are evenly spaced numbers: with ticks at 1, 2 and 5 only, there might be just one,
    and no value could be read off.
    """
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
