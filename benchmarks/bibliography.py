"""BibTeX entries for papers that report a study: the work that the study builds on."""

from __future__ import annotations

from benchmarks.data import get_dataset
from benchmarks.studies.study import Study
from methods.registry import get_method


def citations(study: Study) -> list[str]:
    """Return the BibTeX entries that a study should cite, each once: its methods (including those that rows start
    from), its training data and its test sets. Generated data have no entry."""
    methods = [get_method(run.method).citation for run in study.runs.values()]
    names = [name for block in study.blocks for name in (block.data.train, *study.tests_of(block))]
    return [entry for entry in dict.fromkeys([*methods, *(get_dataset(name).card.citation for name in names)]) if entry]
