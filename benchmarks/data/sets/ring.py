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
    "train": "eaa34b4ade7a86ceeec917face62b3e515ddaf2c1f2acd855f41d3805f604324",
    "validation": "569d18b408a2792680342d4a18aae69e5165f39cbaa962f1c6f9abe3805a7aa1",
    "in_domain": "63804899fcfd16519506b876d11fc06f26e4e2efbf9b99d3992d67b59770b892",
    "reworded": "1280b7979f0a24a0a20c25cb152e7633d03372e8def0657056ba0f97c385634e",
    "unseen": "702bbae3b65abc5230de0050d9cb6cdc2d74f54262c3566207913fe48a5dfe37",
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
