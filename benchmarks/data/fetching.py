"""Downloads the files of data sets that no pinned copy on the hub has.

A file has an address; or it is written from the rows that the hub has today, if none of its revisions is pinned.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from typing import cast

from datasets import Dataset, concatenate_datasets, load_dataset
from huggingface_hub import dataset_info

from benchmarks.data.cards import File, Hub
from benchmarks.data.loading import get_dataset
from benchmarks.data.records import DataError
from benchmarks.data.sources import DATA_VARIABLE, DataSet, Fields, json_lines
from benchmarks.data.store import used_by
from benchmarks.files import replacing, sha256
from benchmarks.studies.study import Study

log = logging.getLogger(__name__)


def fetch(study: Study, folder: Path | None) -> list[Path]:
    """Download what a study needs and nothing else gives into ``folder`` (default: the one that :data:`DATA_VARIABLE`
    names), and return the new files. Files that are there already are left as they are. Raise :class:`DataError`, when
    all others are there, for files that nothing is known to give, whose download failed, or that are damaged."""
    place = folder or (Path(named) if (named := os.environ.get(DATA_VARIABLE)) else None)
    wanted = list(_wanted(study))
    if wanted and place is None:
        raise DataError(f"name a folder for the files with --folder, and set {DATA_VARIABLE} to it afterwards")
    fetched, failures = [], []
    for dataset, split, file in wanted:
        path = Path(place or ".") / file.path
        if path.exists():
            if file.sha256 and sha256(path) != file.sha256:
                failures.append(f"{path} is not the published file: remove it, and fetch again")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{path.parent} cannot be made ({error.strerror}): name another --folder") from error
        try:
            _download(dataset, split, file, path) if file.url else _write_rows(dataset, split, path)
            fetched.append(path)
        except DataError as error:
            card = dataset.card
            failures.append(f"{file.path} of {card.name}: {error}; put it there by hand, from {card.source}")
    if failures:
        raise DataError(f"{place} lacks files that {study.name} needs: " + "; ".join(failures))
    return fetched


def _wanted(study: Study) -> Iterator[tuple[DataSet, str, File]]:
    """Yield each file that a study's blocks train or test on, if no pinned copy on the hub has its rows."""
    for name, split in dict.fromkeys(chain.from_iterable(used_by(study, block) for block in study.blocks)):
        dataset = get_dataset(name)
        for source, part in ((dataset, split),) if isinstance(dataset, DataSet) else dataset.derived:
            if not (source.card.hub and source.card.hub.revision):
                yield from ((source, part, file) for file in source.card.files.get(part, ()))


def _download(dataset: DataSet, split: str, file: File, path: Path) -> None:
    """Download a file to a path, whole and verified or not at all. If its address does not give it (a quota of Git LFS,
    or the pointer in its place), make it from the rows on the hub."""
    from torch.hub import download_url_to_file  # takes a second

    assert file.url
    try:
        with replacing(path) as part:
            download_url_to_file(file.url, str(part), hash_prefix=file.sha256)
    except (OSError, RuntimeError, HTTPException) as error:
        why = f"downloading {file.url} failed ({error})"
        if dataset.line is None or dataset.card.hub is None or len(dataset.card.files[split]) != 1:
            raise DataError(why) from error
        log.warning("%s: download failed; rebuilding the file from %s on the hub", path, dataset.card.hub.name)
        try:
            _make(dataset.line, dataset.card.hub, split, file, path)
        except DataError as other:
            raise DataError(f"{why}, and {other}") from other


def _make(line: Callable[[Fields], str], hub: Hub, split: str, file: File, path: Path) -> None:
    """Write a published file of lines from the rows of its copy on the hub, if that gives the very file."""
    rows, _ = _newest_rows(hub, split)
    lines = [line(row) for row in cast(Iterable[Fields], rows)]
    for end in ("\n", ""):
        content = ("\n".join(lines) + end).encode()
        if hashlib.sha256(content).hexdigest() == file.sha256:
            with replacing(path) as part:
                part.write_bytes(content)
            return
    raise DataError(f"the rows of {hub.name} on the hub make another file (not sha256 {file.sha256})")


def _write_rows(dataset: DataSet, split: str, path: Path) -> None:
    """Write the rows that the hub has of a split to a path, as JSON lines, whole or not at all."""
    hub, files = dataset.card.hub, dataset.card.files[split]
    if hub is None or len(files) != 1 or files[0].sha256 or dataset.parse is not json_lines:
        raise DataError("no address of it is known")
    rows, revision = _newest_rows(hub, split)
    with replacing(path) as part:
        rows.to_json(part)
    if (expected := dataset.card.counts[split]) != len(rows):
        log.warning("%s has %d rows, and %d were expected: make sure that they are all", path, len(rows), expected)
    log.warning(
        "%s: the rows of %s at revision %s, the newest today (sha256 %s). No revision of it is pinned, so they may be "
        "others tomorrow: keep the file",
        *(path, hub.name, revision, sha256(path)),
    )


def _newest_rows(hub: Hub, split: str) -> tuple[Dataset, str | None]:
    """Return the rows that the hub has of a split today, and the revision that all of them are of."""
    try:
        revision = dataset_info(hub.name).sha
        parts = [load_dataset(hub.name, hub.config, split=name, revision=revision) for name in hub.splits[split]]
        return concatenate_datasets(cast(list[Dataset], parts)), revision
    except Exception as error:  # the hub's errors have no common base class
        raise DataError(f"{hub.name} on the hub does not give its rows ({error})") from error
