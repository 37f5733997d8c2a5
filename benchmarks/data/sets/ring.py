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
    "train": "a41f15ddb1179ce7d8011018e7b2e8946b81757b189bb457813864e69668f9a4",
    "validation": "ac073590208b2c7ffcbcd6997d1d111742911d9ca58cef19a864f80369106d32",
    "in_domain": "cba05481ec452a97a4ebca45662c0b906e5211dee703f0f92bfc5f312bf06d61",
    "reworded": "97e7db79b942684672be079409049b09c4419017692d6df144ce3c7cdcd2764d",
    "unseen": "9fe31a267ad0fa81e7a7be7f9c30f0629f2fa192454e09340dcb4aeef8c1b703",
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
