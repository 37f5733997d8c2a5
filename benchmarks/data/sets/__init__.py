"""All data sets, one module for each family. Every data set in ``DATASETS`` of a module here can stand in studies.
Modules whose names begin with an underscore are skipped."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from benchmarks.data.records import DataError
from benchmarks.data.sources import DataSet, Generated


def _collect() -> dict[str, tuple[DataSet | Generated, str]]:
    """Return all data sets by name, each with the module that it is in."""
    found: dict[str, tuple[DataSet | Generated, str]] = {}
    for name in sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_")):
        module = f"{__name__}.{name}"
        for dataset in import_module(module).DATASETS:
            if clash := found.get(dataset.card.name):
                raise DataError(
                    f"{module} and {clash[1]} both have a data set {dataset.card.name!r}: rename one of them"
                )
            found[dataset.card.name] = dataset, module
    return found


_FOUND = _collect()
DATASETS = {name: dataset for name, (dataset, _) in _FOUND.items()}
MODULES = {name: module for name, (_, module) in _FOUND.items()}  # dotted: an edit of it has data prepared anew
