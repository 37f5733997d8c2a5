"""Count what training steps of a method compute and keep at the size of its backbone, without running at that size.

How many rows go through which layer, and how many pairs of positions attend, depends on data, layout and curriculum
alone. So the method runs with a backbone of a few dozen dimensions, and its counts are applied to the full-size layers.
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
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from benchmarks.engine.adapters import add_adapters
from benchmarks.engine.layers import linear_layers, widths
from benchmarks.studies.runs import RunSpec
from methods.backbone import Backbone, fields_of, load_backbone
from methods.base import Context, Example, Method, Setup, Stage, Vocabulary
from methods.errors import InputError
from methods.registry import build

# FLOPs of the backward pass per FLOP of the forward pass
BACKWARD_LINEAR = 1.0  # gradients of inputs, and as many again of weights that are trained
BACKWARD_ATTENTION = 2.5  # the fused kernels compute scores once more
IN_STACK = re.compile(r"\b(layers|h)\.\d+\.")  # in the module names of a stack's layers; GPT-2's are `h`
FIRST = r"\1.0."
TOKEN = 1  # any id: only lengths matter
TokenCounter = Callable[[str], int]  # returns the number of tokens of a text


@dataclass(frozen=True)
class Dimensions:
    """The sizes that determine the cost of a backbone. ``heads * head`` is the width of attention."""

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
        sizes = (config.hidden_size, getattr(config, "intermediate_size", 0), config.num_hidden_layers)
        return cls(*sizes, heads, getattr(config, "num_key_value_heads", heads), head, config.vocab_size)

    def fields(self) -> dict[str, int]:
        """Return the sizes under their names in a Hugging Face configuration."""
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        values = (self.hidden, self.intermediate, self.layers, self.heads, self.key_heads)
        return {**dict(zip(names, values, strict=True)), "head_dim": self.head, "vocab_size": self.vocabulary}


SMALL = Dimensions(16, 24, 1, 2, 1, 8, 64)


@dataclass
class Passed:
    """What went through the layers of a small method, over ``examples``.

    ``rows``: the number of input rows of each linear layer by name; the layers of a stack share the name of the first.
    ``pairs``: the number of (query, key) pairs over all attention calls of one layer. There were ``calls`` such calls,
    in ``batches``.
    """

    examples: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    pairs: float = 0.0
    calls: int = 0
    batches: int = 0

    @property
    def depth(self) -> float:
        """Mean number of sequential passes through a stack of layers that a batch takes."""
        return self.calls / self.batches

    def flops(self, module: nn.Module, dimensions: Dimensions, backward: bool, again: bool = False) -> float:
        """Return the FLOPs per example of ``module``, which may be on the meta device, and whose trained parameters
        require gradients. With ``again``, the backward pass recomputes the forward pass of the layers of stacks."""
        linear = {name: 2.0 * self._rows(name) * layer.weight.numel() for name, layer in linear_layers(module)}
        trained = sum(linear[name] for name, layer in linear_layers(module) if layer.weight.requires_grad)
        attention = 4.0 * self.pairs * dimensions.heads * dimensions.head * dimensions.layers
        total = sum(linear.values()) + attention
        if backward:
            total += BACKWARD_LINEAR * (sum(linear.values()) + trained) + BACKWARD_ATTENTION * attention
        if again:
            total += sum(flops for name, flops in linear.items() if IN_STACK.search(name)) + attention
        return total / self.examples

    def widest(self, module: nn.Module) -> float:
        """Return the largest number of values that one linear layer puts out, over all its calls."""
        return max(self._rows(name) * widths(layer)[1] for name, layer in linear_layers(module))

    def _rows(self, name: str) -> int:
        return self.rows[IN_STACK.sub(FIRST, name)]


class _Pairs(TorchFunctionMode):
    """Counts attention calls and the pairs of positions in them."""

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
    """Add to ``passed`` what goes through a method with one layer per stack, inside the block."""

    def note(name: str) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            passed.rows[name] += inputs[0].numel() // inputs[0].shape[-1]

        return hook

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in linear_layers(method)]
    with _Pairs(passed):
        yield
    for hook in hooks:
        hook.remove()


def usual_length(text: str) -> int:
    """Estimate the number of tokens of a text in published tokenizers."""
    return 1 + len(text) // 4


def sized_method(run: RunSpec, dimensions: Dimensions = SMALL, count_tokens: TokenCounter = usual_length) -> Method:
    """Build the run's method with a backbone of these dimensions and the same architecture. ``count_tokens`` counts
    those of a text."""
    return add_adapters(_plain_method(run, dimensions, count_tokens), run.training.lora, seed=0)


def _plain_method(run: RunSpec, dimensions: Dimensions, count_tokens: TokenCounter) -> Method:
    name, fields = run.backbone.name, dimensions.fields()
    sizes = {field: fields[field] for field in fields_of(name) & fields.keys()}
    backbone = load_backbone(name, 0, overrides={**run.backbone.overrides, **sizes})
    setup = Setup(backbone, stand_in(dimensions.vocabulary, count_tokens))
    return build(run.method, run.options, setup, seed=0)


def whole_method(run: RunSpec, backbone: Backbone, count_tokens: TokenCounter) -> Method:
    """Build the run's method at full size on the meta device, without memory for its weights. Raise InputError if its
    layers are not those of :func:`sized_method`, which are counted in their place."""
    with torch.device("meta"):
        setup = Setup(replace(backbone, checkpoint=None), stand_in(backbone.config.vocab_size, count_tokens))
        whole = build(run.method, run.options, setup, seed=0)
        if backbone.checkpoint:
            _require_alike(_plain_method(run, SMALL, count_tokens), whole, run)
        return add_adapters(whole, run.training.lora, seed=0)


def _require_alike(small: nn.Module, whole: nn.Module, run: RunSpec) -> None:
    """Raise InputError if the layers that are counted, of ``small``, are not those of the ``whole`` method: what goes
    through a checkpoint of another architecture than the configuration's would count in part, or not at all."""
    counted, real = ({IN_STACK.sub(FIRST, name) for name, _ in linear_layers(module)} for module in (small, whole))
    if counted != real:
        raise InputError(
            f"a plan counts the layers of the configuration {run.backbone.name}, and {run.backbone.pretrained} has "
            "others: beside `pretrained`, name a configuration of its architecture; if there is none, "
            "`marcos-bench measure` tells what steps take"
        )


def stand_in(size: int, count_tokens: TokenCounter) -> Vocabulary:
    """Return a vocabulary that encodes every text as one and the same token, repeated to the text's proper length."""
    return Vocabulary(size, eos=0, encode=lambda text: [TOKEN] * count_tokens(text))


def example(number: int, question: int, steps: Sequence[int], answer: int) -> Example:
    """Return an example of these lengths."""
    return Example(str(number), [TOKEN] * question, [[TOKEN] * step for step in steps], [TOKEN] * answer)


def passed_in_stage(method: Method, stage: Stage, batches: Sequence[Sequence[Example]]) -> tuple[Passed, Passed, float]:
    """Run training steps of a stage with a small method. Return what went through its layers; what went through them to
    compute features, if the stage is cached; and the number of feature values per example."""
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
