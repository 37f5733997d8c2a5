"""What a cached stage trains on: the frozen model's features, computed once and mapped from disk."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import Corpus
from benchmarks.engine import Ranks, autocast
from benchmarks.files import reserve
from benchmarks.progress import Progress
from methods.base import Batch, Context, Method


class FeatureStore:
    """Rows of :meth:`Method.features` for a whole corpus, in memory-mapped files, in the precision that they have.

    The ranks of a node fill one store together, a batch each; every node has a store of its own.
    """

    def __init__(self, folder: Path, label: str, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self.folder = folder.with_name(f"{folder.name}-node{self.ranks.node}") if self.ranks.node else folder
        self.label = label
        self.rows: dict[str, Tensor] = {}

    @torch.no_grad()
    def fill(
        self, method: Method, precision: str, corpus: Corpus, rows: np.ndarray, context: Context, batch_size: int
    ) -> None:
        """One pass over some rows of the corpus, sorted by length; row i of the store is ``rows[i]``."""
        self.remove()
        self.ranks.wait("features begin")
        self.folder.mkdir(parents=True, exist_ok=True)
        order = np.argsort(corpus.lengths[rows], kind="stable")
        all_starts = range(0, len(order), batch_size)
        starts = all_starts[self.ranks.local_rank :: self.ranks.local_world] or all_starts[:1]
        with Progress(self.label, len(starts)) as progress:
            for start in starts:
                self.ranks.beat(f"features, row {start}")
                places = order[start : start + batch_size]
                batch = method.collate(corpus.examples(rows[places]), context).to(method.device)
                with autocast(method.device, precision):
                    features = method.features(batch, context)
                for name, values in features.items():
                    self._column(name, len(rows), values)[torch.from_numpy(places)] = values.cpu()
                progress.advance()
        for _ in range(len(starts), math.ceil(len(all_starts) / self.ranks.local_world)):
            self.ranks.beat("features done")  # a rank that has one batch fewer than others is not behind them
        self.ranks.wait("features of all ranks")

    def _column(self, name: str, length: int, rows: Tensor) -> Tensor:
        if name not in self.rows:
            shape = (length, *rows.shape[1:])
            path = self.folder / f"{name}.{str(rows.dtype).removeprefix('torch.')}"
            if self.ranks.local_rank == 0:
                reserve(path, rows.itemsize * math.prod(shape))
            self.ranks.wait(f"room for the features {name}")
            column = torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=rows.dtype)
            self.rows[name] = column.view(shape)
        return self.rows[name]

    def batch(self, method: Method, indices: np.ndarray) -> Batch:
        """Some rows, on the method's device, in float32: made so there, when half as much has been moved."""
        chosen = torch.from_numpy(indices)
        stored = Batch({name: column[chosen] for name, column in self.rows.items()}, {}, tokens=0).to(method.device)
        return method.collate_features({name: tensor.float() for name, tensor in stored.tensors.items()})

    def remove(self) -> None:
        self.rows.clear()
        if self.ranks.local_rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
