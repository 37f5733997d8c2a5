"""What the paper's text says in one number of its analyses of R, measured in one of ours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.analysis.reading import Analysis
from benchmarks.analysis.steering import effects

STRONG, WEAK = 0.5, 0.1  # values that the paper sets its clique to


def own_dimensions(analysis: Analysis) -> float | None:
    """Share of the ten digits."""
    return None if analysis.record.encoding is None else len(analysis.record.encoding.own) / 10


def steering(analysis: Analysis) -> float | None:
    """Share of steps set by hand that obey and that all later steps follow from."""
    if analysis.record.encoding is None:
        return None
    frame = analysis.frame("steering")
    return float(np.mean(frame["obeyed"] & frame["followed"]))


def longer(analysis: Analysis) -> float | None:
    """What the clique at 0.5 adds to the length of outputs, as a share of it."""
    return _clique(analysis).get(STRONG, {}).get("longer")


def unmarked(analysis: Analysis) -> float | None:
    """Share of answers without the marker, the clique at 0.5."""
    effect = _clique(analysis).get(STRONG)
    return None if effect is None else 1 - effect["marked"]


def still_marked(analysis: Analysis) -> float | None:
    """Share of answers with the marker, the clique at 0 or 0.1, whichever leaves fewer."""
    found = _clique(analysis).items()
    return min((line["marked"] for value, line in found if value is not None and value <= WEAK), default=None)


def as_accurate(analysis: Analysis) -> float | None:
    """What the clique at 0.5 adds to accuracy."""
    found = _clique(analysis)
    return found[STRONG]["correct"] - found[None]["correct"] if STRONG in found else None


def _clique(analysis: Analysis) -> dict[float | None, dict[str, float]]:
    """Effects of the clique by the value that it is set to, None where it is not; none of a single dimension."""
    clique = analysis.record.clique
    if len(clique) < 2:
        return {}
    frame = analysis.frame("interventions")
    own = frame.loc[(frame["setting"] == "") | (frame["dims"] == ",".join(map(str, clique)))]
    lines = effects(own).to_dict("records")
    return {float(line["setting"].split(" = ")[-1]) if line["setting"] else None: line for line in lines}


MEASURES: dict[str, Callable[[Analysis], float | None]] = {
    one.__name__: one for one in (own_dimensions, steering, longer, unmarked, still_marked, as_accurate)
}
