"""The error that a user can fix."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: a setting, a file, an argument. The message names the place and the remedy, and commands print it
    without a traceback. Any other exception is a bug, in the suite or in a method, and keeps its traceback.

    Validators of pydantic models raise plain ``ValueError``, as pydantic requires; `benchmarks.studies.reasons` words
    the resulting messages.
    """
