"""What commands show while they work and when they are done: progress, and tables as wide as the terminal."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from tqdm import tqdm


class Progress(tqdm):
    """A bar with ETA that counts up to ``total``; use as a context manager. A file or pipe gets a bar every 10 s."""

    def __init__(self, label: str, total: int, start: int = 0) -> None:
        pause = 0.1 if sys.stderr.isatty() else 10.0  # seconds between bars
        super().__init__(total=total, initial=start, desc=label, dynamic_ncols=True, mininterval=pause)

    def advance(self, count: int = 1, note: str = "") -> None:
        if note:
            self.set_postfix_str(note, refresh=False)
        self.update(count)


UNLIMITED = 10_000  # columns: tables are only as wide as their cells


def console() -> Console:
    """Return a console for the width of the terminal. Elsewhere lines are as long as they come, unless COLUMNS sets a
    width: what reads them would not expect the 80 columns that are the default."""
    screen = Console()
    return screen if screen.is_terminal or "COLUMNS" in os.environ else Console(width=UNLIMITED)
