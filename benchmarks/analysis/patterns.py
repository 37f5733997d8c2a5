"""Which dimensions of R are active, how often, and which are active together (paper, "How does R control ...")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from benchmarks.studies.specs import AnalysisSpec


@dataclass(frozen=True)
class Patterns:
    """The activity of dimensions.

    ``frequency``: (D,) share of samples in which each dimension is active. ``frequent``: the most frequent dimensions,
    in descending order. ``clique``: the largest set of these in which every two are correlated, or a single dimension
    if no two are.
    """

    frequency: np.ndarray
    frequent: list[int]
    clique: list[int]


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
    if not dims:
        return np.zeros((0, 0))
    chosen = values[:, list(dims)].astype(np.float64)
    centred = chosen - chosen.mean(0)
    norms = np.linalg.norm(centred, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = centred.T @ centred / np.outer(norms, norms)
    found = np.nan_to_num(found).clip(-1, 1)
    np.fill_diagonal(found, 1.0)
    return found


def correlation_graph(correlation: np.ndarray, dims: Sequence[int], above: float) -> nx.Graph:
    """Return a graph with a node for each dimension and an edge between two that correlate by more than ``above``."""
    graph = nx.Graph()
    graph.add_nodes_from(dims)
    first, second = np.nonzero(np.triu(correlation > above, k=1))
    graph.add_edges_from((dims[a], dims[b]) for a, b in zip(first.tolist(), second.tolist(), strict=True))
    return graph


def largest_clique(graph: nx.Graph, frequency: np.ndarray) -> list[int]:
    """Return the largest clique; of several of that size, the one with the highest total frequency."""
    counts = {dim: round(1e6 * float(frequency[dim])) for dim in graph}
    heavy = 1 + sum(counts.values())  # one more node outweighs all frequencies together
    nx.set_node_attributes(graph, {dim: heavy + count for dim, count in counts.items()}, "weight")
    found, _ = nx.max_weight_clique(graph, weight="weight")
    return sorted(found)
