"""Interventions: single dimensions of latents set by hand, for methods whose latents can be steered this way."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from methods.errors import InputError
from methods.generation import Intervention


def check(interventions: Sequence[Intervention], steps: int, size: int) -> None:
    """Raise :class:`InputError` for a step that is not among ``steps``, or a dimension not among ``size``."""
    for one in interventions:
        if one.step is not None and not 1 <= one.step <= steps:
            raise InputError(f"there is no step {one.step}: name one from 1 to {steps}, or none for all")
        if wrong := [dim for dim in one.dims if not 0 <= dim < size]:
            raise InputError(f"there are no dimensions {wrong}: name some from 0 to {size - 1}")


def intervened(latents: Tensor, interventions: Sequence[Intervention], step: int) -> Tensor:
    """Return the latents (B, D) of thinking step ``step``, counted from 1, with the values that interventions set."""
    for one in interventions:
        if one.step in (None, step):
            latents = latents.clone()
            latents[:, list(one.dims)] = one.value
    return latents
