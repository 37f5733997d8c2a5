"""What :meth:`methods.base.Method.generate` is asked, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from methods.errors import InputError

if TYPE_CHECKING:
    from methods.base import Stage

CachePolicy = Literal["auto", "dynamic", "static", "none"]  # of methods.decoding.make_cache


class InterventionError(InputError):
    """An intervention on latents that a method does not have; the message says which it has."""


@dataclass(frozen=True)
class Intervention:
    """Dimensions ``dims`` of the latents that :meth:`methods.base.Method.steerable_latents` names get ``value``, for
    every question, in thinking step ``step`` (counted from 1) or, without one, in all of them."""

    dims: tuple[int, ...]
    value: float
    step: int | None = None

    def __post_init__(self) -> None:
        if not isfinite(self.value):
            raise InterventionError(f"latents cannot be set to {self.value}: give a finite value")


@dataclass(frozen=True)
class Length:
    """How much is generated for a question: tokens, end-of-text included, and latents, where a method says how many."""

    tokens: int
    latents: int = 0


@dataclass(frozen=True)
class Decoding:
    """How answers are generated. Draws depend on ``seed`` and the question alone, so on no other row of the batch."""

    tokens: Literal["greedy", "sample"] = "greedy"
    latents: Literal["default", "sample", "mean"] = "default"
    temperature: float = 1.0
    top_p: float = 1.0
    thoughts: Literal["own", "exchanged", "mean"] = "own"  # controls: those of another row of the batch, or their mean
    seed: int = 0
    max_new_tokens: int = 128
    answer_only: bool = True  # methods that can skip the steps do so; False: say them too
    trace: bool = False  # keep the latents in Generation.trace
    cache: CachePolicy = "auto"  # how what was read is kept; changes no answer
    stage: Stage | None = None  # answer as a model that has been trained up to the end of it; None: to the last one's
    lengths: tuple[Length, ...] | None = None  # forced, one per question: measures work whatever the weights say
    # dimensions set by hand, for methods whose `steerable_latents` names latents; the last one wins
    interventions: tuple[Intervention, ...] = ()


@dataclass
class Cost:
    """What one call of ``generate`` took: calls of a backbone (each serves the whole batch), latent vectors or thinking
    steps per question (their mean over the batch), and tokens emitted over all questions (end-of-text included)."""

    forward_passes: int = 0
    latent_steps: float = 0.0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.forward_passes + other.forward_passes,
            self.latent_steps + other.latent_steps,
            self.tokens + other.tokens,
        )


@dataclass
class Generation:
    """Answers of a batch of questions.

    ``answer``: (B, L) ids, end-of-text from the first end on. ``steps``: (B, K, L) ids, where they are asked for and
    the method can say them. ``trace``: latents by name, a row per question, where they are asked for.
    """

    answer: Tensor
    cost: Cost
    steps: Tensor | None = None
    trace: dict[str, Tensor] = field(default_factory=dict)
