"""Reading and writing files so that a reader never sees half of one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from methods.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class BrokenRecord(InputError):
    """A record that cannot be read; the message names the file and the mend."""


class DiskFull(InputError):
    """Nothing more can be written; the message names the folder, what it needs and what is free."""


FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def space_in(folder: Path, needed: int = 0) -> Iterator[None]:
    """Turn a disk that is full into :class:`DiskFull`. ``needed``: bytes that were to be written, where known."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not _is_full(error):
            raise
        asked = f"{gigabytes(needed)} were to be written, " if needed else ""
        free = gigabytes(shutil.disk_usage(folder).free)
        raise DiskFull(
            f"{folder}: the disk is full ({asked}{free} are free). Make room there; "
            "what was whole before is kept, and the same command goes on from it"
        ) from error


def _is_full(error: OSError | SafetensorError) -> bool:
    """Safetensors has the number of the system's error in its text alone."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(f"os error {number})" in str(error) for number in FULL)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f} GB"


def reserve(path: Path, size: int) -> None:
    """Make a file of ``size`` bytes whose blocks are there: a sparse one would end the process (SIGBUS) where the disk
    is full."""
    with space_in(path.parent, size), path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            path.unlink()
            raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place, flushed to disk, when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        with space_in(path.parent):
            yield temporary
            sync(temporary)
            temporary.chmod(0o644)  # mkstemp makes files private
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, mend: str = "run the stage that writes it") -> Any:
    """The content of a JSON file, or :class:`BrokenRecord`. ``mend``: what to do where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BrokenRecord(f"{path} does not exist: {mend}") from error
    except json.JSONDecodeError as error:
        raise BrokenRecord(
            f"{path}, line {error.lineno}: broken JSON ({error.msg}); delete it and run again"
        ) from error
    except UnicodeDecodeError as error:
        raise BrokenRecord(f"{path}, byte {error.start}: no UTF-8; delete it and run again") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_parquet(path: Path, frame: pd.DataFrame) -> str:
    """Write a frame without its index; returns the SHA-256 of the file."""
    with replacing(path) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")
    return sha256(path)


def read_parquet(path: Path, digest: str | None, mend: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """A frame, or :class:`BrokenRecord` where the file has not the SHA-256 ``digest`` that was recorded. ``mend``: the
    commands to run again then. ``columns``: those to read, as far as the file has them; default: all."""
    import pandas as pd  # takes its time, and most of what is done with files needs none of it
    import pyarrow.parquet as pq

    if not path.is_file():
        raise BrokenRecord(f"{path.absolute()} does not exist: run {mend} again")
    if sha256(path) != digest:
        raise BrokenRecord(f"{path} is not the file that was recorded: run {mend} again")
    known = pq.read_schema(path).names
    return pd.read_parquet(path, columns=known if columns is None else [name for name in columns if name in known])
