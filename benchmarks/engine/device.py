"""The device of this process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read afterwards is true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 arithmetic over float32 weights, or nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
