"""GPU time of training: seconds times the ranks that took them, summed over a run and its warm starts.

A run may train on another number of ranks than the one that it starts from.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from benchmarks.records.results import with_starts
from benchmarks.records.study_records import StudyRecords
from benchmarks.studies.study import Study


def as_trained(records: StudyRecords, block: str, row: str) -> float | None:
    """Return the GPU seconds of a row's training as it ran, or None if they are unknown or it ran on a CPU.

    The ranks are those that the record of each run has: the study may say another number by now.
    """

    def parts(run: str) -> list[float]:
        record = records.runs[run].train
        if record is None or record.ranks is None or record.environment.get("device") == "cpu":
            return []
        return [record.ranks * record.wall_seconds]

    return _mean(records.study, block, row, parts)


def of_an_epoch(records: StudyRecords, block: str, row: str) -> float | None:
    """Return the seconds of one epoch of each training phase, times ranks, or None if they were not measured.

    The ranks are the study's: a time that was measured on another number is not used.
    """

    def parts(run: str) -> list[float]:
        record, ranks = records.runs[run].time, records.study.runs[run].engine.ranks
        return [ranks * phase.epoch_seconds for phase in record.train.phases.values()] if record else []

    return _mean(records.study, block, row, parts)


def _mean(study: Study, block: str, row: str, parts: Callable[[str], list[float]]) -> float | None:
    """Return the mean over training seeds of the sum of all runs' parts. A sum that lacks a run's is left out."""
    found = [[parts(run) for run in with_starts(study, spec)] for spec in study.trainings(block, row)]
    sums = [sum(part for own in runs for part in own) for runs in found if all(runs)]
    return fmean(sums) if sums else None
