"""What generated data are drawn with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Draws whose stream is the same in every version of Python: only ``random()`` promises that."""

    def __init__(self, seed: str) -> None:
        self.uniform = random.Random(seed).random

    def below(self, n: int) -> int:
        return int(self.uniform() * n)

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]
