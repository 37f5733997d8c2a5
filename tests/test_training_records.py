"""A run's log has every step before a checkpoint, and each only once."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.training.records import RunLog


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_are_in_the_file_once_they_are_flushed(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in (1, 2):
        log.add({"step": step})
    log.flush()
    log.add({"step": 3})
    assert steps(log.path) == [1, 2]
    log.flush()
    log.flush()
    assert steps(log.path) == [1, 2, 3]


def test_what_a_resumed_run_will_write_again_is_dropped(tmp_path: Path) -> None:
    """A line that was cut off when the run was killed is dropped too, even if it looks complete."""
    log = RunLog(tmp_path / "log.jsonl")
    log.truncate(0)  # there is no log yet
    for step in (1, 2, 3):
        log.add({"step": step, "terms": {"loss": 0.5}})
    log.flush()
    with log.path.open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "terms": {"loss": 0.5}')
    log.truncate(2)
    assert steps(log.path) == [1, 2]
    log.truncate(0)
    assert log.path.read_text(encoding="utf-8") == ""


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n', encoding="utf-8")
    other = RunLog(path, silent=True)
    other.add({"step": 2})
    other.flush()
    other.truncate(0)
    assert steps(path) == [1]
