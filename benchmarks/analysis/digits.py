"""Random Summation: which digit each step drew, which dimension of R stands for it, and whether setting that dimension
steers the step (paper, section on synthetic tasks)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from benchmarks.analysis.saying import Said, Speaker
from benchmarks.data import TestSet
from methods.base import Decoding, Intervention

TASK = "rs"  # how the names of its data sets begin
DIGITS = range(10)
NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Encoding:
    """``matrix``: (10, D) mean of R over the steps that drew each digit. ``dims`` and ``values``: the dimension that
    stands for a digit, one for each, and its mean there; None for digits that were never drawn. ``agreement``: share of
    steps whose largest dimension is that of their digit."""

    matrix: np.ndarray
    dims: list[int | None]
    values: list[float | None]
    agreement: float


def is_summation(test: TestSet) -> bool:
    """Whether a test set is of this task, by its name."""
    return test.name.split("_")[0] == TASK


def drawn(before: str, after: str) -> int | None:
    """The digit that was added to all numbers, or None where no digit explains the second sequence."""
    old, new = (NUMBER.findall(text) for text in (before, after))
    differences = {int(b) - int(a) for a, b in zip(old, new, strict=False)}
    if len(old) != len(new) or len(differences) != 1:
        return None
    digit = differences.pop()
    return digit if digit in DIGITS else None


def sums_up(sequence: str, equation: str) -> bool:
    """Whether the equation is the right sum of the sequence's first two numbers."""
    a, b = (int(number) for number in NUMBER.findall(sequence)[:2])
    said = re.sub(r"\s", "", equation)
    return re.fullmatch(rf"#*{a}\+{b}={a + b}", said) is not None


def drawn_digits(test: TestSet, said: Said) -> np.ndarray:
    """(N, K - 1) digits, -1 where a step has none."""
    rows = []
    for question, steps in zip(test.texts, said.steps, strict=True):
        found = [drawn(*pair) for pair in pairwise([question, *steps[:-1]])]  # the last step is an equation
        rows.append([-1 if digit is None else digit for digit in found])
    return np.array(rows)


def encoding(latents: np.ndarray, digits: np.ndarray) -> Encoding:
    """From R (N, K, D) and the digits (N, K - 1) that its steps drew."""
    values = latents[:, : digits.shape[1]][digits >= 0]
    known = digits[digits >= 0]
    seen = [digit for digit in DIGITS if (known == digit).any()]
    matrix = np.full((10, latents.shape[-1]), np.nan)
    for digit in seen:
        matrix[digit] = values[known == digit].mean(0)
    dims: list[int | None] = [None] * 10
    if seen:  # what sets a digit apart from the others, so that a dimension that is always on stands for none
        apart = matrix[seen] - matrix[seen].mean(0)
        for row, dim in zip(*linear_sum_assignment(-apart), strict=True):
            dims[seen[row]] = int(dim)
    chosen = [dim for dim in dims if dim is not None]
    largest = np.array(chosen)[values[:, chosen].argmax(1)] if chosen else np.zeros(0)
    expected = np.array([dims[digit] for digit in known])
    found = [None if dim is None else float(matrix[digit, dim]) for digit, dim in enumerate(dims)]
    return Encoding(matrix, dims, found, float((largest == expected).mean()) if len(known) else 0.0)


def steer(speaker: Speaker, test: TestSet, decoding: Decoding, encoded: Encoding, steps: int) -> pd.DataFrame:
    """One line per question, steered step and digit: whether the step adds that digit (``obeyed``) and whether all
    that follows is consistent with it (``followed``). The digit's dimension gets its mean value, the others' 0."""
    frames = []
    for step in range(1, steps):
        for digit, dim in enumerate(encoded.dims):
            if dim is None:
                continue
            others = tuple(other for other in encoded.dims if other not in (None, dim))
            value = encoded.values[digit]
            assert value is not None
            by_hand = (Intervention(others, 0.0, step), Intervention((dim,), value, step))
            said = speaker.say(test.questions, replace(decoding, interventions=by_hand))
            digits = drawn_digits(test, said)
            ends = [sums_up(steps[-2], steps[-1]) for steps in said.steps]
            frames.append(
                pd.DataFrame(
                    {
                        "test": test.name,
                        "id": test.ids,
                        "step": step,
                        "digit": digit,
                        "obeyed": digits[:, step - 1] == digit,
                        "followed": (digits[:, step:] >= 0).all(1) & np.array(ends),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
