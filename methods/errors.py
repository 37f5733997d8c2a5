"""The error that a user can mend."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: a setting, a file, an argument. The message names the place and the remedy, and commands print it
    without a trace. Any other exception is a bug, of the suite or of a method, and keeps its trace.

    Validators of pydantic models raise plain ``ValueError``, as pydantic wants it; `benchmarks.studies.reasons` words
    what comes of them.
    """
