"""A suggestion for a name that there is none of."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """What a message goes on with: the nearest of the ``known`` names, or nothing where none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
