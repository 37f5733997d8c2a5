"""The table of further ablations: attention and initialisation of the thinking layer, and fixed weights of sparsity."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.tables.accuracy import AccuracyTable


class AblationTable(AccuracyTable):
    """The paper's appendix "Additional Ablation Studies"; its default row is that of the main table."""

    references = ("ablation",)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield """The paper says of initialisation that it makes a marginal difference, and prints nothing of it; of a
        weight of 0 its source has a row behind a %, whose accuracies are about 1 %."""
