"""The FLOPs of a study's methods in training.

How many rows go through which layer, and how many pairs of positions attend, depends on the lengths of examples, layout
and curriculum alone. So a method is run with a backbone of a few dozen dimensions, and its counts are applied to the
layers at full size: nothing is computed at that size.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from benchmarks.engine.adapters import add_adapters
from benchmarks.engine.layers import linear_layers
from benchmarks.plan.lengths import TOKEN, TokenCounter
from benchmarks.studies.runs import RunSpec
from methods import head
from methods.backbone import Backbone, fields_of, load_backbone
from methods.base import Context, Example, Method, Setup, Stage, Vocabulary
from methods.errors import InputError
from methods.head import Head
from methods.last_layer import widen
from methods.registry import build

log = logging.getLogger(__name__)
# FLOPs of the backward pass per FLOP of the forward pass
BACKWARD_LINEAR = 1.0  # gradients of inputs, and as many again of weights that are trained
BACKWARD_ATTENTION = 2.5  # the fused kernels compute scores once more
IN_STACK = re.compile(r"\b(layers|h)\.\d+\.")  # in the module names of a stack's layers; GPT-2's are `h`
FIRST = r"\1.0."


@dataclass(frozen=True)
class Dimensions:
    """The sizes that determine the cost of a backbone, by their names in a Hugging Face configuration.
    ``num_attention_heads * head_dim`` is the width of attention."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int

    @classmethod
    def of(cls, config: Any) -> Dimensions:
        heads = config.num_attention_heads
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=getattr(config, "intermediate_size", 0),
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=getattr(config, "num_key_value_heads", heads),
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocab_size=config.vocab_size,
        )


SMALL = Dimensions(16, 24, 1, 2, 1, 8, 64)


@dataclass
class LayerUsage:
    """What went through the layers of a small method."""

    examples: int = 0
    rows: Counter[str] = field(default_factory=Counter)  # of inputs, by linear layer (in a stack: its first's name)
    at_once: Counter[str] = field(default_factory=Counter)  # rows in a layer's largest call
    pairs: float = 0.0  # of query and key, over all attention calls of one layer
    calls: int = 0  # of attention
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
        width = dimensions.num_attention_heads * dimensions.head_dim
        attention = 4.0 * self.pairs * width * dimensions.num_hidden_layers
        total = sum(linear.values()) + attention
        if backward:
            total += BACKWARD_LINEAR * (sum(linear.values()) + trained) + BACKWARD_ATTENTION * attention
        if again:
            total += sum(flops for name, flops in linear.items() if IN_STACK.search(name)) + attention
        return total / self.examples

    def widest(self, module: nn.Module, times: float) -> float:
        """Return the largest number of values that one linear layer puts out, over all its calls, each with so many
        ``times`` the rows. Of logits that are computed by parts, one part exists at a time."""

        def values(name: str, layer: Any) -> float:
            if isinstance(layer, Head) and layer.splits(math.ceil(times * self.at_once[name])):
                return head.AT_ONCE
            outputs = layer.weight.shape[1 if isinstance(layer, Conv1D) else 0]
            return times * self._rows(name) * outputs

        return max(values(name, layer) for name, layer in linear_layers(module))

    def _rows(self, name: str) -> int:
        return self.rows[IN_STACK.sub(FIRST, name)]


class _Pairs(TorchFunctionMode):
    """Counts attention calls and the pairs of positions in them."""

    def __init__(self, passed: LayerUsage) -> None:
        super().__init__()
        self.passed = passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            queries, keys = args[0], args[1]
            self.passed.pairs += queries.shape[0] * queries.shape[2] * keys.shape[2]
            self.passed.calls += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def count_usage(method: Method, passed: LayerUsage) -> Iterator[None]:
    """Add to ``passed`` what goes through a method with one layer per stack, inside the block."""

    def note(name: str) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].numel() // inputs[0].shape[-1]
            passed.rows[name] += rows
            passed.at_once[name] = max(passed.at_once[name], rows)

        return hook

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in linear_layers(method)]
    with _Pairs(passed):
        yield
    for hook in hooks:
        hook.remove()


def small_method(run: RunSpec, count_tokens: TokenCounter, dimensions: Dimensions = SMALL) -> Method:
    """Build the run's method with a backbone of these dimensions and the same architecture. ``count_tokens`` counts
    those of a text."""
    method = _plain_method(run, dimensions, count_tokens)
    with unset_fake_temporarily():  # `peft` moves what it adds, which fake tensors do not allow
        return add_adapters(method, run.training.lora, seed=0)


def _plain_method(run: RunSpec, dimensions: Dimensions, count_tokens: TokenCounter) -> Method:
    name, fields = run.backbone.name, asdict(dimensions)
    sizes = {field: fields[field] for field in fields_of(name) & fields.keys()}
    backbone = load_backbone(name, 0, overrides={**run.backbone.overrides, **sizes})
    setup = Setup(backbone, stand_in_vocabulary(dimensions.vocab_size, count_tokens))
    method = build(run.method, run.options, setup, seed=0)
    widen(method)  # its one layer stands for all of a stack: what is saved in the last one is not planned with
    return method


def full_size_method(run: RunSpec, backbone: Backbone, count_tokens: TokenCounter) -> Method:
    """Build the run's method at full size on the meta device, without memory for its weights. Raise InputError if its
    layers are not those of :func:`small_method`, which are counted in their place."""
    with torch.device("meta"):
        setup = Setup(replace(backbone, checkpoint=None), stand_in_vocabulary(backbone.config.vocab_size, count_tokens))
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


def stand_in_vocabulary(size: int, count_tokens: TokenCounter) -> Vocabulary:
    """Return a vocabulary that encodes every text as one and the same token, repeated to the text's proper length."""
    return Vocabulary(size, eos=0, encode=lambda text: [TOKEN] * count_tokens(text))


def usage_in_stage(
    method: Method, stage: Stage, batches: Sequence[Sequence[Example]]
) -> tuple[LayerUsage, LayerUsage, float]:
    """Run training steps of a stage with a small method. Return what went through its layers; what went through them to
    compute features, if the stage is cached; and the number of feature values per example."""
    steps, features, size = LayerUsage(), LayerUsage(), 0.0
    with torch.no_grad():
        for number, examples in enumerate(batches):
            context = Context(stage, 0, number, seed=0)
            batch = method.collate(examples, context)
            if stage.cached:
                with count_usage(method, features):
                    made = method.features(batch, context)
                features.examples += len(examples)
                size += sum(values.numel() for values in made.values())
                batch = method.collate_features(made)
            with count_usage(method, steps):
                method(batch, context)
            steps.examples += len(examples)
            steps.batches += 1
    return steps, features, size / max(features.examples, 1)
