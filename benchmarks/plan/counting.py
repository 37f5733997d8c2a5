"""What training steps of a method compute and keep at the size of its backbone, found without running that size.

How many rows go through which layer, and how many pairs attend, depends on data, layout and curriculum alone. So the
method runs with a backbone of a few dozen dimensions; the numbers are then those of its own layers. What is kept for
the backward pass is counted at the backbone's own width, with tensors that have shapes and no numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from benchmarks.engine import autocast
from benchmarks.engine.layers import checkpoint_activations
from benchmarks.studies.runs import RunSpec
from methods.backbone import Backbone, load_backbone
from methods.base import Batch, Context, Example, Method, Setup, Stage, Vocabulary
from methods.errors import InputError
from methods.registry import build

# FLOPs of the backward pass per FLOP of the forward pass
BACKWARD_LINEAR = 2.0  # gradients of inputs, and of weights
BACKWARD_ATTENTION = 2.5  # the fused kernels compute scores once more
IN_STACK = re.compile(r"\blayers\.\d+\.")  # in the name of a layer's parts
TOKEN = 1  # any id: only lengths matter
TokenCounter = Callable[[str], int]  # how many tokens a text has


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a backbone that its cost depends on; ``heads * head`` is the width of attention."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> Dimensions:
        heads = config.num_attention_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers)
        return cls(*sizes, heads, config.num_key_value_heads, head, config.vocab_size)

    def fields(self) -> dict[str, int]:
        """The same by the names that a configuration has for them."""
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        values = (self.hidden, self.intermediate, self.layers, self.heads, self.key_heads)
        return {**dict(zip(names, values, strict=True)), "head_dim": self.head, "vocab_size": self.vocabulary}


SMALL = Dimensions(16, 24, 1, 2, 1, 8, 64)


class AsksForNumbers(InputError):
    """A forward pass needs to know a number to go on."""


@dataclass
class Passed:
    """What went through the layers of a small method, over ``examples``. ``rows``: inputs of each linear layer by name,
    where the layers of a stack share the first one's. ``pairs``: (query, key) pairs over all attention calls of one
    layer, of which there were ``calls``, in ``batches``."""

    examples: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    pairs: float = 0.0
    calls: int = 0
    batches: int = 0

    @property
    def depth(self) -> float:
        """Passes through a stack of layers, one after the other, that a batch takes."""
        return self.calls / self.batches

    def flops(self, module: nn.Module, dimensions: Dimensions, backward: bool, again: bool = False) -> float:
        """FLOPs per example of ``module``, which may be on the meta device; ``again``: the backward pass runs the
        layers of stacks forward once more."""
        linear = {name: 2.0 * self._rows(name) * layer.weight.numel() for name, layer in _linears(module)}
        attention = 4.0 * self.pairs * dimensions.heads * dimensions.head * dimensions.layers
        total = sum(linear.values()) + attention
        if backward:
            total += BACKWARD_LINEAR * sum(linear.values()) + BACKWARD_ATTENTION * attention
        if again:
            total += sum(flops for name, flops in linear.items() if IN_STACK.search(name)) + attention
        return total / self.examples

    def widest(self, module: nn.Module) -> float:
        """The most numbers that one linear layer gave out, over all its calls."""
        return max(self._rows(name) * layer.out_features for name, layer in _linears(module))

    def _rows(self, name: str) -> int:
        return self.rows[IN_STACK.sub("layers.0.", name)]


def _linears(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear))


class _Pairs(TorchFunctionMode):
    """Counts the pairs of positions in calls of attention."""

    def __init__(self, passed: Passed) -> None:
        super().__init__()
        self.passed = passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            queries, keys = args[0], args[1]
            self.passed.pairs += queries.shape[0] * queries.shape[2] * keys.shape[2]
            self.passed.calls += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def watching(method: Method, passed: Passed) -> Iterator[None]:
    """Adds to ``passed`` what passes through a method of one layer per stack in the meantime."""

    def note(name: str) -> Any:
        def hook(layer: nn.Linear, inputs: tuple[Tensor, ...]) -> None:
            passed.rows[name] += inputs[0].numel() // layer.in_features

        return hook

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in _linears(method)]
    with _Pairs(passed):
        yield
    for hook in hooks:
        hook.remove()


def usual_length(text: str) -> int:
    """About as many tokens as published tokenizers make of a text."""
    return 1 + len(text) // 4


def sized_method(run: RunSpec, dimensions: Dimensions = SMALL, length: TokenCounter = usual_length) -> Method:
    """The run's method with a backbone of these dimensions and the same architecture; ``length`` counts the tokens of a
    text."""
    overrides = {**run.backbone.overrides, **dimensions.fields()}
    backbone = load_backbone(run.backbone.name, 0, overrides=overrides)
    return build(run.method, run.options, Setup(backbone, stand_in(dimensions.vocabulary, length)), seed=0)


def whole_method(run: RunSpec, backbone: Backbone, length: TokenCounter) -> Method:
    """The run's method as it will be, without memory for its weights."""
    with torch.device("meta"):
        setup = Setup(replace(backbone, checkpoint=None), stand_in(backbone.config.vocab_size, length))
        return build(run.method, run.options, setup, seed=0)


def stand_in(size: int, length: TokenCounter) -> Vocabulary:
    """A vocabulary of one token, of which each text has as many as it should have."""
    return Vocabulary(size, eos=0, encode=lambda text: [TOKEN] * length(text))


def example(number: int, question: int, steps: Sequence[int], answer: int) -> Example:
    """An example of these lengths."""
    return Example(str(number), [TOKEN] * question, [[TOKEN] * step for step in steps], [TOKEN] * answer)


def passed_in_stage(method: Method, stage: Stage, batches: Sequence[Sequence[Example]]) -> tuple[Passed, Passed, float]:
    """What passes through a small method in training steps of a stage; and, if the stage is cached, what passes when
    its features are computed, and how many numbers these are per example."""
    steps, features, size = Passed(), Passed(), 0.0
    with torch.no_grad():
        for number, examples in enumerate(batches):
            context = Context(stage, 0, number, seed=0)
            batch = method.collate(examples, context)
            if stage.cached:
                with watching(method, features):
                    made = method.features(batch, context)
                features.examples += len(examples)
                size += sum(values.numel() for values in made.values())
                batch = method.collate_features(made)
            with watching(method, steps):
                method(batch, context)
            steps.examples += len(examples)
            steps.batches += 1
    return steps, features, size / max(features.examples, 1)


def kept_bytes(
    run: RunSpec,
    stage: Stage,
    examples: Sequence[Example],
    dimensions: Dimensions,
    precision: str,
    length: TokenCounter = usual_length,
) -> int:
    """Bytes that one forward pass over ``examples`` keeps for the backward pass at those dimensions, weights apart.

    With activation checkpointing: what layers keep of their inputs, and all that one layer of every stack keeps, which
    the backward pass brings back one layer at a time.
    """

    def counted(again: bool) -> tuple[int, int]:
        """With one layer per stack, and for each further one: layers are alike, and many take seconds to count."""
        sizes = []
        for layers in (1, 2):
            with FakeTensorMode():
                method = sized_method(run, replace(dimensions, layers=layers), length)
            if again:
                checkpoint_activations(method.train())
            sizes.append(kept_by(method, stage, examples, precision))
        return sizes[0], sizes[1] - sizes[0]

    first, layer = counted(again=False)
    if not run.engine.activation_checkpointing:
        return first + (dimensions.layers - 1) * layer
    first, inputs = counted(again=True)
    return first + (dimensions.layers - 1) * inputs + layer


def kept_by(method: Method, stage: Stage, examples: Sequence[Example], precision: str) -> int:
    """Bytes that a method's forward pass keeps, each tensor once, without weights and their copies in bfloat16. A
    method without numbers raises :class:`AsksForNumbers` where it needs one."""
    weights = {StorageWeakRef(parameter.untyped_storage()) for parameter in method.parameters()}
    shapes = {tuple(parameter.shape) for parameter in method.parameters() if parameter.ndim == 2}
    kept: dict[StorageWeakRef, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> None:  # in the tensor's place the graph keeps nothing: no backward pass follows
        copied = tensor.dtype == torch.bfloat16 and {tuple(tensor.shape), tuple(tensor.shape[::-1])} & shapes
        storage = tensor.untyped_storage()
        place = StorageWeakRef(storage)
        if place not in weights and not copied:
            kept[place] = storage

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing)
    with hooks, autocast(method.device, precision):
        _pass_forward(method, stage, examples)
    return sum(storage.nbytes() for storage in kept.values())


def _pass_forward(method: Method, stage: Stage, examples: Sequence[Example]) -> None:
    """One training pass, of a method with numbers or without."""
    context = Context(stage, 0, 0, seed=0)
    batch, weight = method.collate(examples, context), next(method.parameters())
    if not isinstance(weight, FakeTensor):
        method(batch, context)
        return
    try:
        with weight.fake_mode as mode:
            method(without_numbers(batch, mode), context)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise AsksForNumbers(
            f"{method.name} cannot be planned: its forward pass asks for a number ({error.func}); "
            "find it out in `collate`, which knows all numbers"
        ) from error


def without_numbers(batch: Batch, mode: FakeTensorMode) -> Batch:
    """A batch of the same shapes."""
    tensors: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in batch.tensors.items()}
    return replace(batch, tensors=tensors, keys=None if batch.keys is None else mode.from_tensor(batch.keys))
