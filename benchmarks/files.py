"""Reading and writing files such that a reader never sees a partial one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json
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
def report_full_disk(folder: Path, needed: int = 0) -> Iterator[None]:
    """Raise :class:`DiskFull` instead of the error of a full disk.
    ``needed``: the bytes that were to be written, if known."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        # Safetensors has the number of the system's error only in its message
        full = any(f"os error {number})" in str(error) for number in FULL)
        if not (error.errno in FULL if isinstance(error, OSError) else full):
            raise
        asked = f"{needed / 1e9:,.2f} GB were to be written, " if needed else ""
        free = f"{shutil.disk_usage(folder).free / 1e9:,.2f} GB"
        raise DiskFull(
            f"{folder}: the disk is full ({asked}{free} are free). Free some space and rerun "
            "the same command: complete files are kept, and it resumes from them"
        ) from error


def reserve(path: Path, size: int) -> None:
    """Create a file of ``size`` bytes with all of its blocks allocated. Writing to a memory-mapped sparse file would
    end the process (SIGBUS) once the disk is full."""
    with report_full_disk(path.parent, size), path.open("wb") as file:
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
        with report_full_disk(path.parent):
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


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts into a folder, by the names of their files. Return the files' paths."""
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


class MissingKey(BrokenRecord, KeyError):
    """Raised when a record lacks a key. ``key`` is its name."""

    def __init__(self, path: Path, key: str) -> None:
        super().__init__(f"{path} has no {key!r}: it is damaged, or of another version; delete it and run again")
        self.key = key

    __str__ = Exception.__str__  # a KeyError would print the message in quotes


class Entries(dict[str, Any]):
    """The content of a record. A missing key raises :class:`MissingKey`, which names the file."""

    path = Path()

    def __missing__(self, key: str) -> Any:
        raise MissingKey(self.path, key)


def read_json(path: Path, fix: str = "run the task that writes it") -> dict[str, Any]:
    """Return the content of a JSON file that the suite has written, or raise :class:`BrokenRecord`. ``fix``: what to do
    if there is no file."""
    again = "delete it and run again"
    if not os.path.lexists(path):
        raise BrokenRecord(f"{path} does not exist: {fix}")
    try:
        content = json_object(parse_json(read_text(path, again), str(path), again), str(path), again)
    except InputError as error:
        raise BrokenRecord(str(error)) from error
    return _entries(content, path)


def read_json_if_intact(path: Path) -> dict[str, Any]:
    """Return what a record holds, or nothing if it is missing or damaged: whoever needs it has a message for that."""
    try:
        return read_json(path)
    except BrokenRecord:
        return {}


def _entries(content: Any, path: Path) -> Any:
    if isinstance(content, list):
        return [_entries(part, path) for part in content]
    if not isinstance(content, dict):
        return content
    entries = Entries({key: _entries(value, path) for key, value in content.items()})
    entries.path = path
    return entries


# ---- files of users: whatever is wrong with one is said with its place, and with what to do


def read_bytes(path: Path, fix: str) -> bytes:
    """Return the content of a file. If it cannot be read, raise :class:`InputError`, which ends with the remedy
    ``fix``."""
    # os.path, since pathlib raises errors for names that are too long, or no text
    if os.path.islink(path) and not os.path.exists(path):
        raise InputError(f"{path} is a link to {os.readlink(path)}, which does not exist; {fix}")
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "no regular file"
        raise InputError(f"cannot read {path} ({kind}); {fix}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); {fix}") from error
    except ValueError as error:
        raise InputError(f"cannot read {str(path)!r} ({error}); {fix}") from error


def read_text(path: Path, fix: str) -> str:
    """Return the text of a UTF-8 file. See :func:`read_bytes` for ``fix``."""
    return decode_utf8(read_bytes(path, fix), path, fix)


def decode_utf8(content: bytes, path: Path, fix: str) -> str:
    """Return the text of a file's content. A byte order mark is no part of it."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1  # what is decoded begins behind the byte order mark
        raise InputError(f"{path}, line {line}: not UTF-8 (byte {error.object[error.start]:#04x}); {fix}") from error


def parse_json(text: str, place: str, fix: str, lines: bool = True) -> Any:
    """Return the content of a JSON text. Raise :class:`InputError` if it is not valid JSON, or has a number that is
    too large for a float. ``place`` names the text; ``lines``: whether to add the line in it."""
    try:
        content = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        what, _, line = re.sub(r" column \d+$", "", str(error)).rpartition(" at line ")
        what = "nested too deeply" if what.startswith("recursion limit") else f"broken JSON ({what})"
        raise InputError(f"{place}{f', line {line}' if lines else ''}: {what}; {fix}") from error
    try:
        json.dumps(content, allow_nan=False)
    except ValueError as error:  # a number such as 1e999, which is read as infinity
        raise InputError(f"{place}: a number is too large to compute with; {fix}") from error
    return content


def shortened(content: Any) -> str:
    """Return the content of JSON for a message, shortened."""
    text = json.dumps(content, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]} ..."


def json_object(content: Any, place: str, fix: str) -> dict[str, Any]:
    """Return JSON content that has to be an object, or raise :class:`InputError`."""
    if not isinstance(content, dict):
        raise InputError(f"{place}: must be a JSON object, not {shortened(content)}; {fix}")
    return content


def json_rows(text: str, path: Path, fix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each line of JSON lines that is not blank."""
    for place, line in nonblank_lines(text, path):
        yield place, json_object(parse_json(line, place, fix, lines=False), place, fix)


def nonblank_lines(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place of each line that is not blank, and the line. Lines end at newlines only: ``splitlines`` would
    also split at separators that JSON allows inside text."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}, line {number}", line


def folder_from_environment(variable: str, content: str) -> Path | None:
    """Return the folder that an environment variable names, or None if it is not set. Raise :class:`InputError` if
    there is none. ``content``: what the folder should hold."""
    name = os.environ.get(variable)
    if not name:
        return None
    if not os.path.isdir(name):
        raise InputError(
            f"{variable} names {printable(name)}, which is not a folder: give the folder of {content}, or unset the "
            "variable"
        )
    return Path(name)


def printable(text: str) -> str:
    """Return a text as a message can show it: bytes that are not UTF-8 are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


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
    """Return the frame in a Parquet file, or raise :class:`BrokenRecord` if its content does not have the recorded
    ``digest`` (:func:`frame_digest`). ``fix``: what to run again then. ``columns``: those to return, as far as the file
    has them; default: all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise BrokenRecord(f"{path.absolute()} does not exist: run {fix} again")
    try:
        table = pq.read_table(path.absolute())  # a relative path such as `s3:results` would be taken for a URI
    except (pa.ArrowException, OSError) as error:
        raise BrokenRecord(f"{path} is not the file that was recorded ({error}): run {fix} again") from error
    if frame_digest(table) != digest:
        raise BrokenRecord(f"{path} is not the file that was recorded: run {fix} again")
    known = table.column_names
    return table.select(known if columns is None else [name for name in columns if name in known]).to_pandas()


NO_TEMPORARY = "No usable temporary directory"  # how the error of `tempfile` begins, which names no file
OTHER_FOLDER = "name another results folder with --results FOLDER (with `make table`: work in a copy of the project)"
REMEDIES = {
    errno.EROFS: f"the file system is read-only: {OTHER_FOLDER}",
    errno.EISDIR: "it is a folder, and a file is needed: name the file, or move the folder away",
    errno.EEXIST: "it already exists and is not a folder: move it away, or name another place",
    errno.ENAMETOOLONG: "the name is too long for the file system: use a shorter one, or work in a folder higher up",
    errno.ELOOP: "symbolic links in its path form a loop: mend them, or name another place",
    errno.ESTALE: "the network file system has lost it: mount that again, and run the same command",
    errno.EIO: "the device fails to read or write: look at the disk or the network file system",
}


# ---- what the system refuses about a file, in words: the file, what is wrong, and the remedy, on one line


def describe_os_error(error: OSError) -> str | None:
    """Return a message on an error that is about a file, or None on any other, such as one of a connection: those may
    be bugs, and should keep their trace."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: raise the limit (ulimit -n 4096), and run the same command"
    if str(error.strerror or "").startswith(NO_TEMPORARY):
        return f"{error.strerror}: set TMPDIR to a folder that can be written"
    if error.errno is None or not isinstance(error.filename, (str, bytes, os.PathLike)):
        return None
    path = Path(os.fsdecode(error.filename))
    return f"{path}: {_reason(error.errno, path, error.strerror or str(error))}"


def _reason(number: int, path: Path, cause: str) -> str:
    if number in (errno.EACCES, errno.EPERM):
        return _denied(path)
    if number in FULL:
        return "the disk is full: make room there, and run the same command"
    if number == errno.ENOENT:
        missing = next((folder for folder in reversed(path.parents) if not os.path.lexists(folder)), path)
        return f"{'it' if missing == path else missing} does not exist: check the path, or make it"
    if number == errno.ENOTDIR:
        part = next((folder for folder in path.parents if os.path.isfile(folder)), path)
        return f"{part} is a file, and a folder is needed: move it away, or name another place"
    return REMEDIES.get(number, f"{cause.lower()}: check the path, and run the same command")


def _denied(path: Path) -> str:
    """Return whose the file is, or the nearest folder that there is, and what another user can do."""
    place = next((part for part in (path, *path.absolute().parents) if os.path.lexists(part)), Path("/"))
    reason = f"user {_name(os.geteuid())} has no access" if place == path else f"nothing can be created in {place}"
    try:
        owner = f" ({place} belongs to {_name(place.lstat().st_uid)})"
    except OSError:  # its folder cannot be read either
        owner = ""
    home = Path("~").expanduser()
    if path == home or (home in path.parents and path.relative_to(home).parts[0].startswith(".")):
        return f"{reason}{owner}: set HOME to a folder that can be written, or XDG_CACHE_HOME, HF_HOME and MPLCONFIGDIR"
    return f"{reason}{owner}: ask for access, or {OTHER_FOLDER}"


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # as in containers
        return str(user)
