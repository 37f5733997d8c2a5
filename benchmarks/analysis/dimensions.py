"""What the dimensions of R carry.

Patterns: which are active, how often, and which are active together (paper, "How does R control ...").
Random Summation: which digit each step drew, which dimension encodes it, and whether setting that dimension steers the
step (paper, section on synthetic tasks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from benchmarks.data import TestSet
from benchmarks.scoring import Reference, Score
from benchmarks.scoring.base import integers
from benchmarks.scoring.scorers import scorer_of
from benchmarks.scoring.synthetic import Summation
from benchmarks.studies.specs import AnalysisSpec
from methods.base import Example
from methods.generation import Intervention

if TYPE_CHECKING:
    from benchmarks.analysis.responses import Responses, TrainedModel


@dataclass(frozen=True)
class Patterns:
    """The activity of dimensions."""

    frequency: np.ndarray  # (D,) share of samples in which each dimension is active
    frequent: list[int]  # the most frequent dimensions, in descending order
    clique: list[int]  # the largest set of these in which every two are correlated, or one dimension if no two are


def patterns(values: np.ndarray, settings: AnalysisSpec) -> Patterns:
    """Return the patterns of (N, D) samples: R at every step of every question."""
    frequency = (values > settings.active_above).mean(0)
    frequent = most_frequent(frequency, settings.frequent_share, settings.frequent_at_least)
    graph = correlation_graph(correlations(values, frequent), frequent, settings.correlated_above)
    return Patterns(frequency, frequent, largest_clique(graph, frequency))


def most_frequent(frequency: np.ndarray, share: float, at_least: int) -> list[int]:
    """Return the dimensions that are active most often: a ``share`` of all, but no fewer than ``at_least``. Dimensions
    that are never active are left out."""
    count = max(math.ceil(share * len(frequency)), at_least)
    order = np.argsort(-frequency, kind="stable")[:count]
    return [int(dim) for dim in order if frequency[dim] > 0]


def correlations(values: np.ndarray, dims: Sequence[int]) -> np.ndarray:
    """Return (n, n) Pearson correlations, which are 0 with a dimension that never changes. They are computed in
    float64: in float32, which R has, sums differ between CPUs in digits that are recorded."""
    found = pd.DataFrame(values[:, list(dims)].astype(np.float64)).corr().fillna(0.0).to_numpy(copy=True)
    np.fill_diagonal(found, 1.0)
    return found


def correlation_graph(correlation: np.ndarray, dims: Sequence[int], above: float) -> nx.Graph:
    """Return a graph of dimensions, with an edge between two that correlate by more than ``above``."""
    graph = nx.from_numpy_array(np.triu(correlation > above, k=1).astype(int))
    return nx.relabel_nodes(graph, dict(enumerate(dims)))


def largest_clique(graph: nx.Graph, frequency: np.ndarray) -> list[int]:
    """Return the largest clique; of several of that size, the one with the highest total frequency."""
    counts = {dim: round(1e6 * float(frequency[dim])) for dim in graph}
    heavy = 1 + sum(counts.values())  # one more node outweighs all frequencies together
    nx.set_node_attributes(graph, {dim: heavy + count for dim, count in counts.items()}, "weight")
    found, _ = nx.max_weight_clique(graph, weight="weight")
    return sorted(found)


@dataclass(frozen=True)
class Encoding:
    """How R encodes the drawn digits."""

    matrix: np.ndarray  # (10, D) mean of R over the steps that drew each digit
    dims: list[int | None]  # each digit's own dimension, None if it has none
    values: list[float | None]  # the digit's mean there
    # Share of a digit's steps in which, of the dimensions that fit each digit best, its own is the largest; None: never
    # drawn
    agreement: list[float | None]


def is_summation(test: TestSet) -> bool:
    return isinstance(scorer_of(test.name), Summation)


def drawn_digits(test: TestSet, responses: Responses) -> np.ndarray:
    """Return (N, K - 1) digits that the steps drew, with -1 for a step that no digit explains."""
    return _digits(responses.scores(test))


def digits_of(
    examples: Sequence[Example], asked: Sequence[Reference], text: Callable[[Sequence[int]], str]
) -> np.ndarray:
    """Return (N, K - 1) digits that the examples' own steps drew. They answer ``asked``; ``text`` decodes tokens."""
    lines = ("\n".join(map(text, (*one.steps, one.answer))) for one in examples)
    return _digits(Summation().score(*of) for of in zip(lines, asked, strict=True))


def _digits(scores: Iterable[Score]) -> np.ndarray:
    return np.array([[-1 if digit is None else int(digit) for digit in score.draws] for score in scores])


def levels_of(examples: Sequence[Example], text: Callable[[Sequence[int]], str]) -> np.ndarray:
    """Return (N, K - 1) rounded means of the numbers in the examples' own steps. Alone they do not reveal a step's
    digit; that takes the mean of the previous step as well."""
    means = [[np.mean(integers(text(step)) or np.nan) for step in one.steps] for one in examples]
    return np.round(np.array(means)).astype(int)


def explained_variance(latents: np.ndarray, groups: np.ndarray) -> list[float | None]:
    """Return for each step the share of R's variance, over all dimensions, that lies between the ``groups`` (N, K - 1):
    an adjusted R squared, so that many small groups explain nothing by chance. It is None if R does not vary, or if no
    degrees of freedom are left to estimate it from."""
    found: list[float | None] = []
    for values, group in zip(latents.swapaxes(0, 1), groups.T, strict=False):
        frame = pd.DataFrame(values)
        grouped = frame.groupby(group)
        within = (frame - grouped.transform("mean")).pow(2).to_numpy().sum()
        total = (frame - frame.mean()).pow(2).to_numpy().sum()
        found.append(adjusted_r_squared(within, total, len(frame), grouped.ngroups))
    return found


def adjusted_r_squared(within: float, total: float, samples: int, parameters: int) -> float | None:
    """Return the share of a ``total`` sum of squares that a model with so many parameters explains, or None where it is
    not defined. ``within``: the sum of squares that it leaves."""
    free = samples - parameters
    return float(1 - (within / free) / (total / (samples - 1))) if total > 0 and free > 0 else None


def consistent_after(steps: list[str], step: int) -> bool:
    """Return whether everything that is generated after a step follows from it, as if that step were the question."""
    return Summation().score("\n".join(steps[step:]), Reference(steps[step - 1], "", len(steps) - 1 - step)).correct


def encoding(latents: np.ndarray, digits: np.ndarray, active_above: float) -> Encoding:
    """Find the dimensions that encode digits, from R (N, K, D) and the digits (N, K - 1) that its steps drew. A
    dimension is a digit's own if, over the steps that drew the digit, its mean is above ``active_above`` and it is the
    largest in most of them."""
    values = latents[:, : digits.shape[1]][digits >= 0]
    known = digits[digits >= 0]
    seen = np.unique(known)
    matrix = np.full((10, latents.shape[-1]), np.nan)
    for digit in seen:
        matrix[digit] = values[known == digit].mean(0)
    found = Encoding(matrix, [None] * 10, [None] * 10, [None] * 10)
    if not len(seen):
        return found
    apart = matrix[seen] - matrix[seen].mean(0)  # so that a dimension that is always active stands for no digit
    rows, chosen = linear_sum_assignment(-apart)
    largest = chosen[values[:, chosen].argmax(1)]
    for digit, dim in zip(seen[rows].tolist(), chosen.tolist(), strict=True):
        found.agreement[digit] = share = float((largest[known == digit] == dim).mean())
        if matrix[digit, dim] > active_above and share > 0.5:
            found.dims[digit], found.values[digit] = dim, float(matrix[digit, dim])
    return found


def steer(model: TrainedModel, test: TestSet, encoded: Encoding, steps: int) -> pd.DataFrame:
    """Steer each step towards each digit, by the dimension that it has to itself, if any, and by its whole code: the
    mean of R over the steps that drew it. Return one row per question, step, digit and way (``by``): whether the step
    adds that digit (``obeyed``), and whether everything after it is consistent with it (``followed``)."""
    frames = []
    for step in range(1, steps):
        for digit, (dim, value, code) in enumerate(zip(encoded.dims, encoded.values, encoded.matrix, strict=True)):
            ways = {}
            if dim is not None and value is not None:
                ways["dimension"] = only({dim: value}, len(code), step)
            if not np.isnan(code).any():
                ways["code"] = only({int(on): float(code[on]) for on in np.flatnonzero(code)}, len(code), step)
            for by, interventions in ways.items():
                responses = model.generate(test.questions, replace(model.decoding, interventions=interventions))
                frames.append(
                    pd.DataFrame(
                        {
                            "test": test.name,
                            "id": test.ids,
                            "step": step,
                            "digit": digit,
                            "by": by,
                            "obeyed": drawn_digits(test, responses)[:, step - 1] == digit,
                            "followed": [consistent_after(lines, step) for lines in responses.steps],
                        }
                    )
                )
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def only(values: Mapping[int, float], size: int, step: int) -> tuple[Intervention, ...]:
    """Return interventions that set some of ``size`` dimensions to their values, and all others to 0, so that nothing
    predicted for the step is left."""
    others = tuple(dim for dim in range(size) if dim not in values)
    return Intervention(others, 0.0, step), *(Intervention((dim,), value, step) for dim, value in values.items())
