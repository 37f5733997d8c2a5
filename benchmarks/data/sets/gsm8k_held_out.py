"""The questions of GSM8K's training split that validate: those of GSM8K-Aug's validation split, which stand in it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.data.cards import Card
from benchmarks.data.records import Raw, normalise
from benchmarks.data.sets.gsm8k import COBBE
from benchmarks.data.sets.gsm8k import DATASETS as GSM8K
from benchmarks.data.sources import Generated

PUBLISHED, AUGMENTED = GSM8K[:2]
HELD_OUT = Card(
    name="gsm8k_held_out",
    title="GSM8K (held out)",
    source="https://github.com/openai/grade-school-math, by the questions of GSM8K-Aug's validation split",
    revision="3101c7d",
    licence="MIT",
    citation=COBBE,
    forms=("equation", "text"),
    counts={"test": 500},
    records={"test": "6431ac7c4c647d9fed916f6109220595da92836959ab598f87ce7b86c1e2c60f"},
    notes="Read from GSM8K's training split and from gsm8k_aug/valid.txt, in the folder that MARCOS_BENCH_DATA names. "
    "A study that validates on them (`validation_set`) leaves them out of its training data.",
)


def held_out(split: str) -> Iterator[Raw]:
    """Yield the rows of GSM8K's training split whose questions validate GSM8K-Aug."""
    questions = {normalise(row.question) for row in AUGMENTED.rows("validation")}
    return (row for row in PUBLISHED.rows("train") if normalise(row.question) in questions)


DATASETS = (Generated(HELD_OUT, held_out, derived=((PUBLISHED, "train"), (AUGMENTED, "validation"))),)
