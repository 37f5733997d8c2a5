"""Latents set by hand, for methods whose latents have dimensions of their own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from methods.generation import Intervention, InterventionError


def check(interventions: Sequence[Intervention], steps: int, size: int) -> None:
    """Raise :class:`InterventionError` where ``steps`` thinking steps of ``size`` dimensions lack one that is named."""
    for one in interventions:
        if one.step is not None and not 1 <= one.step <= steps:
            raise InterventionError(f"there is no step {one.step}: name one from 1 to {steps}, or none for all")
        if wrong := [dim for dim in one.dims if not 0 <= dim < size]:
            raise InterventionError(f"there are no dimensions {wrong}: name some from 0 to {size - 1}")


def intervened(latents: Tensor, interventions: Sequence[Intervention], step: int) -> Tensor:
    """(B, D) latents of step ``step``, counted from 1, with the values that interventions give them."""
    for one in interventions:
        if one.step in (None, step):
            latents = latents.clone()
            latents[:, list(one.dims)] = one.value
    return latents
