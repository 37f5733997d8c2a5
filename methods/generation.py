"""The settings that :meth:`methods.base.Method.generate` takes, and the results that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from methods.errors import InputError

if TYPE_CHECKING:
    from methods.base import Stage

Tokens = Literal["greedy", "sample"]
Latents = Literal["default", "sample", "mean"]
CachePolicy = Literal["auto", "dynamic", "static", "none"]  # see methods.decoding.make_cache


@dataclass(frozen=True)
class Intervention:
    """Set dimensions ``dims`` of the latents that :meth:`methods.base.Method.steerable_latents` names to ``value``, for
    every question, in thinking step ``step`` (counted from 1), or in all steps if ``step`` is None."""

    dims: tuple[int, ...]
    value: float
    step: int | None = None

    def __post_init__(self) -> None:
        if not isfinite(self.value):
            raise InputError(f"latents cannot be set to {self.value}: give a finite value")


def check_interventions(interventions: Sequence[Intervention], steps: int, size: int) -> None:
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


@dataclass(frozen=True)
class Length:
    """How much is generated for a question: tokens, end-of-text included, and latents, if their number varies.
    ``steps``: the tokens of each step, the answer last, if the method can generate or skip them."""

    tokens: int
    latents: int = 0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Decoding:
    """How answers are generated. Random draws depend only on ``seed`` and the question, not on the rest of a batch."""

    tokens: Tokens = "greedy"
    latents: Latents = "default"
    temperature: float = 1.0  # of tokens that are drawn, and a factor on the deviation of latents that are
    top_p: float = 1.0
    thoughts: Literal["own", "exchanged", "mean"] = "own"  # whose latents answers are given: `decoding.swap_latents`
    seed: int = 0
    max_new_tokens: int = 128
    answer_only: bool = True  # skip the steps, if the method can; False: generate them too
    trace: bool = False  # keep the latents in Generation.trace
    cache: CachePolicy = "auto"  # how keys and values are kept; changes no answer
    stage: Stage | None = None  # answer as a model trained up to the end of this stage; None: of the last stage
    lengths: tuple[Length, ...] | None = None  # forced, one per question, to measure work whatever the weights are
    encoded: Tensor | None = None  # latents from `Method.encode_steps`, in place of those that the method would draw
    # for methods whose `steerable_latents` names latents; if two set the same dimension, the last one wins
    interventions: tuple[Intervention, ...] = ()


@dataclass
class Cost:
    """The cost of one call of ``generate``: backbone passes (each serves the whole batch), latent vectors or thinking
    steps per question (the mean over the batch; a vector that is refined counts every time), and tokens emitted for all
    questions (end-of-text included)."""

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

    ``answer``: ids (B, L), with end-of-text from each row's end on. ``steps``: ids (B, K, L), the last step being the
    answer, if requested and the method generates them. ``trace``: latents by name, one row per question, if requested.
    """

    answer: Tensor
    cost: Cost
    steps: Tensor | None = None
    trace: dict[str, Tensor] = field(default_factory=dict)
    own: Generation | None = None  # of a control of latents: what the same questions are answered with their own


@dataclass
class Nats:
    """What the gold texts of B examples cost a trained method: negative natural log likelihoods.

    ``text`` (B, n): of all that it writes, part by part, the answer last, each part given the question and what the
    method reads before it: the gold text of earlier parts, and the latents that encode the gold steps, if any. None: it
    writes the answer alone. ``latents`` (B, steps): what the latents that encode the steps add, each step's KL
    divergence from what the question and the latents before it predict; the sum of ``text`` and ``latents`` is minus
    the evidence lower bound. None: the text needs no such latents, and its sum is exact. ``answer`` (B,): of the answer
    alone, given the question and the latents that the method has by itself. None: it writes steps before the answer.
    """

    text: Tensor | None = None
    latents: Tensor | None = None
    answer: Tensor | None = None
