"""Where commands that look into runs print their tables."""

from __future__ import annotations

import os

from rich.console import Console

UNLIMITED = 10_000  # columns: tables are only as wide as their cells


def console() -> Console:
    """Return a console for the width of the terminal. Elsewhere lines are as long as they come, unless COLUMNS sets a
    width: what reads them would not expect the 80 columns that are the default."""
    screen = Console()
    return screen if screen.is_terminal or "COLUMNS" in os.environ else Console(width=UNLIMITED)
