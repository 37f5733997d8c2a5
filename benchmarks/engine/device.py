"""The device of this process, and how it computes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch


def pick_device() -> torch.device:
    """A GPU if there is one. Every process that uses one asks here first, so this is where GPUs are set up too."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # Read with the first matrix product; without it cuBLAS may sum in another order each time
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # cuDNN's attention builds a plan for each new shape of batch and lengths, tens of milliseconds each, and our shapes
    # vary. Flash and memory-efficient attention hold no such state
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda")


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, operations give the same bits every time where PyTorch has a way to; where it has none, it warns.

    It only warns of attention too, whose backward pass on a GPU may sum in another order each time: a training gives
    the same bits again on a CPU alone.
    """
    utilities: Any = torch.utils.deterministic
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = utilities.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    utilities.fill_uninitialized_memory = False  # a check for bugs that costs a pass over memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        utilities.fill_uninitialized_memory = filled


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read afterwards is true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Bytes that the GPU held at most since the last reset, or this process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 arithmetic over float32 weights, or nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
