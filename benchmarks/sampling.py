"""Representative samples: which of many things are counted or timed, if all of them would take too long."""

from __future__ import annotations

import numpy as np


def spread_over(length: int, count: int) -> np.ndarray:
    """Return ``count`` indices spread evenly over ``range(length)``, from the middle of
    each part; at most ``length``."""
    count = min(count, length)
    return ((np.arange(count) + 0.5) * length / count).astype(int)
