"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest of the ``known`` names, or nothing if none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
