"""Scorers of answers, a module for each kind of task. Every scorer in ``SCORERS`` of a module here can be named by the
card of a data set. Modules whose names begin with an underscore are skipped."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from benchmarks.scoring.base import Reference, Score, Scorer
from methods.errors import InputError

OTHERS = ("base", "diversity", "scorers")  # modules that hold no scorer; some of them take long to import


def _collect() -> dict[str, tuple[Scorer, str]]:
    """Return all scorers by name, each with the module that it is in."""
    found: dict[str, tuple[Scorer, str]] = {}
    names = sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_"))
    for module in (f"{__name__}.{name}" for name in names if name not in OTHERS):
        for scorer in import_module(module).SCORERS:
            if clash := found.get(scorer.name):
                raise InputError(f"{module} and {clash[1]} both have a scorer {scorer.name!r}: rename one of them")
            found[scorer.name] = scorer, module
    return found


_FOUND = _collect()
SCORERS = {name: scorer for name, (scorer, _) in _FOUND.items()}
MODULES = {name: module for name, (_, module) in _FOUND.items()}  # dotted: an edit of it has answers scored anew

__all__ = ["MODULES", "SCORERS", "Reference", "Score", "Scorer"]
