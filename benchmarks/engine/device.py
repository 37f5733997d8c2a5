"""The device of this process: its numerical settings, and the message when its memory is full."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from methods.errors import InputError


def pick_device() -> torch.device:
    """Return a GPU if there is one, otherwise the CPU. Every process that uses a GPU calls this first, so GPUs are set
    up here too."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # Read at the first matrix product; without it cuBLAS may sum in a different order each time
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # cuDNN's attention spends tens of milliseconds on a plan for each new batch size and length, and our shapes vary.
    # Flash and memory-efficient attention keep no such state
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda")


@contextmanager
def deterministic() -> Iterator[None]:
    """Use operations that give the same bits every time where PyTorch has them; where it has none, warn.

    Attention only causes a warning too, and its backward pass on a GPU may sum in a different order each time. Training
    therefore gives the same bits again only on a CPU.
    """
    utilities: Any = torch.utils.deterministic
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = utilities.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    utilities.fill_uninitialized_memory = False  # a check for bugs that costs one pass over memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        utilities.fill_uninitialized_memory = filled


def synchronize(device: torch.device) -> None:
    """Wait for the device to finish, so that a clock that is read afterwards is right."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: that of the GPU since the last reset, or that of this process since its
    start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return a context manager for bfloat16 arithmetic over float32 weights. In float32 it does nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


class OutOfMemory(InputError):
    """Raised when the settings ask for more memory than the GPU has."""


@contextmanager
def report_out_of_memory(work: str, fix: str) -> Iterator[None]:
    """Raise :class:`OutOfMemory` if GPU memory runs out inside.
    Its message names ``work`` and says what takes less memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        cause = ". ".join(str(error).split(". ")[:2])  # the rest is advice on PyTorch's settings
        raise OutOfMemory(f"{work}: {cause}. {fix}") from error
