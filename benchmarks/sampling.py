"""Samples that stand for all: which of many things are counted or timed where that of all would take too long."""

from __future__ import annotations

import numpy as np


def spread_over(length: int, count: int) -> np.ndarray:
    """``count`` indices spread evenly over ``range(length)``, from the middle of each part; or all of them."""
    count = min(count, length)
    return ((np.arange(count) + 0.5) * length / count).astype(int)
