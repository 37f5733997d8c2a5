"""What commands show while they work and when they are done: progress, and tables as wide as the terminal."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

from rich.console import Console
from tqdm import tqdm

LINE_SECONDS = 10.0  # between plain lines


class Progress:
    """A bar with ETA on a terminal, plain lines elsewhere. Counts up to ``total``; use as a context manager."""

    def __init__(self, label: str, total: int, start: int = 0) -> None:
        self.label, self.total, self.done, self.start = label, total, start, start
        self.began = self.printed = time.monotonic()
        self.bar = tqdm(total=total, initial=start, desc=label, dynamic_ncols=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.bar is not None:
            self.bar.close()
        elif failure[0] is None:
            self._line("done")

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        if self.bar is not None:
            self.bar.update(count)
            if note:
                self.bar.set_postfix_str(note, refresh=False)
        elif time.monotonic() - self.printed >= LINE_SECONDS:
            self.printed = time.monotonic()
            rate = (self.done - self.start) / (self.printed - self.began)
            left = timedelta(seconds=round((self.total - self.done) / rate)) if rate else "?"
            self._line(f"{note + ', ' if note else ''}{left} left")

    def _line(self, text: str) -> None:
        gone = timedelta(seconds=round(time.monotonic() - self.began))
        print(f"{self.label}: {self.done}/{self.total}, {text} ({gone} gone)", file=sys.stderr, flush=True)


UNLIMITED = 10_000  # columns: tables are only as wide as their cells


def console() -> Console:
    """Return a console for the width of the terminal. Elsewhere lines are as long as they come, unless COLUMNS sets a
    width: what reads them would not expect the 80 columns that are the default."""
    screen = Console()
    return screen if screen.is_terminal or "COLUMNS" in os.environ else Console(width=UNLIMITED)
