"""Words for what the system refuses about a file: the file, what is wrong, and the remedy, on one line."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

from benchmarks.files import FULL

DENIED = {errno.EACCES, errno.EPERM}
FEW_FILES = {errno.EMFILE, errno.ENFILE}
NO_TEMPORARY = "No usable temporary directory"  # how the error of `tempfile` begins, which names no file
OTHER_FOLDER = "name another results folder with --results FOLDER (with `make table`: work in a copy of the project)"
REMEDIES = {
    errno.EROFS: f"the file system is read-only: {OTHER_FOLDER}",
    errno.EISDIR: "it is a folder, and a file is needed: name the file, or move the folder away",
    errno.EEXIST: "it exists already, and is no folder: move it away, or name another place",
    errno.ENAMETOOLONG: "the name is too long for the file system: use a shorter one, or work in a folder higher up",
    errno.ELOOP: "the links on the way to it refer to each other: mend them, or name another place",
    errno.ESTALE: "the network file system has lost it: mount that again, and run the same command",
    errno.EIO: "the device fails to read or write: look at the disk or the network file system",
}


def in_words(error: OSError) -> str | None:
    """Return a message on an error that is about a file, or None on any other, such as one of a connection: those may
    be bugs, and should keep their trace."""
    if error.errno in FEW_FILES:
        return "too many files are open: raise the limit (ulimit -n 4096), and run the same command"
    if str(error.strerror or "").startswith(NO_TEMPORARY):
        return f"{error.strerror}: set TMPDIR to a folder that can be written"
    if error.errno is None or not isinstance(error.filename, (str, bytes, os.PathLike)):
        return None
    path = Path(os.fsdecode(error.filename))
    return f"{path}: {_reason(error.errno, path, error.strerror or str(error))}"


def _reason(number: int, path: Path, cause: str) -> str:
    if number in DENIED:
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
    reason = f"user {_name(os.geteuid())} may not use it" if place == path else f"{place} lets nothing be made in it"
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
