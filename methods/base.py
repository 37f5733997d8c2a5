"""What a method is: the interface that every compared method implements.

A method owns everything that differs between methods (token layout, forward pass, curriculum, decoding) and nothing
that does not (data, optimizer, batching, scoring, timing). Adding one is adding a file to this package, or an entry
point in the group ``marcos_bench.methods`` of another. :mod:`methods.generation` has what answering takes and returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from methods.errors import InputError
from methods.generation import Decoding, Generation, Length

if TYPE_CHECKING:
    from methods.backbone import Backbone


ANSWER_MARKER = "####"  # stands before every answer, as in GSM8K
# How a method's warning begins of a training that ends with no dimension of its random vector in use: records keep it,
# and tables mark the row by it
DEAD_R = "R is dead"


def added_field(default: Any, **settings: Any) -> Any:
    """A field that is younger than recorded runs: left out of their specifications at its default, so that the digests
    of these stay what they were."""
    return Field(default=default, exclude_if=lambda value: value == default, **settings)


class MethodOptions(BaseModel):
    """Options of a method: frozen, with defaults, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that methods build layouts from. ``encode`` adds no special token."""

    size: int
    eos: int
    encode: Callable[[str], list[int]]

    @cached_property
    def newline(self) -> list[int]:
        return self.encode("\n")

    @cached_property
    def answer_marker(self) -> list[int]:
        """The ids of :data:`ANSWER_MARKER` and the blank behind it."""
        return self.encode(f"{ANSWER_MARKER} ")


@dataclass(frozen=True)
class Setup:
    """What a method is built from, besides its own options."""

    backbone: Backbone
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class Example:
    """One training example, tokenised once and piece by piece: no marker, no separator, no end-of-text."""

    id: str
    question: Sequence[int]
    steps: Sequence[Sequence[int]]
    answer: Sequence[int]


@dataclass(frozen=True)
class Stage:
    """One stretch of a curriculum with its own optimizer.

    ``epochs`` may be fractional. Stages with the same ``phase`` count as one phase of training in the Train column.
    ``trainable`` lists prefixes of parameter names. ``select_on`` names the loss terms whose sum on validation data
    chooses the weights the stage ends with; when empty the last weights stay. A ``cached`` stage trains on
    :meth:`Method.features`, computed once from the weights it starts with. ``learning_rate`` takes the place of the
    training's. ``answers``: whether the weights that the stage ends with can answer, as :attr:`Decoding.stage` asks
    them to. ``settings`` is for the method's own use.
    """

    name: str
    epochs: float
    phase: str = "train"
    trainable: tuple[str, ...] = ("",)
    keep_optimizer: bool = False
    select_on: tuple[str, ...] = ()
    cached: bool = False
    learning_rate: float | None = None
    answers: bool = True
    settings: Mapping[str, float] = field(default_factory=dict)

    def trains(self, name: str) -> bool:
        """Whether the stage trains the parameter of that name."""
        return name.startswith(self.trainable)


@dataclass(frozen=True)
class Budget:
    """How long a run trains: epochs over its training data, and how many optimizer steps make one.

    ``chain_lengths``, where known, are the tokens of each training example's written steps, line ends included.
    """

    epochs: float
    steps_per_epoch: int
    chain_lengths: Sequence[int] = ()


@dataclass(frozen=True)
class Context:
    """Where training stands. Random draws are functions of it and of example ids, never of a global generator."""

    stage: Stage
    epoch: int  # completed epochs of the whole run
    step: int  # optimizer steps of the whole run
    seed: int
    training: bool = True
    # Sums a tensor over the ranks, where each takes its part of a batch in one pass; None where a process is alone, or
    # where a batch is cut further
    over_ranks: Callable[[Tensor], Tensor] | None = None

    @property
    def moment(self) -> tuple[int, int] | tuple[None, None]:
        """Epoch and step, which draws take into their keys; none in validation, so that all weights of a run are
        compared under the same draws."""
        return (self.epoch, self.step) if self.training else (None, None)


@dataclass
class Batch:
    """Tensors of one micro-batch, and what their loss sums are divided by.

    ``denominators`` holds one number for each loss term; the engine adds them over micro-batches and ranks *before*
    the first forward pass. ``tokens`` counts the positions that are no padding, over all passes of a backbone.
    """

    tensors: dict[str, Tensor]
    denominators: dict[str, float]
    tokens: int
    keys: Tensor | None = None  # (B,) int64, one per example, for draws (methods.draws)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def get(self, name: str) -> Tensor | None:
        """A tensor that not every batch has."""
        return self.tensors.get(name)

    def to(self, device: torch.device) -> Batch:
        """Copied to a device. To a GPU from pinned memory, so that the host goes on meanwhile."""

        def move(tensor: Tensor) -> Tensor:  # a slice is made dense first: no copy of another goes straight to a GPU
            return (tensor.contiguous().pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

        moved = {name: move(tensor) for name, tensor in self.tensors.items()}
        return replace(self, tensors=moved, keys=None if self.keys is None else move(self.keys))


@dataclass
class Output:
    """``losses``: *sums* of each term over the micro-batch, weights included (their total, each divided by its global
    denominator, is minimised). ``statistics``: sums that are all-reduced, for the method's ``after_step`` and
    ``observed``."""

    losses: dict[str, Tensor]
    statistics: dict[str, Tensor] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """One compared method. Subclasses set the class attributes and implement the abstract methods."""

    name: ClassVar[str]
    title: ClassVar[str]  # as the table prints it
    citation: ClassVar[str]  # BibTeX
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    has_latents: ClassVar[bool] = False  # whether Decoding.thoughts makes a difference
    # Loss terms that are statistics of a pass, not sums over rows (of all ranks' passes, by `Context.over_ranks`)
    batch_terms: ClassVar[tuple[str, ...]] = ()
    says_steps: ClassVar[bool] = False  # whether Decoding.answer_only makes a difference
    caches_in_training: ClassVar[bool] = False  # whether forward reads a cache, so that no layer may run twice

    def __init__(self, options: MethodOptions, setup: Setup) -> None:
        super().__init__()
        self.options = options
        self.vocabulary = setup.vocabulary

    @classmethod
    def steerable_latents(cls, options: Any) -> str | None:
        """The name, in :attr:`Generation.trace`, of the latents (B, steps, dims) that interventions set; None where a
        method has none, and is never given interventions."""
        return None

    def encoded(self, examples: Sequence[Example]) -> Tensor | None:
        """The latents (B, steps, dims) that training encodes the examples' own steps in; None where
        :meth:`steerable_latents` names none, or nothing encodes them."""
        return None

    @classmethod
    def starts_from(cls, options: Any) -> str | None:
        """The method whose checkpoint (same data, same seed, default options) this one is initialised from: the one
        that the option ``warm_start`` names, where a method has that option."""
        start = getattr(options, "warm_start", "none")
        return None if start == "none" else start

    @classmethod
    def skip(cls, options: Any, setting: Mapping[str, Any]) -> str | None:
        """A reason when the method cannot run in a setting (keys: form, pretrained, backbone), else None."""
        return None

    @property
    def even_passes(self) -> bool:
        """Whether :meth:`forward` calls the same modules in the same order for all micro-batches of a stage. Ranks that
        split the weights (ZeRO 3) gather them module by module, together."""
        return True

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of a run of the method that :meth:`starts_from` names."""
        copy_weights(weights, self)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @abstractmethod
    def stages(self, budget: Budget) -> list[Stage]:
        """The curriculum that spends ``budget``."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Examples to one padded micro-batch on the CPU, as a function of them, ``context`` and options alone: that of
        the next step is made while a step is under way."""

    @abstractmethod
    def forward(self, batch: Batch, context: Context) -> Output:
        """Loss sums of one micro-batch, in one call however many passes of the backbone it takes.

        On a GPU the host only says what is to be computed, ahead of time. It would have to wait for what it asks of the
        numbers (``.item()``, ``.any()`` in an ``if``, indices from a mask), so whatever shapes or ``if`` depend on is
        found out in :meth:`collate`: see :mod:`methods.collating`.
        """

    def naive_forward(self, batch: Batch, context: Context) -> Output | None:
        """What :meth:`forward` computes, in the plainest way: row by row and without a cache. Tests compare numbers
        with it, and `marcos-bench speed` times it. None where there is no plainer way."""
        return None

    def features(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        """Inputs of a cached stage, one row per example: computed once, without gradient."""
        raise NotImplementedError(f"{self.name} has no cached stage")

    def collate_features(self, features: dict[str, Tensor]) -> Batch:
        """Rows of :meth:`features` to a micro-batch that :meth:`forward` takes in the cached stage."""
        raise NotImplementedError(f"{self.name} has no cached stage")

    def after_step(self, statistics: dict[str, float]) -> None:
        """Update controllers (buffers, so that checkpoints hold them) from statistics of one optimizer step."""

    def observed(self, statistics: dict[str, float]) -> dict[str, float]:
        """What is logged of statistics, of one optimizer step or of all validation rows."""
        return {}

    def warnings(self, observed: dict[str, float]) -> list[str]:
        """Signs of a run gone wrong in what was :meth:`observed` over all validation rows, each a sentence."""
        return []

    def length(self, example: Example) -> Length:
        """How much ``generate`` says when it says what it was trained to: here the marked answer and end-of-text."""
        return Length(len(self.vocabulary.answer_marker) + len(example.answer) + 1)

    def stochastic(self, decoding: Decoding) -> bool:
        """Whether the decoding seed changes what ``generate`` returns."""
        return decoding.tokens == "sample"

    @abstractmethod
    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        """Answers to tokenised questions: batched, cached, the same at any batch size. Gold text cannot get here."""


@torch.no_grad()
def copy_weights(weights: Mapping[str, Tensor], module: nn.Module) -> None:
    """Copy tensors into a module's own of the same names, or raise ValueError where it lacks one of them. Rows that
    only the module's table has (markers) stay."""
    own = module.state_dict()
    if lacking := sorted(weights.keys() - own.keys()):
        raise InputError(
            f"the weights to start from have {lacking[0]!r} and {len(lacking) - 1} more tensors that "
            f"{type(module).__name__} has not: name its parts as the method that it starts from does, or "
            "map the names in `warm_start`"
        )
    for name, tensor in weights.items():
        own[name][tuple(map(slice, tensor.shape))].copy_(tensor)
