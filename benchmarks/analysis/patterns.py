"""Which dimensions of R are active, how often, and which of them together (paper, "How does R control ...")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from benchmarks.studies.specs import AnalysisSpec


@dataclass(frozen=True)
class Patterns:
    """``frequency``: (D,) share of samples in which a dimension is active. ``frequent``: the most frequent dimensions,
    the first of them most often. ``clique``: the largest set of them that are all correlated, one dimension alone where
    no two are."""

    frequency: np.ndarray
    frequent: list[int]
    clique: list[int]


def patterns(values: np.ndarray, settings: AnalysisSpec) -> Patterns:
    """Patterns of (N, D) samples: R of every step of every question."""
    frequency = (values > settings.active_above).mean(0)
    frequent = most_frequent(frequency, settings.frequent_share, settings.frequent_at_least)
    graph = correlation_graph(correlations(values, frequent), frequent, settings.correlated_above)
    return Patterns(frequency, frequent, largest_clique(graph, frequency))


def most_frequent(frequency: np.ndarray, share: float, at_least: int) -> list[int]:
    """The dimensions that are active most often: a share of all, but ``at_least`` some; none that is never active."""
    count = max(math.ceil(share * len(frequency)), at_least)
    order = np.argsort(-frequency, kind="stable")[:count]
    return [int(dim) for dim in order if frequency[dim] > 0]


def correlations(values: np.ndarray, dims: Sequence[int]) -> np.ndarray:
    """(n, n) Pearson correlations; 0 where a dimension never changes. In float64: sums of R's own float32 differ from
    one CPU to the next in digits that are written down."""
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
    """A node for each dimension, an edge where two correlate by more than ``above``."""
    graph = nx.Graph()
    graph.add_nodes_from(dims)
    first, second = np.nonzero(np.triu(correlation > above, k=1))
    graph.add_edges_from((dims[a], dims[b]) for a, b in zip(first.tolist(), second.tolist(), strict=True))
    return graph


def largest_clique(graph: nx.Graph, frequency: np.ndarray) -> list[int]:
    """The largest clique; among several of one size the most frequent one."""
    counts = {dim: round(1e6 * float(frequency[dim])) for dim in graph}
    heavy = 1 + sum(counts.values())  # one node more outweighs all frequencies
    nx.set_node_attributes(graph, {dim: heavy + count for dim, count in counts.items()}, "weight")
    found, _ = nx.max_weight_clique(graph, weight="weight")
    return sorted(found)
