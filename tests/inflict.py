"""Small runs and faults. Each fault is armed in the process that trains, and strikes there during training."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.loop import train
from small import MARCOS, small_study

ROWS = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos", "options": MARCOS}]
STEPS = 20  # of each run; the last 10 of MarCos's are its second phase

# Runs that will be killed use processes of their own, forked from a server that has imported everything and run nothing
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["benchmarks.training.loop", "methods.registry"])

Fault = Callable[[int], None]


def run_of(row: str, **settings: Any) -> RunSpec:
    return small_study(ROWS, training=settings).runs[f"equation/{row}/s0"]


def nth_call(owner: Any, name: str, count: int, act: Callable[..., None], chosen: Callable[..., bool] | None = None):
    """Replace a function by one that first calls ``act`` at its ``count``-th call (only ``chosen`` calls count)."""
    real, calls = getattr(owner, name), [0]

    def counting(*arguments: Any, **settings: Any) -> Any:
        counts = chosen is None or chosen(*arguments)
        calls[0] += counts
        if counts and calls[0] == count:
            act(*arguments)
        return real(*arguments, **settings)

    setattr(owner, name, counting)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_step(count: int) -> None:
    nth_call(torch.optim.AdamW, "step", count, die)


def _train(fault: Fault, count: int, spec: RunSpec, results: Path) -> None:
    os.chdir(results)
    fault(count)
    train(spec, results)


def exit_code(fault: Fault, count: int, spec: RunSpec, results: Path) -> int | None:
    child = FORKS.Process(target=_train, args=(fault, count, spec, results))
    child.start()
    child.join()
    return child.exitcode


def saved(spec: RunSpec, results: Path) -> list[int]:
    """Return the steps of the resumable checkpoints."""
    return sorted(int(path.name.split("-")[1]) for path in Paths(results, spec).checkpoints.glob("step-*"))


def logged(spec: RunSpec, results: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log without times."""
    lines = (Paths(results, spec).run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]
