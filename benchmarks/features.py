"""What a cached stage trains on: the frozen model's features, computed once and mapped from disk."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import Corpus
from benchmarks.engine import Engine
from benchmarks.files import reserve
from benchmarks.progress import Progress
from methods.base import Batch, Context, Method


class FeatureStore:
    """Rows of :meth:`Method.features` for a whole corpus, in files that the system pages in and out."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        self.rows: dict[str, Tensor] = {}

    @torch.no_grad()
    def fill(
        self, method: Method, engine: Engine, corpus: Corpus, rows: np.ndarray, context: Context, batch_size: int
    ) -> None:
        """One pass over some rows of the corpus, sorted by length; row i of the store is ``rows[i]``."""
        self.remove()
        self.folder.mkdir(parents=True)
        order = np.argsort(corpus.lengths[rows], kind="stable")
        with Progress(self.label, len(order)) as progress:
            for start in range(0, len(order), batch_size):
                places = order[start : start + batch_size]
                batch = method.collate(corpus.examples(rows[places]), context).to(method.device)
                for name, values in engine.features(batch, context).items():
                    self._column(name, len(rows), values)[torch.from_numpy(places)] = values.float().cpu()
                progress.advance(len(places))

    def _column(self, name: str, length: int, rows: Tensor) -> Tensor:
        if name not in self.rows:
            shape = (length, *rows.shape[1:])
            path = self.folder / f"{name}.float32"
            reserve(path, 4 * math.prod(shape))
            column = torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=torch.float32)
            self.rows[name] = column.view(shape)
        return self.rows[name]

    def batch(self, method: Method, indices: np.ndarray) -> Batch:
        chosen = torch.from_numpy(indices)
        return method.collate_features({name: column[chosen] for name, column in self.rows.items()})

    def remove(self) -> None:
        self.rows.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
