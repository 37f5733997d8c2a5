"""What commands make of the terminal, file or pipe that they print to."""

from __future__ import annotations

import io
import os
import sys


def prepare() -> None:
    """Make printed text independent of the locale, and ignore a width that is none. A file or pipe gets UTF-8, like
    every other file that the suite writes. A terminal keeps its encoding, and shows a question mark for what that
    lacks. Rich would print nothing on a terminal of width 0, which some programs set."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # replaced by another program
            continue
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # lone surrogates are no UTF-8
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "1")
        if not (size.isascii() and size.isdigit() and int(size)):
            del os.environ[name]
