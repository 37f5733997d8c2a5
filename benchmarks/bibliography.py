"""Whose work a study stands on, for the paper that reports it."""

from __future__ import annotations

from benchmarks.data import get_dataset
from benchmarks.studies.study import Study
from methods.registry import get_method


def citations(study: Study) -> list[str]:
    """BibTeX entries of the methods that a study trains (what rows start from included), of the data it trains on and
    of its test sets, each once. Generated data have none."""
    methods = [get_method(run.method).citation for run in study.runs.values()]
    names = [name for block in study.blocks for name in (block.data.train, *study.tests_of(block))]
    return [entry for entry in dict.fromkeys([*methods, *(get_dataset(name).card.citation for name in names)]) if entry]
