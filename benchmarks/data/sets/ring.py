"""The cards of the chains in a ring of five, which :mod:`benchmarks.data.ring` generates."""

from __future__ import annotations

from benchmarks.data import ring
from benchmarks.data.cards import Card
from benchmarks.data.sources import Generated

NOTES = (
    f"Arithmetic is modulo {ring.RING}, as every story says: the step <<3+4=2>> is right. Only the answer is scored, a "
    f"number from 0 to {ring.RING - 1}."
)
RECORDS = {
    "train": "cbcc31eee68ab8d91613d8574a2af9beee8cebccc75159c7c696db84a9014fae",
    "validation": "25e75d7b798965390b8b340197b240eba86f35168b4362040b660f85e1fd6fc2",
    "in_domain": "3c6288b41d961030513f9a75493d13ae98632222cf1d74fe7131f25116af4df7",
    "reworded": "5cf8b3ea1cb9547353e2a769385eb7519430ced05bb6b868c9b8f0cce406b835",
    "unseen": "dd3a355d8af1dd18b6ef0874fb93aa532e13f6e8671a2857a05dd4d5b085645a",
}


def _dataset(corpus: str, title: str) -> Generated:
    split = "train" if corpus == "train" else "test"
    card = Card(
        name="ring" if corpus == "train" else f"ring_{corpus}",
        title=title,
        source=f"benchmarks/data/ring.py, corpus {corpus}",
        revision=f"generator {ring.VERSION}",
        licence="Apache-2.0",
        citation="",
        version=ring.VERSION,
        forms=("equation", "text"),
        counts={split: ring.SIZES[corpus]},
        records={split: RECORDS[corpus]},
        notes=NOTES,
    )
    return Generated(card, lambda _: ring.generate(corpus))  # each corpus is a data set with a single split


DATASETS = (
    _dataset("train", "Ring"),
    _dataset("validation", "Validation"),
    _dataset("in_domain", "In-domain"),
    _dataset("reworded", "Reworded"),
    _dataset("unseen", "Unseen neighbours"),
)
