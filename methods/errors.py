"""The error that a user can fix, and suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input: a setting, a file, an argument. The message names the place and the remedy, and commands print it
    without a traceback. Any other exception is a bug, in the suite or in a method, and keeps its traceback.

    Validators of pydantic models raise plain ``ValueError``, as pydantic requires;
    `benchmarks.studies.validation_errors` turns these into messages.
    """


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest of the ``known`` names, or nothing if none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
