"""Whether the planned runs of a study can run at all: in the memory of the GPUs, and on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.files import gigabytes
from benchmarks.plan.hardware import GPU
from benchmarks.plan.run_plan import RunPlan


def refusals(plans: Sequence[RunPlan], gpu: GPU, results: Path) -> list[str]:
    """Return the reasons why the study cannot run as it is, with fixes. The list is empty if it can."""
    found = []
    if large := [made.run.id for made in plans if not made.fits(gpu)]:
        found.append(f"DOES NOT FIT into the memory of {gpu.name}: {', '.join(large)}; the table says what to change")
    needed, free = disk_needed(plans), disk_free(results)
    if needed > free:
        found.append(
            f"TOO LITTLE DISK: all runs, one after the other, take {gigabytes(needed)} in {results}, and "
            f"{gigabytes(free)} are free: make room there, or name another folder with --results"
        )
    return found


def disk_needed(plans: Sequence[RunPlan], together: int = 1) -> float:
    """Return the bytes that all runs take if ``together`` of them train at a time: what each run leaves, and what the
    largest ones need in addition while they train."""
    training = sorted((made.disk - made.left for made in plans), reverse=True)[:together]
    return sum(training) + sum(made.left for made in plans)


def disk_free(results: Path) -> int:
    """Return the bytes that are free at the folder's place, even if the folder does not exist yet."""
    folder = next(folder for folder in (results.resolve(), *results.resolve().parents) if folder.exists())
    return shutil.disk_usage(folder).free
