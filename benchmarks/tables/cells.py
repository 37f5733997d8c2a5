"""Numbers as the cells of a table show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from benchmarks.tables.markup import Cell


def cell(value: Any, form: Callable[[Any], str], note: str = "", spread: Any = None) -> Cell:
    """A formatted number; a dash, with the note of why, where there is none."""
    if pd.isna(value):
        return Cell(mark=note)
    return Cell(form(value), "" if pd.isna(spread) else f" ± {form(spread)}")


def timed(value: Any, note: str = "", spread: Any = None) -> Cell:
    """Seconds and their spread, to as many decimals as the seconds alone would have."""
    digits = 2 if pd.isna(value) else decimals(value)
    return cell(value, lambda number: f"{number:.{digits}f}", note, spread)


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def points(difference: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+.2f}"


def asked(line: Mapping[str, Any]) -> Cell:
    """How many a line was asked, and how many of them are distinct where some stand in the test set several times."""
    if pd.isna(line["n"]) or line["n_distinct"] == line["n"]:
        return cell(line["n"], "{:,}".format)
    return Cell(f"{line['n']:,}", f" ({line['n_distinct']:,} distinct)")


def bounds(line: Mapping[str, Any]) -> Cell:
    """The 95 % interval of a line's accuracy; a dash where there is no accuracy."""
    return Cell() if pd.isna(line["low"]) else Cell(f"{percent(line['low'])} to {percent(line['high'])}")


def p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def seconds(value: float) -> str:
    return f"{value:.{decimals(value)}f}"


def decimals(value: float) -> int:
    """How many a time is shown with: two, or four where two would show nothing."""
    return 2 if value >= 0.005 or value == 0 else 4


def count(value: float) -> str:
    """Parameters, in millions or billions."""
    return f"{value / 1e9:.2f}B" if value >= 1e9 else f"{value / 1e6:.2f}M"


def flops(value: float) -> str:
    return f"{value:.2e}".replace("e+", "e")
