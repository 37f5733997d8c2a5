"""Results that are shared: a study's rendered tables and figures, and one archive of everything that they come from.

A packed folder holds

* ``table_*.md``, ``.tex`` and ``.csv``, and ``figures/``: as rendered, to be read as they are;
* ``records.tar.xz``: the records, specifications and logs of all runs, what ``collect`` gathered, and the predictions
  of all runs in one Parquet file.

Weights, prepared data and checkpoints are left out. :func:`unpacked` restores the layout that the workflow writes, so
that a packed study is verified and rendered by the code that reads any other.
"""

from __future__ import annotations

import errno
import io
import json
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.files import BrokenRecord, read_json, read_parquet, read_text, replacing, report_full_disk
from benchmarks.studies.paths import COLLECTED, LOG
from methods.errors import InputError

ARCHIVE = "records.tar.xz"
PREDICTIONS = "predictions.parquet"  # in the archive: the predictions of all runs
RENDERED = ("table_*.md", "table_*.tex", "table_*.csv", "figures/*")
RECORDED = (
    COLLECTED,
    "frame.csv",
    "table_*.json",
    "runs/*/*/*/*.json",
    "runs/*/*/*/nats.parquet",
    "runs/*/*/*/analysis/*",
)
LOGS = f"runs/*/*/*/{LOG}"
ANSWERS = "runs/*/*/*/predictions/*.parquet"
TRAIN_AGAIN = "remove the folder, and train this run again"
LOGGED_STEPS = 100  # lines of training steps that an archived log keeps; all other lines stay


def pack(folder: Path, target: Path) -> Path:
    """Pack the results of a study in ``folder`` into ``target``, whose rendered files are replaced. Return the path of
    the archive. Raise :class:`BrokenRecord` if nothing was collected there."""
    folder, target = folder.resolve(), target.resolve()
    if not (folder / COLLECTED).is_file():
        raise BrokenRecord(f"{folder} has no {COLLECTED}: run `marcos-bench collect` for the study first")
    if target == folder:
        raise InputError(f"{folder} cannot be packed into itself: name another folder")
    if target.is_relative_to(folder):
        raise InputError(f"{target} is a part of what is packed: name a folder outside {folder}")
    if (target / ARCHIVE).is_file() and target.name != folder.name:
        raise InputError(f"{target} holds an archive, and is not named like {folder}: name a folder of its own")
    for path in _files(folder, ("runs/*/*/*/evaluate.json",)):
        for name, digest in read_json(path)["predictions"].items():  # answers of another run would be packed as these
            read_parquet(path.parent / "predictions" / f"{name}.parquet", digest, "`evaluate` and `collect`")
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in _files(folder, RECORDED)}
    for path in _files(folder, (LOGS,)):
        contents[str(path.relative_to(folder))] = thin_log(read_text(path, TRAIN_AGAIN), path).encode()
    if answers := _files(folder, (ANSWERS,)):
        contents[PREDICTIONS] = _joined(folder, answers)
    target.mkdir(parents=True, exist_ok=True)
    with replacing(target / ARCHIVE) as temporary, tarfile.open(temporary, "w:xz", preset=9) as archive:
        for name, content in sorted(contents.items()):
            member = tarfile.TarInfo(name)  # without times or owners: the same results give the same archive
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    for path in _files(target, RENDERED):
        path.unlink()
    for path in _files(folder, RENDERED):
        copy = target / path.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
    return target / ARCHIVE


@contextmanager
def unpacked(results: Path, studies: Iterable[str]) -> Iterator[Path]:
    """Yield a results folder that holds these studies as the workflow writes them: ``results`` itself unless one of
    them is packed there, else a temporary folder with a copy of each, which is removed afterwards."""
    folders = [results / study for study in dict.fromkeys(studies)]
    if not any((folder / ARCHIVE).is_file() for folder in folders):
        yield results
        return
    with tempfile.TemporaryDirectory(prefix="marcos-bench-") as temporary:
        for folder in folders:
            copy = Path(temporary) / folder.name
            if (folder / ARCHIVE).is_file():
                unpack(folder, copy)
            elif folder.is_dir():
                copy.symlink_to(folder.resolve(), target_is_directory=True)
        yield Path(temporary)


def unpack(folder: Path, target: Path) -> None:
    """Restore the results that are packed in ``folder`` in a new folder, as the workflow writes them."""
    if not (folder / ARCHIVE).is_file():
        raise InputError(f"{folder} has no {ARCHIVE}: name a folder that `marcos-bench pack` has written")
    if target.exists():
        raise InputError(f"{target} is there already: name another folder, or remove it first")
    try:
        with report_full_disk(target.parent):
            _copy(folder, target)
            _restore(folder / ARCHIVE, target)
    except BaseException:  # half of it would look like the whole
        shutil.rmtree(target, ignore_errors=True)
        raise


def _copy(folder: Path, target: Path) -> None:
    """Copy what lies beside an archive, but for links that lead nowhere, which some editors make."""
    try:
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(ARCHIVE), ignore_dangling_symlinks=True)
    except shutil.Error as error:  # its argument lists all files that failed: source, target and reason
        source, _, reason = error.args[0][0]
        if os.strerror(errno.ENOSPC) in reason or os.strerror(errno.EDQUOT) in reason:
            raise OSError(errno.ENOSPC, reason) from error
        raise InputError(f"{source} cannot be copied ({reason}): make it readable, or move it away") from error


def studies_of(folder: Path) -> set[str]:
    """Return the names of the studies that made the runs of a collected study."""
    path = folder / COLLECTED
    try:
        return {run["train"]["spec"]["study"] for run in read_json(path)["runs"].values() if run["train"]}
    except (AttributeError, TypeError) as error:
        raise BrokenRecord(f"{path} is no collection of run records: run `marcos-bench collect` again") from error


def refuse_packed(folder: Path) -> None:
    """Raise :class:`InputError` if a study's results are packed: nothing can be rendered into them or scored anew."""
    if (folder / ARCHIVE).is_file():
        raise InputError(
            f"{folder} is packed: `marcos-bench unpack {folder} RESULTS/{folder.name}`, and use --results RESULTS"
        )


def thin_log(log: str, path: Path) -> str:
    """Return a run's log with at most :data:`LOGGED_STEPS` lines of training steps, evenly spaced, of which the last
    is kept. All other lines stay: validations, ends of stages, warnings; but for a last one that a kill cut off.
    ``path``: of the log, for the message if it is broken."""
    lines = log[: log.rfind("\n") + 1].splitlines()
    steps = list[int]()
    for number, line in enumerate(lines):
        try:
            if json.loads(line)["kind"] == "step":  # a loss may be NaN, which JSON itself does not know
                steps.append(number)
        except (ValueError, TypeError, KeyError) as error:
            raise BrokenRecord(f"{path}, line {number + 1}: no entry of a log ({error}): {TRAIN_AGAIN}") from error
    every = -(-len(steps) // LOGGED_STEPS) or 1
    dropped = set(steps) - set(steps[::-1][::every])
    return "".join(f"{line}\n" for number, line in enumerate(lines) if number not in dropped)


def _files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


def _joined(folder: Path, answers: Iterable[Path]) -> bytes:
    """Return all predictions as one Parquet file, which knows the length and the columns of each. Parquet itself does
    not compress it: the archive does, and better."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables, files = [], {}
    for path in answers:
        table = pq.read_table(path)
        files[str(path.relative_to(folder))] = len(table), table.column_names
        tables.append(table.replace_schema_metadata(None))
    table = pa.concat_tables(tables, promote_options="permissive")
    table = table.replace_schema_metadata({"files": json.dumps(files)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="none", row_group_size=len(table))
    return buffer.getvalue()


def _restore(archive: Path, folder: Path) -> None:
    """Restore the files of an archive in ``folder``, each run's predictions in a file of their own."""
    import pyarrow.parquet as pq

    try:
        with tarfile.open(archive) as held:
            held.extractall(folder, filter="data")
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise BrokenRecord(f"{archive} cannot be read ({error}): get the file again") from error
    joined = folder / PREDICTIONS
    if not joined.is_file():
        return
    table = pq.read_table(joined)
    files = (table.schema.metadata or {}).get(b"files")
    if files is None:
        raise BrokenRecord(f"{archive} was packed by an older version: unpack it with that, and pack it again")
    start = 0
    for name, (count, columns) in json.loads(files).items():
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise BrokenRecord(f"{archive} has a file outside its folder ({name}): do not use it")
        predictions = table.slice(start, count).select(columns).replace_schema_metadata(None)
        start += count
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(predictions, folder / name, compression="zstd")
    joined.unlink()
