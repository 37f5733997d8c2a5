"""Random Summation: which digit each step drew, which dimension of R stands for it, and whether setting that dimension
steers the step (paper, section on synthetic tasks)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from benchmarks.analysis.judging import judged, readable, scorer_of
from benchmarks.analysis.saying import Said, Speaker
from benchmarks.data import TestSet
from benchmarks.scoring import Asked
from benchmarks.scoring.sequences import Summation
from methods.base import Decoding, Intervention

DIGITS = range(10)


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
    """Whether a test set is of this task."""
    return isinstance(scorer_of(test.name), Summation)


def drawn_digits(test: TestSet, said: Said) -> np.ndarray:
    """(N, K - 1) digits, -1 where a step is explained by none."""
    scores = judged(test, readable(test, said))
    return np.array([[-1 if digit is None else int(digit) for digit in score.draws] for score in scores])


def follows(steps: list[str], step: int) -> bool:
    """Whether all that is said after a step follows from it: a problem of its own, whose question is that step."""
    return Summation().score("\n".join(steps[step:]), Asked(steps[step - 1], "", len(steps) - 1 - step)).correct


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
            frames.append(
                pd.DataFrame(
                    {
                        "test": test.name,
                        "id": test.ids,
                        "step": step,
                        "digit": digit,
                        "obeyed": digits[:, step - 1] == digit,
                        "followed": [follows(lines, step) for lines in said.steps],
                    }
                )
            )
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
