"""The cards of the embedded corpora, which :mod:`benchmarks.data.embedded` generates."""

from __future__ import annotations

from benchmarks.data import embedded
from benchmarks.data.cards import Card
from benchmarks.data.sources import Generated


def _dataset(name: str, title: str, shape: str, records: str) -> Generated:
    split = "train" if shape == "train" else "test"
    card = Card(
        name=name,
        title=title,
        source=f"benchmarks/data/embedded.py, shape {shape}",
        revision=f"generator {embedded.VERSION}",
        licence="Apache-2.0",
        citation="",
        version=embedded.VERSION,
        forms=("equation", "text"),
        counts={split: embedded.SIZES[shape]},
        records={split: records},
    )
    return Generated(card, lambda _: embedded.generate(shape))  # each shape is a data set with a single split


DATASETS = (
    _dataset("embedded", "Embedded", "train", "4e87b2df55fd9c57e7789176638c9bf150e1c259f9c5e7bb5f34f0a313378fbc"),
    _dataset(
        "embedded_in_domain",
        "In-domain",
        "in_domain",
        "c5c67bf9876fdf79441d1fb52210eb88cb5aa82ce78f175c820a89926fa9c8c7",
    ),
    _dataset(
        "embedded_reworded", "Reworded", "reworded", "ca96862706f515a8d26af2389cf577a7b2f4565bdf92edc321315f9a042cfb81"
    ),
    _dataset(
        "embedded_multistep",
        "Multi-step",
        "multistep",
        "e4f92d6ac1f80e1faf16c8a80194af9407309687ca0493206049a4694d5642ff",
    ),
)
