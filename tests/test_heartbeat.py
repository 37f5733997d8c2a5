"""The reports of ranks about themselves, and the rank that is named when one dies or hangs."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.files import read_json, write_json
from benchmarks.processes import heartbeat as heartbeat_module
from benchmarks.processes import launch
from benchmarks.processes.heartbeat import (
    FINISHED,
    Beat,
    Heartbeat,
    RankFailure,
    read_beat,
    request_stop,
    stop,
    stragglers,
)
from benchmarks.processes.launch import Watch, alive, empty_folder, free_port
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import EngineSpec
from conftest import ROOT, needs_deepspeed
from small import small_study


def until(happened: Callable[[], object], seconds: float = 20.0) -> None:
    last = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < last
        time.sleep(0.05)


def ended_process() -> subprocess.Popen[bytes]:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended


def write_beat(folder: Path, number: int, pid: int, failed: float, code: int) -> None:
    """Write what a rank said last, which failed then with this exit code (0.0: it said nothing of an end)."""
    beat = Beat(number, socket.gethostname(), pid, 7, "forward pass", 1, failed, code)
    write_json(folder / f"rank-{number}.beat", vars(beat))


def test_ranks_that_are_behind_are_named() -> None:
    beats = [Beat(number, "host", number, count, "forward pass", 1) for number, count in enumerate((7, 6, 7))]
    assert stragglers(beats, still=set()) == [beats[1]]
    together = [Beat(number, "host", number, 7, "update", 1) for number in range(3)]
    assert stragglers(together, still={2}) == [together[2]]
    assert stragglers(together, still=set()) == together


def test_a_rank_that_was_killed_is_named_before_those_that_failed_for_it(tmp_path: Path) -> None:
    """The killed rank is named even though it is the last in order.

    All ranks have ended when the parent looks. Without a killed rank, the first that failed is named. Its exit code
    counts, whatever the launcher saw first.
    """
    for number, failed in enumerate((20.0, 10.0, 0.0)):
        write_beat(tmp_path, number, ended_process().pid, failed, number + 1)
    launcher = subprocess.Popen([sys.executable, "-c", "raise SystemExit(247)"], start_new_session=True)
    launcher.wait()
    with pytest.raises(RankFailure, match=r"rank 2 \(process \d+ on .*: ended by SIGKILL"):
        Watch(launcher, tmp_path, EngineSpec(kind="deepspeed", gpus=3)).until_done()
    (tmp_path / "rank-2.beat").unlink()
    with pytest.raises(RankFailure, match=r"rank 1 \(process.*ended with exit code 2") as failure:
        Watch(launcher, tmp_path, EngineSpec(kind="deepspeed", gpus=2)).until_done()
    assert failure.value.code == 2


def test_what_a_rank_died_of_is_told_whatever_the_launcher_saw_first(tmp_path: Path) -> None:
    """Here the launcher saw the other rank first, which failed at once because its peer was missing."""
    killed, failed = (subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2))
    killed.kill()
    failed.kill()
    failed.wait()
    until(lambda: not alive(killed.pid))
    for number, (pid, time_of, code) in enumerate(((failed.pid, 20.0, 1), (killed.pid, 0.0, 0))):
        write_beat(tmp_path, number, pid, time_of, code)
    launcher = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"], start_new_session=True)
    with pytest.raises(RankFailure, match=r"rank 1 \(process \d+ on .*: ended by SIGKILL") as failure:
        Watch(launcher, tmp_path, EngineSpec(kind="deepspeed", gpus=2)).until_done()
    assert failure.value.code == 128 + killed.wait() * -1


def test_a_rank_that_ended_without_a_word_was_killed_though_the_launcher_has_cleared_it_away(tmp_path: Path) -> None:
    """Its status is gone, and the launcher passes on that of the rank that failed because of it."""
    for number, (failed, code) in enumerate(((20.0, 1), (0.0, 0))):
        write_beat(tmp_path, number, ended_process().pid, failed, code)
    launcher = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"], start_new_session=True)
    launcher.wait()
    with pytest.raises(RankFailure, match=r"rank 1 \(process \d+ on .*: ended by a signal .* SIGKILL") as failure:
        Watch(launcher, tmp_path, EngineSpec(kind="deepspeed", gpus=2)).until_done()
    assert failure.value.code == 128 + signal.SIGKILL  # so the workflow tries again


def test_a_rank_that_failed_first_is_named_though_it_leaves_last(tmp_path: Path) -> None:
    ended = ended_process()
    for number, (pid, failed) in enumerate(((ended.pid, 20.0), (os.getpid(), 10.0), (os.getpid(), 0.0))):
        write_beat(tmp_path, number, pid, failed, 2 * number)
    with pytest.raises(RankFailure, match=r"rank 1 \(process.*ended with exit code 2") as failure:
        Watch(ended, tmp_path, EngineSpec(kind="deepspeed", gpus=3)).until_done()  # type: ignore[arg-type]
    assert failure.value.code == 2


@pytest.mark.parametrize("launcher", ["import time; time.sleep(600)", "raise SystemExit(1)"])
def test_ranks_that_are_done_need_no_launcher(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.5)
    for number in range(2):
        beat = Beat(number, socket.gethostname(), ended_process().pid, 9, FINISHED, 1)
        write_json(tmp_path / f"rank-{number}.beat", vars(beat))
    started = subprocess.Popen([sys.executable, "-c", launcher], start_new_session=True)
    watch = Watch(started, tmp_path, EngineSpec(kind="deepspeed", gpus=2))
    watch.until_done()
    watch.kill()
    assert started.wait() in (1, -signal.SIGKILL)


@needs_deepspeed
def test_a_rank_that_an_error_ends_says_so(tmp_path: Path) -> None:
    """Other ranks fail in turn. That it was not a signal shows which of them was the first to end."""
    spec = small_study([{"id": "cot_sft", "method": "cot_sft"}]).runs["equation/cot_sft/s0"]
    (tmp_path / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
    write_json(tmp_path / heartbeat_module.ENVIRONMENT_FILE, {})
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    words = ["--folder", str(tmp_path), "--results", str(tmp_path / "nothing")]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.rank", "train", *words, "--parent", f"{os.getpid()}@{socket.gethostname()}"],
        env={**os.environ, **alone, "MASTER_PORT": str(free_port()), "PYTHONPATH": str(ROOT)},
        check=False,
    )
    beat = read_beat(tmp_path, 0)
    assert ended.returncode == 2 and "error: " in (tmp_path / "rank-0.log").read_text(encoding="utf-8")
    assert beat and beat.failed > 0 and beat.code == 2 and beat.where != "done"


def test_a_heart_goes_on_when_a_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = Heartbeat(tmp_path, 0)
    with monkeypatch.context() as patch:
        missed: list[object] = []

        def full(*_: object) -> None:
            missed.append(None)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(heartbeat_module.json, "dumps", full)
        heartbeat.fail(1)  # reports nothing, and must not hide an error by raising another
        until(lambda: len(missed) > 2)
    heartbeat.beat("step 7")
    until(lambda: (beat := read_beat(tmp_path, 0)) and beat.where == "step 7")
    heartbeat.done()


def test_a_rank_is_told_to_go_however_late_it_begins(tmp_path: Path) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    request_stop(tmp_path)
    heartbeat = Heartbeat(tmp_path, 0)
    try:
        until(lambda: told)
        beats = heartbeat.last.written
        until(lambda: heartbeat.last.written > beats + 2)
        assert told == [signal.SIGTERM]  # once: a second signal would be nothing new
    finally:
        heartbeat.done()
        signal.signal(signal.SIGTERM, before)


GIVEN_UP = """
import sys, time
from pathlib import Path
from benchmarks.processes.heartbeat import Heartbeat
Heartbeat(Path(sys.argv[1]), 0)
time.sleep(60)
"""


@pytest.mark.parametrize("given_up", [stop, empty_folder], ids=["stopped", "another try"])
def test_a_rank_that_no_signal_reaches_ends_when_it_is_given_up(
    given_up: Callable[[Path], None], tmp_path: Path
) -> None:
    """This happens on another machine. The rank must not go on writing under its number during the next try."""
    folder = tmp_path / "ranks"
    empty_folder(folder)
    rank = subprocess.Popen([sys.executable, "-c", GIVEN_UP, str(folder)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    until(lambda: (beat := read_beat(folder, 0)) and beat.written > 1)
    given_up(folder)
    assert rank.wait(20) == 1
    assert given_up is stop or not list(folder.iterdir())


@needs_deepspeed
@pytest.mark.parametrize("gpus", ["-1", "0"])
def test_ranks_see_what_their_parent_was_told_and_no_secret(
    gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner over a hostfile passes on almost nothing of its environment, and a launcher sets GPUs itself."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setenv("HF_HOME", "/shared/models")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr(launch, "command", lambda *_: [sys.executable, "-c", "raise SystemExit(1)"])
    spec = small_study([{"id": "cot_sft", "method": "cot_sft"}]).runs["equation/cot_sft/s0"]
    with pytest.raises(RankFailure):
        launch.run_ranks(spec, tmp_path, "train")
    carried = read_json(Paths(tmp_path, spec).ranks / "train" / heartbeat_module.ENVIRONMENT_FILE)
    assert carried["HF_HOME"] == "/shared/models" and carried["OMP_NUM_THREADS"] == "1" and "HF_TOKEN" not in carried
    assert carried["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert carried.get("CUDA_VISIBLE_DEVICES") == ("" if gpus == "-1" else None)


def test_logs_of_the_try_before_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "ranks/train"
    for text in ("first", "second", "third"):
        empty_folder(folder)
        assert not list(folder.iterdir())
        (folder / "rank-0.log").write_text(text, encoding="utf-8")
    assert (tmp_path / "ranks/train-before/rank-0.log").read_text(encoding="utf-8") == "second"


def test_a_heartbeat_tells_how_far_a_rank_is(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, 3)
    heartbeat.beat("forward pass")
    heartbeat.done()
    beat = read_beat(tmp_path, 3)
    assert beat and (beat.count, beat.where, beat.pid) == (2, "done", os.getpid())
    assert read_beat(tmp_path, 0) is None


TAKES_OVER = """
import sys
from benchmarks import rank

def complete_environment(*_):
    import torch
    print(torch.get_num_threads())
    sys.exit()

rank.complete_environment = complete_environment
rank.main()
"""


def test_a_rank_takes_over_variables_before_torch_reads_them(tmp_path: Path) -> None:
    spec = small_study([{"id": "cot_sft", "method": "cot_sft"}]).runs["equation/cot_sft/s0"]
    (tmp_path / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
    write_json(tmp_path / heartbeat_module.ENVIRONMENT_FILE, {"OMP_NUM_THREADS": "1"})
    done = subprocess.run(
        [sys.executable, "-c", TAKES_OVER, "train", "--folder", tmp_path, "--results", tmp_path, "--parent", "1@here"],
        env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)},
        encoding="utf-8",
        capture_output=True,
    )
    assert done.stdout == "1\n", done.stderr
