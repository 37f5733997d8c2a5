"""Turns the error of a full GPU into one message that names the work and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from benchmarks.studies.micro_batches import rows_per_pass
from benchmarks.studies.runs import RunSpec
from methods.errors import InputError


class OutOfMemory(InputError):
    """Raised when the settings ask for more memory than the GPU has."""


@contextmanager
def memory_for(work: str, fix: str) -> Iterator[None]:
    """Raise :class:`OutOfMemory` if GPU memory runs out inside.
    Its message names ``work`` and says what takes less memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = ". ".join(str(error).split(". ")[:2])  # the rest is advice on PyTorch's settings
        raise OutOfMemory(f"{work}: {said}. {fix}") from error


def memory_for_training(spec: RunSpec) -> AbstractContextManager[None]:
    rows = rows_per_pass(spec.training.batch_size, spec.engine.ranks, spec.engine.micro_batch)
    return memory_for(
        f"{spec.study}: training {spec.id}",
        f"A training pass has at most {rows} rows: lower `engine.micro_batch` or `engine.micro_tokens`, or set "
        "`engine.activation_checkpointing`; `marcos-bench plan` says what fits",
    )


def memory_for_answers(questions: int, longest: int) -> AbstractContextManager[None]:
    return memory_for(
        f"answering {questions} questions at once, the longest of {longest} tokens",
        "Lower `batch_size`: `evaluation` has one, and `timing` its own",
    )
