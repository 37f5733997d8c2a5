"""Scorers of answers, a module for each kind of task. Every scorer in ``SCORERS`` of a module here can be named by the
card of a data set. Modules whose names begin with an underscore are skipped."""

from __future__ import annotations

from benchmarks.registry import collect
from benchmarks.scoring.base import Reference, Score, Scorer

OTHERS = ("base", "diversity", "scorers")  # modules that hold no scorer; some of them take long to import

SCORERS: dict[str, Scorer]
MODULES: dict[str, str]  # an edit of a scorer's module has answers scored anew
SCORERS, MODULES = collect(__name__, __path__, "SCORERS", lambda scorer: scorer.name, OTHERS)

__all__ = ["MODULES", "SCORERS", "Reference", "Score", "Scorer"]
