"""Reading and writing files such that a reader never sees a partial one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from methods.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class BrokenRecord(InputError):
    """Raised when a record cannot be read. The message names the file and the fix."""


class DiskFull(InputError):
    """Raised when the disk is full. The message names the folder, what it needs and what is free."""


FULL = {errno.ENOSPC, errno.EDQUOT}
BLOCK = 1 << 24  # bytes that are written at once


@contextmanager
def space_in(folder: Path, needed: int = 0) -> Iterator[None]:
    """Raise :class:`DiskFull` instead of the error of a full disk.
    ``needed``: the bytes that were to be written, if known."""
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
    """Return whether an error means a full disk. Safetensors has the number of the system's
    error only in its message."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(f"os error {number})" in str(error) for number in FULL)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f} GB"


def reserve(path: Path, size: int) -> None:
    """Create a file of ``size`` bytes with all of its blocks allocated. Writing to a memory-mapped sparse file would
    end the process (SIGBUS) once the disk is full."""
    with space_in(path.parent, size), path.open("wb") as file:
        try:
            if sys.platform == "darwin":  # has no such call
                for start in range(0, size, BLOCK):
                    file.write(bytes(min(BLOCK, size - start)))
            else:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            path.unlink()
            raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path``. If the block succeeds, flush the file to disk and move it to ``path``."""
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


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, fix: str = "run the stage that writes it") -> Any:
    """Return the content of a JSON file, or raise :class:`BrokenRecord`. ``fix``: what to do if there is no file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BrokenRecord(f"{path} does not exist: {fix}") from error
    except json.JSONDecodeError as error:
        raise BrokenRecord(
            f"{path}, line {error.lineno}: broken JSON ({error.msg}); delete it and run again"
        ) from error
    except UnicodeDecodeError as error:
        raise BrokenRecord(f"{path}, byte {error.start}: no UTF-8; delete it and run again") from error


def json_digest(content: Any) -> str:
    """Return the SHA-256 of what JSON can hold. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def frame_digest(table: pa.Table) -> str:
    """Return the SHA-256 of what a table holds: names and values of its columns, in order. How a file encodes or
    compresses them does not matter, nor do types that hold the same values."""
    import pyarrow as pa

    whole = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        whole.update(json.dumps(name).encode())
        kinds = {"<i8": pa.types.is_integer, "<f8": pa.types.is_floating, "|u1": pa.types.is_boolean}
        kind = next((kind for kind, is_kind in kinds.items() if is_kind(column.type)), None)
        if kind and not column.null_count:
            whole.update(kind.encode() + column.to_numpy().astype(kind).tobytes())
        else:
            whole.update(json.dumps(column.to_pylist(), ensure_ascii=False).encode())
    return whole.hexdigest()


def write_parquet(path: Path, frame: pd.DataFrame) -> str:
    """Write a frame without its index. Return the digest of its content."""
    import pyarrow as pa  # slow to import, and most work with files does not need it
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return frame_digest(table)


def read_parquet(path: Path, digest: str | None, fix: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the frame in a Parquet file, or raise :class:`BrokenRecord` if its content has not the recorded
    ``digest`` (see :func:`frame_digest`).

    ``fix``: the commands to run again in that case. ``columns``: the columns to return, as far as the file has them;
    default: all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise BrokenRecord(f"{path.absolute()} does not exist: run {fix} again")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise BrokenRecord(f"{path} is not the file that was recorded ({error}): run {fix} again") from error
    if frame_digest(table) != digest:
        raise BrokenRecord(f"{path} is not the file that was recorded: run {fix} again")
    known = table.column_names
    return table.select(known if columns is None else [name for name in columns if name in known]).to_pandas()
