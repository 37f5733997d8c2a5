"""The metadata card of every data set: its source, its licence, and the checksums that identify it."""

from __future__ import annotations

from pydantic import model_validator

from benchmarks.number_grammar import read
from benchmarks.studies.specs import Strict
from methods.base import ANSWER_MARKER, added_field


class File(Strict):
    """A file as published. ``sha256`` is None if nobody has published one; the file is then used as it is. ``url``:
    where `marcos-bench fetch` finds it, if it is needed in a folder."""

    path: str
    sha256: str | None
    url: str | None = None

    @model_validator(mode="after")
    def _is_verified(self) -> File:
        if self.url and not self.sha256:
            raise ValueError(f"{self.path}: what `url` gives could not be verified: give the file's `sha256`")
        return self

    @classmethod
    def of(cls, path: str, sha256: str | None, url: str | None = None) -> File:
        return cls(path=path, sha256=sha256, url=url)


class Hub(Strict):
    """A data set on the Hugging Face hub. It is loaded from there only if its ``revision`` is pinned."""

    name: str
    config: str | None = None
    revision: str | None = None
    splits: dict[str, tuple[str, ...]]  # for each of our splits, the hub's splits that it consists of


class Card(Strict):
    """The metadata card of a data set.

    ``counts``: rows per split as published; if they are not :meth:`counted`, they are assumed. ``records``: SHA-256 of
    each split's rows as read, from whatever source (:func:`benchmarks.data.records.digest`); None if the rows were not
    at hand to compute it.
    """

    name: str
    title: str  # as a table prints it
    source: str
    revision: str
    licence: str
    citation: str
    version: str = "1"
    forms: tuple[str, ...]
    counts: dict[str, int]
    records: dict[str, str | None]
    files: dict[str, tuple[File, ...]] = {}
    hub: Hub | None = None
    notes: str = ""
    ragged: bool = False  # some published training rows lack a question or an answer that can be scored: left out
    stepless: bool = added_field(False)  # a solution is an answer alone
    scorer: str = "number"  # the name of a scorer in benchmarks.scoring

    def counted(self, split: str) -> bool:
        """Return whether the number of a split's rows is certain, because a checksum of the
        rows or of their files is known."""
        return self.records.get(split) is not None or any(file.sha256 for file in self.files.get(split, ()))

    @property
    def numeric(self) -> bool:
        """Whether answers must be numbers. Training rows with any other answer teach nothing."""
        return self.scorer == "number"


def refusal(scorer: str, answer: str) -> str:
    """Return why a scorer cannot compare with a gold answer, or an empty text. Only what :mod:`benchmarks.scoring`
    reads as numbers and as text has a form that is known here."""
    if scorer == "number":
        if read(answer):
            return ""
        guess = any(map(str.isdecimal, answer)) and not any(map(str.isalpha, answer))
        return "cannot be read as one number without guessing" if guess else "is no number"
    if scorer == "text":
        if not answer.strip():
            return "is empty"
        if "\n" in answer.strip() or ANSWER_MARKER in answer:
            return f"is more than the line behind {ANSWER_MARKER}"
    return ""
