"""All data sets, one module for each family. Every data set in ``DATASETS`` of a module here can stand in studies.
Modules whose names begin with an underscore are skipped."""

from __future__ import annotations

from benchmarks.data.sources import DataSet, Generated
from benchmarks.registry import collect

DATASETS: dict[str, DataSet | Generated]
MODULES: dict[str, str]  # an edit of a data set's module has its data prepared anew
DATASETS, MODULES = collect(__name__, __path__, "DATASETS", lambda dataset: dataset.card.name)
