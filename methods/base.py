"""The interface that every compared method implements.

A method owns everything that differs between methods (token layout, forward pass, curriculum, decoding) and nothing
that does not (data, optimizer, batching, scoring, timing). Adding a method means adding a file to this package, or an
entry point in the group ``marcos_bench.methods`` to another package. The types that :meth:`Method.generate` takes and
returns are in :mod:`methods.generation`.
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
from methods.generation import Decoding, Generation, Length, Nats

if TYPE_CHECKING:
    from methods.backbone import Backbone

ANSWER_MARKER = "####"  # precedes every answer, as in GSM8K


def added_field(default: Any, **settings: Any) -> Any:
    """Declare a field that recorded runs lack: specifications leave it out at its default, to keep their digests."""
    return Field(default=default, exclude_if=lambda value: value == default, **settings)


class MethodOptions(BaseModel):
    """Base class for the options of a method: frozen, with a default for each, unknown keys and infinite numbers (which
    JSON lacks) refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer, as far as methods need it to build token layouts. ``encode`` adds no special tokens."""

    size: int
    eos: int
    encode: Callable[[str], list[int]]

    @cached_property
    def newline(self) -> list[int]:
        return self.encode("\n")

    @cached_property
    def answer_marker(self) -> list[int]:
        """The ids of :data:`ANSWER_MARKER` and the space after it."""
        return self.encode(f"{ANSWER_MARKER} ")


@dataclass(frozen=True)
class Setup:
    """What a method is built from, besides its own options."""

    backbone: Backbone
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class Example:
    """One example, tokenised without markers, separators and end-of-text. Questions have the begin-of-text, if any."""

    id: str
    question: Sequence[int]
    steps: Sequence[Sequence[int]]
    answer: Sequence[int]


@dataclass(frozen=True)
class Stage:
    """One stage of a curriculum, with an optimizer of its own.

    ``epochs`` may be fractional. Stages with the same ``phase`` share one learning rate schedule and count as one phase
    of training in the Train column. ``trainable`` lists prefixes of the names of trained parameters. The optimizer
    starts anew, unless ``keep_optimizer`` carries over its states from the stage before, which trains as much or more.
    ``select_on``: the loss terms whose sum on validation data selects the weights that the stage ends with (unless the
    study selects by accuracy); if empty, it keeps its last weights. A ``cached`` stage trains on
    :meth:`Method.features`, computed once from the weights it starts with. ``learning_rate`` replaces the run's peak
    learning rate. ``answers``: whether its weights can answer (:attr:`Decoding.stage`). ``settings``: the method's own.
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
        """Return whether the stage trains the parameter with this name."""
        return name.startswith(self.trainable)


@dataclass(frozen=True)
class Budget:
    """How long a run trains. ``chain_lengths``, if known: tokens of each example's steps, line ends included."""

    epochs: float
    steps_per_epoch: int
    chain_lengths: Sequence[int] = ()


@dataclass(frozen=True)
class Context:
    """The current point in training. Derive random draws from it and example ids, never from a global generator."""

    stage: Stage
    epoch: int  # completed epochs of the whole run
    step: int  # optimizer steps of the whole run
    seed: int
    training: bool = True
    # Sums a tensor over all ranks if each runs its share of a batch in one pass; None otherwise, or in a single process
    over_ranks: Callable[[Tensor], Tensor] | None = None

    @property
    def epoch_and_step(self) -> tuple[int, int] | tuple[None, None]:
        """The epoch and the step, for the keys of random draws. Both are None in validation, so that all weights of a
        run are compared under the same draws."""
        return (self.epoch, self.step) if self.training else (None, None)


@dataclass
class Batch:
    """The tensors of one micro-batch, and the numbers that its loss sums are divided by.

    ``denominators`` holds one number for each loss term; the engine adds them up over micro-batches and ranks *before*
    the first forward pass; sums below 1 count as 1. ``tokens`` counts the positions of backbone passes without padding.
    """

    tensors: dict[str, Tensor]
    denominators: dict[str, float]
    tokens: int
    keys: Tensor | None = None  # (B,) int64, one per example, for random draws (methods.random_keys)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def get(self, name: str) -> Tensor | None:
        """Return a tensor, or None if the batch lacks it."""
        return self.tensors.get(name)

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device. Copies to a GPU use pinned memory, so that the host need not wait for them."""

        def move(tensor: Tensor) -> Tensor:  # made contiguous, because the host would wait for the copy of a slice
            return (tensor.contiguous().pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

        moved = {name: move(tensor) for name, tensor in self.tensors.items()}
        return replace(self, tensors=moved, keys=None if self.keys is None else move(self.keys))


@dataclass
class Output:
    """What :meth:`Method.forward` returns. ``losses`` holds the *sum* of each term over the micro-batch, weights
    included; training divides each sum by its global denominator and minimises the total. ``statistics`` holds sums
    that are all-reduced and then passed to the method's ``after_step`` and ``metrics``."""

    losses: dict[str, Tensor]
    statistics: dict[str, Tensor] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """One compared method. Subclasses set the class attributes and implement the abstract methods."""

    name: ClassVar[str]
    title: ClassVar[str]  # as tables print it
    citation: ClassVar[str]  # BibTeX
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    has_latents: ClassVar[bool] = False  # whether it thinks in vectors; Decoding.thoughts then matters
    # The whole-numbered option, from 1 on, that sets how much it thinks (`base.steps`: one of a nested option), if any;
    # `marcos-bench measure --sweep` varies it
    thoughts_option: ClassVar[str | None] = None
    # Loss terms that are statistics of a micro-batch, not sums over its rows (see `Context.over_ranks`)
    batch_terms: ClassVar[tuple[str, ...]] = ()
    can_skip_steps: ClassVar[bool] = False  # whether Decoding.answer_only makes a difference
    caches_in_training: ClassVar[bool] = False  # whether forward reads a KV cache: activations are not recomputed then
    answering_options: ClassVar[tuple[str, ...]] = ()  # options that a trained model can change when it answers
    tested_options: ClassVar[Mapping[str, Any]] = {}  # of the conformance tests, where the defaults are slow

    def __init__(self, options: MethodOptions, setup: Setup) -> None:
        super().__init__()
        self.options = options
        self.vocabulary = setup.vocabulary

    @classmethod
    def steerable_latents(cls, options: Any) -> str | None:
        """Return the name, in :attr:`Generation.trace`, of the latents (B, steps, dims) that interventions set, or None
        if there are none; the method is never given interventions then."""
        return None

    @classmethod
    def encodes_steps(cls, options: Any) -> bool:
        """Return whether training encodes the examples' own steps into latents, and :meth:`generate` takes such latents
        (:attr:`Decoding.encoded`) in place of those that it draws."""
        return False

    def encode_steps(self, examples: Sequence[Example]) -> Tensor:
        """Return the latents (B, steps, dims) into which training encodes the examples' own steps and answers. Called
        if it encodes any (:meth:`encodes_steps`)."""
        raise NotImplementedError(f"{self.name} encodes no steps")

    @classmethod
    def starts_from(cls, options: Any) -> str | None:
        """Return the method whose checkpoint (same data, backbone and seed, default options) initialises this one, or
        None. By default it is the one that the option ``warm_start`` names, if the method has that option."""
        start = getattr(options, "warm_start", "none")
        return None if start == "none" else start

    @property
    def even_passes(self) -> bool:
        """Whether :meth:`forward` calls the same modules in the same order for all micro-batches of a stage. ZeRO 3 is
        refused otherwise: its ranks split the weights, and have to gather those of each module together."""
        return True

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Initialise this method from the weights of a run of the method that :meth:`starts_from` names."""
        copy_weights(weights, self)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @abstractmethod
    def stages(self, budget: Budget) -> list[Stage]:
        """Return the curriculum. Stages that are not cached spend ``budget`` at most; it is warned of if all stages
        together spend less. The last one has a ``select_on``."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Collate examples into one padded micro-batch on the CPU. The result may depend only on them, ``context`` and
        the options, because the batch of the next step is collated while the current step runs."""

    @abstractmethod
    def forward(self, batch: Batch, context: Context) -> Output:
        """Return the loss sums of one micro-batch, in one call however many passes of the backbone it takes.

        A GPU runs asynchronously: the host queues work ahead of time, but has to wait whenever it needs values of a
        tensor (``.item()``, ``.any()`` in an ``if``, indices from a mask). So compute everything that shapes or
        branches depend on in :meth:`collate`; see :mod:`methods.collate`.
        """

    def naive_forward(self, batch: Batch, context: Context) -> Output | None:
        """Compute the same as :meth:`forward` in the plainest way, row by row and without a cache; return None if there
        is no plainer way. Tests compare the two, and `marcos-bench measure --batching` times them."""
        return None

    def features(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        """Return the inputs of a cached stage, one row per example. They are computed once, without gradients."""
        raise NotImplementedError(f"{self.name} has no cached stage")

    def collate_features(self, features: dict[str, Tensor]) -> Batch:
        """Collate rows of :meth:`features` into a micro-batch that :meth:`forward` takes in the cached stage."""
        raise NotImplementedError(f"{self.name} has no cached stage")

    def after_step(self, statistics: dict[str, float]) -> None:
        """Update controllers (kept in buffers, so that checkpoints hold them) from the statistics of one step."""

    def metrics(self, statistics: dict[str, float]) -> dict[str, float]:
        """Return the values to log, given the statistics of one optimizer step or of all validation rows."""
        return {}

    def warnings(self, metrics: dict[str, float]) -> list[str]:
        """Return a sentence for each sign of a failed run, by the :meth:`metrics` of all validation rows."""
        return []

    def dead_latents(self, metrics: Mapping[str, float]) -> bool:
        """Return whether no latent is in use, by the :meth:`metrics` of all validation rows: the results are then those
        of a method without latents. Records keep it, and tables mark such rows."""
        return False

    def length(self, example: Example) -> Length:
        """Return how much ``generate`` emits if it answers as trained: by default the marked answer and end-of-text."""
        return Length(len(self.vocabulary.answer_marker) + len(example.answer) + 1)

    def stochastic(self, decoding: Decoding) -> bool:
        """Return whether the decoding seed changes answers."""
        return decoding.tokens == "sample"

    def nats(self, examples: Sequence[Example]) -> Nats | None:
        """Return what the examples' gold steps and answers cost the trained model, which answers by its own options.
        None: the method has no such likelihood. Called without gradients."""
        return None

    @abstractmethod
    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        """Answer tokenised questions, batched and cached. No answer depends on the batch; no gold text gets here."""


@torch.no_grad()
def copy_weights(weights: Mapping[str, Tensor], module: nn.Module) -> None:
    """Copy tensors into the module's tensors of the same names; raise InputError if it lacks one, or has another size.
    Rows that only the module's table has (markers) keep their values."""
    held = module.state_dict()
    if missing := sorted(weights.keys() - held.keys()):
        raise InputError(
            f"the weights to start from have {missing[0]!r} and {len(missing) - 1} more tensors that "
            f"{type(module).__name__} lacks: name its parts as the method that it starts from does, or "
            "map the names in `warm_start`"
        )
    for name, tensor in weights.items():
        own = held[name]
        table = tensor.dim() == own.dim() == 2 and len(tensor) <= len(own) and tensor.shape[1] == own.shape[1]
        if not table and tensor.shape != own.shape:
            raise InputError(
                f"{name} to start from is {[*tensor.shape]}, and that of {type(module).__name__} {[*own.shape]}: give "
                "it the size of the method that it starts from, or leave it out in `warm_start`"
            )
        own[: len(tensor)].copy_(tensor) if table else own.copy_(tensor)
