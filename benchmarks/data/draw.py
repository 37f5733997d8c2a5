"""The random draws that generated data are made with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Random draws that are the same in every version of Python: only ``random()`` guarantees that."""

    def __init__(self, seed: str) -> None:
        self.uniform = random.Random(seed).random

    def below(self, n: int) -> int:
        return int(self.uniform() * n)

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]
