"""Random numbers as functions of keys: the same draw on any device, at any batch size, in any order.

A draw is a hash of (key, position), after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); the
hash is the finaliser of SplitMix64 (Steele et al., 2014) in int64 arithmetic, which wraps as two's complement does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_INCREMENT = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def key(*parts: object) -> int:
    """Return a 63-bit key of anything with a stable ``repr``: seeds, names, ids."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def question_keys(questions: Sequence[Sequence[int]], seed: int, stream: str) -> Tensor:
    """Return keys (B,) that depend only on each question's tokens, so that a row draws the same in any batch."""
    return torch.tensor([key(seed, stream, list(question)) for question in questions], dtype=torch.long)


def generator(*parts: object) -> torch.Generator:
    """Return a CPU generator seeded by ``parts``, for draws that a whole batch shares."""
    return torch.Generator().manual_seed(key(*parts))


def uniform(keys: Tensor, count: int, offset: int = 0) -> Tensor:
    """Return (B, count) float64 draws in [0, 1) for keys (B,). ``offset`` skips that many draws of each key."""
    positions = torch.arange(offset + 1, offset + count + 1, device=keys.device, dtype=torch.long)
    state = _mix(_mix(keys)[:, None] + positions * _INCREMENT)
    return _shift(state, 11).to(torch.float64) * 2.0**-53


def normal(keys: Tensor, count: int, offset: int = 0) -> Tensor:
    """Return (B, count) standard normal float64 draws (Box-Muller transform)."""
    draws = uniform(keys, 2 * count, 2 * offset)
    radius = torch.sqrt(-2.0 * torch.log1p(-draws[:, :count]))
    return radius * torch.cos(2.0 * math.pi * draws[:, count:])


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * _FIRST
    state = (state ^ _shift(state, 27)) * _SECOND
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Shift int64 to the right logically, without sign extension."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
