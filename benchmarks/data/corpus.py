"""The tokenised data of a block as training and evaluation read them: memory-mapped from disk, in batches of similar
length, or sampled evenly."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value, load_from_disk

from benchmarks.data.records import DataError, first_alike
from benchmarks.data.tokenizers import read_tokenizer
from benchmarks.studies.paths import DONE
from methods.base import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

CHUNK = 50  # batches that are sorted by length together: longer chunks pad less, shorter ones shuffle better
IDS = List(Value("int32"))
TRAINING = Features({"id": Value("string"), "question": IDS, "steps": List(IDS), "answer": IDS})
TEST = Features(
    {
        "id": Value("string"),
        "text": Value("string"),
        "question": IDS,
        "answer": Value("string"),
        "steps": List(IDS),
        "answer_ids": IDS,
        "n_steps": Value("int32"),
        "overlap": Value("bool"),
    }
)


@dataclass(frozen=True)
class Corpus:
    """Training or validation examples, memory-mapped."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def lengths(self) -> np.ndarray:
        """(N,) tokens of question, steps and answer together."""
        return sizes(self._column("question")) + self._step_sizes[0] + sizes(self._column("answer"))

    @cached_property
    def chain_lengths(self) -> np.ndarray:
        """(N,) tokens of the steps, if each step ends with a newline of one token."""
        tokens, steps = self._step_sizes
        return tokens + steps

    @cached_property
    def _step_sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """(N,) tokens of all steps together, and (N,) numbers of steps."""
        steps = self._column("steps")
        counts, each = sizes(steps), sizes(steps.flatten())
        of = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(of, each, len(counts)).astype(np.int64), counts

    def _column(self, name: str) -> Any:
        return self.dataset.data.column(name).combine_chunks()

    @property
    def sha256(self) -> str:
        """A digest of the examples, token by token."""
        whole = hashlib.sha256("\n".join(self._column("id").to_pylist()).encode())
        for name in ("question", "steps", "answer"):
            column = self._column(name)
            while isinstance(column, pa.ListArray):
                whole.update(column.value_lengths().to_numpy().tobytes())
                column = column.flatten()
            whole.update(column.to_numpy().tobytes())
        return whole.hexdigest()

    def examples(self, indices: Sequence[int] | np.ndarray) -> list[Example]:
        rows = self.dataset[[int(i) for i in indices]]
        return [Example(*row) for row in zip(*(rows[field.name] for field in fields(Example)), strict=True)]


def sizes(lists: Any) -> np.ndarray:
    """Return the (N,) numbers of elements of an array of lists."""
    return lists.value_lengths().to_numpy().astype(np.int64)


@dataclass(frozen=True)
class TestSet:
    """A test set: questions as text and as ids, gold answers as text, and whether each
    question is also in the training data."""

    __test__ = False  # not a test class, although pytest would take it for one

    name: str
    ids: list[str]
    texts: list[str]
    questions: list[list[int]]
    answers: list[str]
    n_steps: list[int | None]
    overlap: list[bool]

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: Sequence[int]) -> TestSet:
        """Return a test set of only the questions at ``indices``."""
        columns = [field.name for field in fields(self) if field.name != "name"]
        chosen: dict[str, Any] = {column: [getattr(self, column)[i] for i in indices] for column in columns}
        return replace(self, **chosen)

    @property
    def same_as(self) -> list[str]:
        """For each question, the id of the first one that is the same."""
        return first_alike(self.ids, self.texts)


def epoch_batches(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, group_by_length: bool = True
) -> list[np.ndarray]:
    """Return the indices of each batch of an epoch. They depend on no other randomness than ``seed`` and ``epoch``, and
    every index occurs once.

    Rows are shuffled and cut into batches. With ``group_by_length``, they are sorted by length within chunks of
    :data:`CHUNK` batches before the cut, and the batches are shuffled. If the cut leaves a smaller batch over, it is
    kept. It is an update like any other, with losses divided by its own counts, so each of its examples weighs more in
    that update than an example of a full batch does.
    """
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = generator.permutation(len(lengths))
    if group_by_length:
        chunk = np.arange(len(order)) // (CHUNK * batch_size)
        order = order[np.lexsort((lengths[order], chunk))]
    batches = np.split(order, np.arange(batch_size, len(order), batch_size))
    return [batches[i] for i in generator.permutation(len(batches))]


def spread_over(length: int, count: int) -> np.ndarray:
    """Return ``count`` indices spread evenly over ``range(length)``, from the middle of
    each part; at most ``length``."""
    count = min(count, length)
    return ((np.arange(count) + 0.5) * length / count).astype(int)


def open_corpus(directory: Path, split: Literal["train", "validation"]) -> Corpus:
    return Corpus(_open(directory, directory / split))


def open_test(directory: Path, name: str) -> TestSet:
    rows = _open(directory, directory / "tests" / name)[:]
    return TestSet(
        name,
        ids=rows["id"],
        texts=rows["text"],
        questions=rows["question"],
        answers=rows["answer"],
        n_steps=rows["n_steps"],
        overlap=rows["overlap"],
    )


def open_solutions(directory: Path, name: str) -> list[Example]:
    """Return the questions of a test set with the steps and answers that the data set gives for them; without steps if
    it gives none."""
    rows = _open(directory, directory / "tests" / name)[:]
    return [
        Example(*row) for row in zip(*(rows[key] for key in ("id", "question", "steps", "answer_ids")), strict=True)
    ]


def load_tokenizer(directory: Path) -> Tokenizer:
    path, fix = directory / "tokenizer", f"remove {directory}, and run `marcos-bench data` for the study"
    if not path.is_dir():  # transformers would look for it on the hub
        raise DataError(f"{path} is not there: {fix}")
    return read_tokenizer(path, "main", fix)


def _open(directory: Path, path: Path) -> Dataset:
    if not (directory / DONE).is_file() or not path.is_dir():
        raise DataError(f"{path} is not prepared: run `marcos-bench data` for the study first")
    return cast(Dataset, load_from_disk(str(path)))
