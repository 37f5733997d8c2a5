"""A GPU whose memory is full: one message that names the work and the mend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from benchmarks.runs import RunSpec


class OutOfMemory(ValueError):
    """The settings ask for more memory than the GPU has."""


@contextmanager
def memory_for(work: str, mend: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = ". ".join(str(error).split(". ")[:2])  # the rest advises on settings of PyTorch
        raise OutOfMemory(f"{work}: {said}. {mend}") from error


def memory_for_training(spec: RunSpec) -> AbstractContextManager[None]:
    return memory_for(
        f"{spec.study}: training {spec.id}",
        f"Passes are of at most {spec.rows_at_once} rows: lower `engine.micro_batch` or `engine.micro_tokens`, or set "
        f"`engine.activation_checkpointing`; `marcos-bench plan {spec.study}` says what fits",
    )


def memory_for_answers(questions: int, longest: int) -> AbstractContextManager[None]:
    return memory_for(
        f"answering {questions} questions at once, the longest of {longest} tokens",
        "Lower `batch_size`: `evaluation` has one, and `timing` its own",
    )
