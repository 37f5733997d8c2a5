"""The features of a frozen model that a cached stage trains on: computed once and memory-mapped from disk."""

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
    """Rows of :meth:`Method.features` for a corpus, in memory-mapped files, with the dtype in which they were computed.

    The ranks of a node fill one store together, taking turns batch by batch; every node has a store of its own.
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
        """Compute the features of some rows of the corpus in one pass, sorted by length, without dropout. Row i of the
        store is ``rows[i]``."""
        self.remove()
        trains = method.training
        method.eval()
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
            self.ranks.beat("features done")  # a rank with one batch fewer must not look as if it lagged behind
        method.train(trains)
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
        """Return some rows on the method's device, in float32. They are transferred first and converted there, because
        bfloat16 is half as much to move."""
        chosen = torch.from_numpy(indices)
        stored = Batch({name: column[chosen] for name, column in self.rows.items()}, {}, tokens=0).to(method.device)
        return method.collate_features({name: tensor.float() for name, tensor in stored.tensors.items()})

    def remove(self) -> None:
        self.rows.clear()
        if self.ranks.local_rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
