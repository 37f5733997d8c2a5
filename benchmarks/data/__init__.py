"""Data sets, tokenizers, and the prepared data that training and evaluation read."""

from benchmarks.data.corpus import (
    Corpus,
    TestSet,
    epoch_batches,
    load_tokenizer,
    open_corpus,
    open_solutions,
    open_test,
)
from benchmarks.data.loading import get_dataset, load_records
from benchmarks.data.records import DataError, Record, normalise
from benchmarks.data.sets import DATASETS
from benchmarks.data.store import prepare
from benchmarks.data.tokenizers import decode, make_tokenizer, vocabulary

__all__ = [
    "DATASETS",
    "Corpus",
    "DataError",
    "Record",
    "TestSet",
    "decode",
    "epoch_batches",
    "get_dataset",
    "load_records",
    "load_tokenizer",
    "make_tokenizer",
    "normalise",
    "open_corpus",
    "open_solutions",
    "open_test",
    "prepare",
    "vocabulary",
]
