"""The table of further ablations: attention and initialisation of the thinking layer, and fixed weights of sparsity."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.tables import COUNTERPARTS, Table
from benchmarks.tables.accuracy import AccuracyTable


class AblationTable(AccuracyTable):
    """The paper's appendix "Additional Ablation Studies"; its default row is that of the main table."""

    references = (COUNTERPARTS[Table.ablation],)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield """The paper says that initialisation makes a marginal difference, and prints no number for it. For a
        sparsity weight of 0 its LaTeX source has a row that is commented out, with accuracies of about 1 %."""
