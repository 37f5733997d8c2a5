"""The cards of the chains in a ring of five, which :mod:`benchmarks.data.ring` generates."""

from __future__ import annotations

from benchmarks.data import ring
from benchmarks.data.cards import Card
from benchmarks.data.sources import Generated

NOTES = (
    f"Arithmetic is modulo {ring.RING}, as stories are about a ring of {ring.RING} fields: the step <<3 doubles=1>> is "
    f"right. Only the answer is scored, a number from 0 to {ring.RING - 1}."
)
RECORDS = {
    "train": "a414ba526f4cba1125e0bafbdaacdd9020724f634423b045bb17618e0a101075",
    "validation": "2542f763c6887cc0ddac3ed348842e2c2d8b60e38c0739ce3f4ecd1f986ac7bf",
    "in_domain": "efaa4dd69e4ab2cc1e5976728b0f0a16fcf59975ccfcec1a085807aa1ce0bcbe",
    "reworded": "ed579fa9b48d65a8b26ebba29567b64f67c981bce31123e18d7ef47f80fbb1c5",
    "unseen": "8d855a9aeb0fc98bf7b15bfb8747460ab8a0ab797c61a0928c372c396c6aa4ad",
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
