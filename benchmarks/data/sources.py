"""Reads the rows of every data set, from a local folder of the published files or from
the hub: the same rows from both."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from datasets import load_dataset

from benchmarks.data.cards import Card, refusal
from benchmarks.data.records import DataError, Raw, digest
from benchmarks.files import (
    decode_utf8,
    folder_from_environment,
    json_object,
    json_rows,
    nonblank_lines,
    parse_json,
    read_bytes,
    sha256,
    shortened,
)
from methods.base import ANSWER_MARKER

DATA_VARIABLE = "MARCOS_BENCH_DATA"  # environment variable: a folder with the published files, byte for byte

AGAIN = "fetch the file again"

log = logging.getLogger(__name__)

Fields = Mapping[str, Any]
T = TypeVar("T")


def json_lines(text: str, path: Path) -> Iterator[tuple[str, Fields]]:
    """Yield the place and the fields of each line of a JSON lines file. Blank lines are skipped."""
    return json_rows(text, path, AGAIN)


def icot_lines(text: str, path: Path) -> Iterator[tuple[str, Fields]]:
    """Yield the place and the fields of each line ``question||steps #### answer``, as iCoT's authors publish them."""
    for place, line in nonblank_lines(text, path):
        question, bar, rest = line.partition("||")
        steps, mark, answer = rest.partition("####")
        if not bar or not mark:
            raise DataError(f"{place}: not of the form `question||steps #### answer`; {AGAIN}")
        yield place, {"question": question, "cot": steps, "answer": answer}


def json_array(text: str, path: Path) -> Iterator[tuple[str, Fields]]:
    """Yield the place and the fields of each element of a JSON array."""
    rows = parse_json(text, str(path), AGAIN)
    if not isinstance(rows, list):
        raise DataError(f"{path}: must be a JSON array of rows, not {shortened(rows)}; {AGAIN}")
    for number, row in enumerate(rows, start=1):
        place = f"{path}, element {number}"
        yield place, json_object(row, place, AGAIN)


def csv_rows(text: str, path: Path) -> Iterator[tuple[str, Fields]]:
    """Yield the place and the fields of each row of a CSV file, whose first row names the columns."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = list(reader.fieldnames or ())
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{path}, line 1: column {twice[0]!r} is there twice; {AGAIN}")
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise DataError(f"{place}: not as many fields as the {len(names)} columns in line 1; {AGAIN}")
            if any("\0" in value for value in row.values()):
                raise DataError(f"{place}: a NUL byte; {AGAIN}")
            yield place, row
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.reader.line_num}: broken CSV ({error}); {AGAIN}") from error


@dataclass(frozen=True)
class DataSet:
    """A card, how a file is parsed into rows, and how a row's fields are converted to a :class:`Raw`.

    If ``convert`` sets ``Raw.key``, rows are sorted by it. Their final keys are their positions in the resulting order.
    ``line``: how a row of the copy on the hub is written as a line of the published file, if `marcos-bench fetch` can
    make the file from that copy.
    """

    card: Card
    parse: Callable[[str, Path], Iterator[tuple[str, Fields]]]
    convert: Callable[[Fields], Raw]
    line: Callable[[Fields], str] | None = None

    def rows(self, split: str) -> list[Raw]:
        """Return all published rows of a split, verified against the card. They come from the folder that
        :data:`DATA_VARIABLE` names if any file of the split is there, else from the hub."""
        folder = published_files()
        if folder is not None and self.in_folder(split):
            found, place = self._from_folder(split, folder), str(folder)
        else:
            found, place = self._from_hub(split, folder), f"the hub ({self.card.hub and self.card.hub.name})"
        rows = sorted(found, key=lambda row: row.key) if found and found[0].key else found
        fix = f"fetch it again, or read the published files from a folder named by {DATA_VARIABLE}"
        check_rows(self.card, split, rows, place, fix)
        return [replace(row, key=str(number)) for number, row in enumerate(rows)]

    def in_folder(self, split: str) -> bool:
        """Return whether any file of a split is in the folder that :data:`DATA_VARIABLE` names."""
        folder = published_files()
        return folder is not None and any(
            os.path.lexists(folder / file.path) for file in self.card.files.get(split, ())
        )

    def unpinned(self, split: str) -> dict[str, str]:
        """Return the SHA-256 of each file of a split in the folder for which the card has no checksum: only these may
        change and still be read."""
        folder = published_files()
        if folder is None:
            return {}
        paths = {file.path: folder / file.path for file in self.card.files.get(split, ()) if not file.sha256}
        return {name: sha256(path) for name, path in paths.items() if path.is_file()}

    def _from_folder(self, split: str, folder: Path) -> list[Raw]:
        rows: list[Raw] = []
        for file in self.card.files[split]:
            path = folder / file.path
            content = read_bytes(path, f"{DATA_VARIABLE} must name a folder that holds {file.path}")
            if not content.strip():
                raise DataError(f"{path} is empty; {AGAIN}")
            text = decode_utf8(content, path, AGAIN)
            rows += [self._convert(place, row, split) for place, row in self.parse(text, path)]
            found = hashlib.sha256(content).hexdigest()  # last, since a message on a row says more
            if file.sha256 is not None and found != file.sha256:
                raise DataError(f"{path}: wrong checksum {found}, published {file.sha256}; {AGAIN}")
        return rows

    def _from_hub(self, split: str, folder: Path | None) -> list[Raw]:
        """Read the rows from the pinned copy on the hub, or raise :class:`DataError` if none is pinned. ``folder``: the
        local folder, which lacks all files of the split."""
        hub, rows = self.card.hub, list[Raw]()
        if hub is None or hub.revision is None:
            raise DataError(
                f"data set {self.card.name!r} has no pinned revision on the hub, so it is read from files only: "
                f"{self._fix(split, folder)}"
            )
        if folder is not None:
            log.warning(
                "%s has no file of %s (%s): reading its pinned copy on the hub, %s",
                folder,
                self.card.name,
                split,
                hub.name,
            )
        for part in hub.splits[split]:
            try:
                loaded = load_dataset(hub.name, hub.config, split=part, revision=hub.revision)
            except Exception as error:  # the hub's errors have no common base class
                raise DataError(
                    f"cannot read {hub.name} ({part}) from the hub: {error}. Check the network, or "
                    f"{self._fix(split, folder)}"
                ) from error
            rows += [
                self._convert(f"{hub.name} ({part}), row {n}", row, split)
                for n, row in enumerate(cast(Iterable[Fields], loaded), 1)
            ]
        return rows

    def _fix(self, split: str, folder: Path | None) -> str:
        """Return instructions for placing a split's files where they are read from."""
        files = self.card.files.get(split, ())
        if not files:
            return f"give its card `files`, to be read from the folder that {DATA_VARIABLE} names"
        named = [f"{file.path}{f' (sha256 {file.sha256})' if file.sha256 else ''}" for file in files]
        wanted = f"{', '.join(named)}, from {self.card.source}"
        if all(file.url for file in files):
            wanted += " (`marcos-bench fetch STUDY` downloads what a study needs)"
        if folder is None:
            return f"set {DATA_VARIABLE} to a folder with {wanted}"
        return f"put what is missing into {folder}, which {DATA_VARIABLE} names: {wanted}"

    def _convert(self, place: str, row: Fields, split: str) -> Raw:
        """Return a row, or raise :class:`DataError` if it cannot be used. Unusable training rows of a ragged set are
        left out later, so that its rows can be counted."""
        spared = self.card.ragged and split == "train"
        try:
            raw = replace(self.convert(row), place=place)
            for name, text in (("question", raw.question), ("solution", raw.solution), ("answer", raw.answer)):
                if not isinstance(text, str):
                    raise DataError(f"the {name} {text!r} is no text")
            if not raw.question.strip() and not spared:
                raise DataError("the question is empty")
        except KeyError as error:
            raise DataError(f"{place}: field {error} is missing; {self._mend}") from error
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"{place}: cannot be read ({error}); {self._mend}") from error
        if (why := refusal(self.card.scorer, raw.answer)) and not spared:
            other = ", or name another `scorer` in its card, such as `text`" if self.card.numeric else ""
            raise DataError(f"{place}: the answer {raw.answer!r} {why}; {self._mend}{other}")
        return raw

    @property
    def _mend(self) -> str:
        return f"fetch the file again, or correct how data set {self.card.name!r} converts its rows"


@dataclass(frozen=True)
class Generated:
    """A corpus that is generated, or derived from others. ``generate`` returns the rows of a split, which are numbered
    here if they have no key of their own; ``derived`` lists the data sets, each with a split, whose files it reads."""

    card: Card
    generate: Callable[[str], Iterable[Raw]]
    derived: tuple[tuple[DataSet, str], ...] = ()

    def unpinned(self, split: str) -> dict[str, str]:
        """Return no file: see :meth:`DataSet.unpinned`."""
        return {}

    def rows(self, split: str) -> list[Raw]:
        rows = [replace(row, key=row.key or str(number)) for number, row in enumerate(self.generate(split))]
        check_rows(self.card, split, rows, "the generator", "correct the generator, or raise its `version`")
        if twice := [key for key, count in Counter(row.key for row in rows).items() if count > 1]:
            raise DataError(f"{self.card.name} ({split}) generates two rows with the key {twice[0]!r}: leave keys out")
        return rows


class Draw:
    """Seeded random draws for :class:`Generated` corpora, the same in every version of Python: only ``random()``
    guarantees that."""

    def __init__(self, seed: str) -> None:
        self.uniform = random.Random(seed).random

    def below(self, n: int) -> int:
        return int(self.uniform() * n)

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]


def part_of(problem: str) -> str:
    """Return the part of a generated corpus that a problem belongs to, by its hash: a tenth each is for validation and
    for the test."""
    drawn = int(hashlib.sha256(problem.encode()).hexdigest(), 16) % 10
    return {0: "test", 1: "validation"}.get(drawn, "train")


def published_files() -> Path | None:
    """Return the folder that :data:`DATA_VARIABLE` names, or None if the variable is not set."""
    return folder_from_environment(DATA_VARIABLE, "the published files")


def check_rows(card: Card, split: str, rows: list[Raw], where: str, fix: str) -> None:
    """Raise :class:`DataError`, with what to do (``fix``), if rows are not those of the card, whatever their source. A
    number of rows that differs from an assumed one is only logged."""
    if not rows:
        raise DataError(f"{card.name} ({split}) from {where} is empty; {fix}")
    if len(rows) != card.counts[split]:
        odd = f"{card.name} ({split}) from {where} has {len(rows)} rows instead of {card.counts[split]}"
        if card.counted(split):
            raise DataError(f"{odd}; {fix}")
        log.warning("%s. The number is assumed, and these rows are used: make sure that the file is whole", odd)
    for row in rows:
        if ANSWER_MARKER in row.solution:
            raise DataError(
                f"{card.name} ({split}) from {where} has {ANSWER_MARKER} in the solution {shortened(row.solution)}: a "
                "solution is the reasoning without the answer"
            )
        if row.answer != row.answer.strip():
            raise DataError(f"{card.name} ({split}) from {where} has the answer {row.answer!r}: strip its blanks")
    expected = card.records.get(split)
    if expected is not None and (found := digest(rows)) != expected:
        raise DataError(
            f"{card.name} ({split}) from {where} has other content than version {card.version} (records {found}, "
            f"expected {expected}); {fix}"
        )
