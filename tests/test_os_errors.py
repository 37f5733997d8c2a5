"""What the system refuses is one line with the remedy; what may be a bug keeps its trace."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest

from benchmarks.files import describe_os_error
from commands import invoke
from conftest import ROOT


def refused(path: Path) -> str:
    try:
        path.mkdir()
        path.open("x", encoding="utf-8")
    except OSError as error:
        return str(describe_os_error(error))
    raise AssertionError("nothing was refused")


def test_the_place_and_the_remedy_are_named(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("", encoding="utf-8")
    (loop := tmp_path / "loop").symlink_to(loop)
    for path, message in {
        file / "inner": f"{file}/inner: {file} is a file, and a folder is needed: move it away, or name another place",
        file: f"{file}: it already exists and is not a folder: move it away, or name another place",
        tmp_path / "made": f"{tmp_path}/made: it is a folder, and a file is needed: name the file, or move the folder",
        tmp_path / "a/b/c": f"{tmp_path}/a/b/c: {tmp_path}/a does not exist: check the path, or make it",
        tmp_path / ("n" * 300): f"{tmp_path}/{'n' * 300}: the name is too long for the file system: use a shorter one",
        loop / "a": f"{loop}/a: symbolic links in its path form a loop: mend them, or name another place",
    }.items():
        text = refused(path)
        if path.name == "made":  # `open` finds a folder
            text = str(describe_os_error(IsADirectoryError(errno.EISDIR, "Is a directory", str(path))))
        assert text.startswith(message), text


def test_who_is_denied_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "a/b"))
    assert re.search(
        r"nothing can be created in .* \(.* belongs to .*\): ask for access, or name", describe_os_error(denied) or ""
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".cache/huggingface"))
    assert "set HOME to a folder that can be written, or XDG_CACHE_HOME, HF_HOME and MPLCONFIGDIR" in str(
        describe_os_error(cache)
    )
    read_only = OSError(errno.EROFS, "Read-only file system", str(tmp_path))
    assert "the file system is read-only: name another results folder with --results" in str(
        describe_os_error(read_only)
    )


def test_what_names_no_file_is_told_if_it_cannot_be_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ulimit -n 4096" in str(describe_os_error(OSError(errno.EMFILE, "Too many open files")))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/no", "/proc/none"])
    with pytest.raises(FileNotFoundError) as raised:
        tempfile.gettempdir()
    assert "set TMPDIR to a folder that can be written" in str(describe_os_error(raised.value))
    for bug in (ConnectionResetError(errno.ECONNRESET, "reset"), OSError("odd"), BrokenPipeError(errno.EPIPE, "pipe")):
        assert describe_os_error(bug) is None


@pytest.mark.parametrize(
    "words",
    [("collect", "smoke", "--results"), ("track", "smoke", "--results"), ("data", "smoke", "--results"), ("report",)],
)
def test_commands_end_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    (file := tmp_path / "results").write_text("", encoding="utf-8")
    done = invoke(*words, file, code=2)
    assert done.output.startswith("error: ") and done.output.count("\n") == 1


def test_an_error_of_a_connection_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    monkeypatch.setattr("benchmarks.cli.tasks.load_study", broken)
    done = invoke("collect", "smoke", code=1)
    assert isinstance(done.exception, ConnectionResetError) and "error:" not in done.output


def test_the_workflow_asks_for_the_snakemake_that_the_package_does() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (package,) = re.findall(r"^snakemake>=([\d.]+)", "\n".join(needed), re.M)
    rules = (ROOT / "workflows/Snakefile").read_text(encoding="utf-8")
    assert re.findall(r'^min_version\("([\d.]+)"\)', rules, re.M) == [package]


def test_an_environment_that_was_moved_is_made_anew(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (stamp := tmp_path / ".venv/.installed").parent.mkdir()
    for place, planned in ((tmp_path, False), (tmp_path / "before", True)):
        stamp.write_text(f"{place}\n", encoding="utf-8")
        done = subprocess.run(["make", "-n", "install"], cwd=tmp_path, capture_output=True, encoding="utf-8")
        assert done.returncode == 0 and ("-m venv --clear .venv" in done.stdout) == planned, done.stdout + done.stderr
