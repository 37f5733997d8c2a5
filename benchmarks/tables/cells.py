"""Format numbers as the cells of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from benchmarks.tables.markup import Cell


def cell(value: Any, form: Callable[[Any], str], note: str = "", spread: Any = None) -> Cell:
    """Return a formatted number with its spread, or a dash with a ``note`` on why the number is missing."""
    if pd.isna(value):
        return Cell(mark=note)
    return Cell(form(value), "" if pd.isna(spread) else f" ± {form(spread)}")


def timed(value: Any, note: str = "", spread: Any = None) -> Cell:
    """Return seconds and their spread, both with the number of decimals of the seconds."""
    digits = 2 if pd.isna(value) else decimals(value)
    return cell(value, lambda number: f"{number:.{digits}f}", note, spread)


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def points(difference: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+.2f}"


def asked(line: Mapping[str, Any]) -> Cell:
    """Return the number of questions of a line, and of distinct ones if the test set has duplicates."""
    if pd.isna(line["n"]) or line["n_distinct"] == line["n"]:
        return cell(line["n"], "{:,}".format)
    return Cell(f"{line['n']:,}", f" ({line['n_distinct']:,} distinct)")


def bounds(line: Mapping[str, Any]) -> Cell:
    """Return the 95 % interval of a line's accuracy, or a dash if it has no accuracy."""
    return Cell() if pd.isna(line["low"]) else Cell(f"{percent(line['low'])} to {percent(line['high'])}")


def p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def difference(test: Mapping[str, Any] | None) -> tuple[Cell, Cell]:
    """Return the difference that a paired test found and its corrected p-value, or dashes without a test."""
    if test is None:
        return Cell(), Cell()
    return cell(test["difference"], points), cell(test["p_holm"], p_value)


def by_place(tests: pd.DataFrame, *columns: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return paired tests by what they have in these columns."""
    return {tuple(test[column] for column in columns): test for test in tests.to_dict("records")}


def seconds(value: float) -> str:
    return f"{value:.{decimals(value)}f}"


def decimals(value: float) -> int:
    """Return the number of decimals for a time: two, or four if two would show only zeros."""
    return 2 if value >= 0.005 or value == 0 else 4


def count(value: float) -> str:
    """Format a number of parameters in millions or billions."""
    return f"{value / 1e9:.2f}B" if value >= 1e9 else f"{value / 1e6:.2f}M"


def flops(value: float) -> str:
    return f"{value:.2e}".replace("e+", "e")
