"""Each measure: one number that the paper's text states about R, computed from our analysis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from benchmarks.analysis.reading import Analysis
from benchmarks.analysis.steering import clique_effects

STRONG, WEAK = 0.5, 0.1  # values that the paper sets its clique to
# Of the length, or of all answers: a clique that changes less changes nothing that answers could withstand
FAINT = 0.01


def own_dimensions(analysis: Analysis) -> float | None:
    """Share of the ten digits that have a dimension of their own."""
    return None if analysis.record.encoding is None else len(analysis.record.encoding.own) / 10


def steering(analysis: Analysis) -> float | None:
    """Share of steps set by hand that obey and that all later steps follow from; None where no digit has a dimension
    to set."""
    if "steering" not in analysis.record.files:
        return None
    frame = analysis.frame("steering")
    return float(np.mean(frame["obeyed"] & frame["followed"]))


def longer(analysis: Analysis) -> float | None:
    """What the clique at 0.5 adds to the length of outputs, as a share of it."""
    return _clique(analysis).get(STRONG, {}).get("longer")


def unmarked(analysis: Analysis) -> float | None:
    """Share of answers without the marker, the clique at 0.5."""
    effect = _of_both_kinds(analysis).get(STRONG)
    return None if effect is None else 1 - effect["marked"]


def still_marked(analysis: Analysis) -> float | None:
    """Share of answers with the marker, the clique at 0 or 0.1, whichever leaves fewer."""
    found = _of_both_kinds(analysis).items()
    return min((line["marked"] for value, line in found if value is not None and value <= WEAK), default=None)


def as_accurate(analysis: Analysis) -> float | None:
    """What the clique adds to accuracy, at the value where that is furthest from nothing; None where it changes
    nothing else either."""
    if inert(analysis):
        return None
    found = _clique(analysis)
    added = [line["correct"] - found[None]["correct"] for value, line in found.items() if value is not None]
    return max(added, key=abs, default=None)


def inert(analysis: Analysis) -> bool:
    """Whether there is a clique, and no value that it is set to changes length or marker."""
    found = _clique(analysis)
    return bool(found) and all(
        abs(line["longer"]) < FAINT and abs(line["marked"] - found[None]["marked"]) < FAINT for line in found.values()
    )


def _of_both_kinds(analysis: Analysis) -> dict[float | None, dict[str, float]]:
    """The clique's effects where answers are left to have the marker or not: where all have it, or none, no dimension
    need say so."""
    found = _clique(analysis)
    return found if found and 0 < found[None]["marked"] < 1 else {}


def _clique(analysis: Analysis) -> dict[float | None, dict[str, float]]:
    """Effects of the clique by the value that it is set to, None where it is not. The paper's sentences are about
    dimensions that are correlated, so there are none of a single dimension."""
    if len(analysis.record.clique) < 2:
        return {}
    lines = clique_effects(analysis).to_dict("records")
    return {None if pd.isna(line["value"]) else line["value"]: line for line in lines}


MEASURES: dict[str, Callable[[Analysis], float | None]] = {
    one.__name__: one for one in (own_dimensions, steering, longer, unmarked, still_marked, as_accurate)
}
