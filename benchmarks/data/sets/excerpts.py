"""Two hundred questions of a published test set, for models that a small machine can hardly ask them all."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.data.corpus import spread_over
from benchmarks.data.records import Raw
from benchmarks.data.sets.gsm8k import DATASETS as GSM8K
from benchmarks.data.sets.multiarith import DATASETS as MULTIARITH
from benchmarks.data.sets.svamp import DATASETS as SVAMP
from benchmarks.data.sources import DataSet, Generated

QUESTIONS = 200


def excerpt(whole: DataSet, records: str) -> Generated:
    """Return the data set of :data:`QUESTIONS` test rows of ``whole``, spread evenly over it; ``records``: their
    digest."""
    own = {
        "name": f"{whole.card.name}_{QUESTIONS}",
        "title": f"{whole.card.title} ({QUESTIONS} questions)",
        "version": "1",
        "counts": {"test": QUESTIONS},
        "records": {"test": records},
        "files": {},
        "hub": None,
        "notes": f"{QUESTIONS} rows of {whole.card.name}'s test split, spread evenly.",
    }

    def rows(split: str) -> Iterator[Raw]:
        found = whole.rows(split)
        return (found[place] for place in spread_over(len(found), QUESTIONS))

    return Generated(whole.card.model_copy(update=own), rows, derived=((whole, "test"),))


DATASETS = (
    excerpt(GSM8K[0], "29ae3ac258fee9fa8424b31b3bcd6c62e23287d1b220c68c50c39e1583d48e4b"),
    excerpt(SVAMP[0], "ed85d26013e89e248e80f0f70a31f2725f65bef5939a53f74aa1ce600d6f0967"),
    excerpt(MULTIARITH[0], "35ac76524a35d6d96cb1a0ac49fa44114e84f6a86ebc600cae553c85cd290ad8"),
)
