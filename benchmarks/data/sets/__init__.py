"""All data sets, one module for each family. Every data set in ``DATASETS`` of a module here can stand in studies.
Modules whose names begin with an underscore are skipped."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from benchmarks.data.records import DataError
from benchmarks.data.sources import DataSet, Generated

DATASETS: dict[str, DataSet | Generated] = {}
MODULES: dict[str, str] = {}  # the module of each data set, dotted: an edit of it makes prepared data outdated

for _module in sorted(f"{__name__}.{info.name}" for info in iter_modules(__path__) if not info.name.startswith("_")):
    _found = getattr(import_module(_module), "DATASETS", None)
    if _found is None:
        raise DataError(f"{_module} has no `DATASETS`: give it a tuple of its data sets")
    for _dataset in _found:
        if (_name := _dataset.card.name) in DATASETS:
            raise DataError(f"{_module} and {MODULES[_name]} both have a data set {_name!r}: rename one of them")
        DATASETS[_name], MODULES[_name] = _dataset, _module
