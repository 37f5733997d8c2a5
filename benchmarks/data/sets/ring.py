"""The cards of the chains in a ring of five, which :mod:`benchmarks.data.ring` generates."""

from __future__ import annotations

from benchmarks.data import ring
from benchmarks.data.cards import Card
from benchmarks.data.sources import Generated

NOTES = (
    f"Arithmetic is modulo {ring.RING}, as stories are about a ring of {ring.RING} fields: the step <<3*2=1>> is "
    f"right. Only the answer is scored, a number from 0 to {ring.RING - 1}."
)
RECORDS = {
    "train": "47fece540b4560b008eb6ccbb1eebcce46648bfacd0c49023ac194c78b8f9755",
    "validation": "5a38747e7483e3137730b68d2d04d03c92ea24daef2b8bc4c4c6c76a6f268960",
    "in_domain": "c8217b3a25da1da385edbe906d005e075d62979ead03f04660654e7f2f2f061f",
    "reworded": "844e64e77efa397ba9bb03494d51ea339c4eb8f537bfcc3a2fbe0b3472004237",
    "unseen": "fe2e4de2e18e284fafc79c6a46d498d38890b4e57e6a79f56a6d3038d88fd650",
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
