"""The table of methods that start from published checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.tables import COUNTERPARTS, Table
from benchmarks.tables.accuracy import AccuracyTable


class PretrainedTable(AccuracyTable):
    """A block for each checkpoint, as in the paper."""

    references = (COUNTERPARTS[Table.pretrained],)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        for block in self.study.blocks:
            runs = [run for run in self.study.runs.values() if run.block == block.id]
            starts = dict.fromkeys(run.backbone.pretrained or f"{run.backbone.name} from scratch" for run in runs)
            yield f"{block.title}: from {' and '.join(starts)}."
