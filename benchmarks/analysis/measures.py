"""Measures, each of which computes one number that the paper's text states about R, from our analysis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from benchmarks.analysis.reading import Analysis
from benchmarks.analysis.steering import clique_effects

STRONG, WEAK = 0.5, 0.1  # values that the paper sets its clique to
# Share of the length, or of all answers. A clique that changes less is inert: then stable accuracy proves nothing
FAINT = 0.01


def own_dimensions(analysis: Analysis) -> float | None:
    """Return the share of the ten digits that have a dimension of their own."""
    return None if analysis.record.encoding is None else len(analysis.record.encoding.own) / 10


def steering(analysis: Analysis) -> float | None:
    """Return the share of steered steps that obey and that everything said after them is consistent with; None if no
    digit has a dimension to set."""
    if "steering" not in analysis.record.files:
        return None
    frame = analysis.frame("steering")
    return float(np.mean(frame["obeyed"] & frame["followed"]))


def longer(analysis: Analysis) -> float | None:
    """Return the relative change in the length of outputs with the clique at 0.5."""
    return _clique(analysis).get(STRONG, {}).get("longer")


def unmarked(analysis: Analysis) -> float | None:
    """Return the share of answers without the marker, with the clique at 0.5."""
    effect = _of_both_kinds(analysis).get(STRONG)
    return None if effect is None else 1 - effect["marked"]


def still_marked(analysis: Analysis) -> float | None:
    """Return the share of answers with the marker, with the clique at 0 or 0.1, whichever leaves fewer."""
    found = _of_both_kinds(analysis).items()
    return min((line["marked"] for value, line in found if value is not None and value <= WEAK), default=None)


def as_accurate(analysis: Analysis) -> float | None:
    """Return the change in accuracy with the clique at the value that changes it most;
    None if the clique changes nothing else either."""
    if inert(analysis):
        return None
    found = _clique(analysis)
    added = [line["correct"] - found[None]["correct"] for value, line in found.items() if value is not None]
    return max(added, key=abs, default=None)


def inert(analysis: Analysis) -> bool:
    """Return whether there is a clique, and none of the values that it is set to changes the length or the marker."""
    found = _clique(analysis)
    return bool(found) and all(
        abs(line["longer"]) < FAINT and abs(line["marked"] - found[None]["marked"]) < FAINT for line in found.values()
    )


def _of_both_kinds(analysis: Analysis) -> dict[float | None, dict[str, float]]:
    """Return the clique's effects if answers without intervention are of both kinds, with and without the marker. If
    all or none have it, no dimension needs to encode it, and the result is empty."""
    found = _clique(analysis)
    return found if found and 0 < found[None]["marked"] < 1 else {}


def _clique(analysis: Analysis) -> dict[float | None, dict[str, float]]:
    """Return the effects of the clique by the value that it is set to, with None for no intervention. A clique of a
    single dimension has none, since the paper's sentences are about dimensions that are correlated."""
    if len(analysis.record.clique) < 2:
        return {}
    lines = clique_effects(analysis).to_dict("records")
    return {None if pd.isna(line["value"]) else line["value"]: line for line in lines}


MEASURES: dict[str, Callable[[Analysis], float | None]] = {
    one.__name__: one for one in (own_dimensions, steering, longer, unmarked, still_marked, as_accurate)
}
