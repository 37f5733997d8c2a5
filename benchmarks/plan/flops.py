"""What the training steps of a study compute: the lengths of its examples, and the FLOPs of its methods.

Lengths come from prepared data, from published rows, or from assumptions. How many rows go through which layer, and how
many pairs of positions attend, depends on data, layout and curriculum alone. So a method is run with a backbone of a
few dozen dimensions, and its counts are applied to the layers at full size: nothing is computed at that size.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedTokenizerBase

from benchmarks.data import get_dataset, load_records, load_tokenizer, make_tokenizer, open_corpus, store
from benchmarks.data.corpus import spread_over
from benchmarks.data.loading import dataset_with, exclude_questions, split_validation, to_records
from benchmarks.data.records import DataError, Record
from benchmarks.data.sources import Generated
from benchmarks.data.tokenizers import PUBLISHED, encode_questions, encode_texts
from benchmarks.engine.adapters import add_adapters
from benchmarks.engine.layers import linear_layers, widths
from benchmarks.files import read_json
from benchmarks.studies.paths import DONE, data_folder
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import Block, DataSpec, TokenizerSpec
from benchmarks.studies.study import Study
from methods import head
from methods.backbone import Backbone, fields_of, load_backbone
from methods.base import Context, Example, Method, Setup, Stage, Vocabulary
from methods.errors import InputError
from methods.head import Head
from methods.last_layer import widen
from methods.registry import build

log = logging.getLogger(__name__)

SAMPLE = 2_000  # examples whose lengths are used
STAND_IN = TokenizerSpec(trained=2048)  # its digits are single tokens, as in the published tokenizers
LONGEST = 32  # number of examples that memory is planned for
# FLOPs of the backward pass per FLOP of the forward pass
BACKWARD_LINEAR = 1.0  # gradients of inputs, and as many again of weights that are trained
BACKWARD_ATTENTION = 2.5  # the fused kernels compute scores once more
IN_STACK = re.compile(r"\b(layers|h)\.\d+\.")  # in the module names of a stack's layers; GPT-2's are `h`
FIRST = r"\1.0."
TOKEN = 1  # any id: only lengths matter
TokenCounter = Callable[[str], int]  # returns the number of tokens of a text


class Assumed(NamedTuple):
    """Lengths in tokens of Qwen2.5: means and standard deviations of questions and of chains with their line ends, the
    correlation of the two, the mean number of steps, and the length of the answer; of the longest rows, the question,
    each step, and the answer."""

    question: float
    question_deviation: float
    chain: float
    chain_deviation: float
    correlation: float
    steps: float
    answer: int
    longest: tuple[int, list[int], int]


# From GSM8K-Aug's first 3,000 rows (equation), and GSM8K's training split, whose questions are assumed to be as short.
# The longest rows are those of GSM8K's training split
ASSUMED = {
    "equation": Assumed(46.2, 13.9, 30.6, 16.2, correlation=0.52, steps=2.6, answer=3, longest=(194, [22] * 5, 2)),
    "text": Assumed(46.2, 13.9, 88.1, 41.7, correlation=0.52, steps=3.6, answer=3, longest=(129, [31] * 10, 1)),
}
STEPS_SPREAD = 2.5  # the mean number of steps in standard deviations
SHORTEST = {"question": 10, "step": 4}


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a text in published tokenizers."""
    return 1 + len(text) // 4


@dataclass(frozen=True)
class Lengths:
    examples: list[Example]  # a sample of the whole range of the rows' lengths
    longest: list[Example]  # as long as the longest rows
    rows: int
    tokens: float  # of question, steps and answer, over all rows
    vocabulary: int  # number of its tokens
    basis: str  # where the lengths come from
    count_tokens: TokenCounter = estimated_tokens

    @cached_property
    def by_length(self) -> list[Example]:
        return sorted(self.examples, key=total_length)

    @property
    def chains(self) -> list[int]:
        """The tokens of each example's steps, line ends included."""
        return [sum(len(step) + 1 for step in example.steps) for example in self.examples]


def lengths_of(study: Study, block: Block, results: Path) -> Lengths:
    """Return lengths from the best source that is available. Nothing is downloaded."""
    folder = data_folder(results, study.name, block.id)
    if store.is_prepared(study, block, results):  # not from earlier settings of the study
        return _prepared(folder)
    return expected_lengths(block.data, study.tokenizer_of(block))


def expected_lengths(data: DataSpec, tokenizer: TokenizerSpec) -> Lengths:
    """Return lengths of data that are not prepared yet: from published rows if they are in reach, otherwise by
    assumption."""
    dataset = dataset_with(data.train, data.form, "train")
    if isinstance(dataset, Generated) or dataset.in_folder("train"):
        try:
            return _published(data, tokenizer)
        except InputError as error:  # files in the folder that cannot be used
            if isinstance(dataset, Generated):
                raise
            log.warning("lengths are assumed, because the published rows cannot be read: %s", error)
    return _assumed(data, tokenizer)


def _prepared(folder: Path) -> Lengths:
    corpus = open_corpus(folder, "train")
    size = read_json(folder / DONE)["tokenizer"]["size"]
    places = (spread_over(len(corpus), SAMPLE), np.argsort(-corpus.lengths)[:LONGEST])
    examples, longest = (
        [_like(e.question, e.steps, e.answer, i) for i, e in enumerate(corpus.examples(place))] for place in places
    )
    counted = _counted(load_tokenizer(folder))
    return Lengths(examples, longest, len(corpus), float(corpus.lengths.sum()), size, "the prepared data", counted)


def _counted(tokenizer: PreTrainedTokenizerBase) -> TokenCounter:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _at_hand(tokenizer: TokenizerSpec) -> bool:
    if tokenizer.pretrained is None:
        return True
    known = PUBLISHED.get(tokenizer.pretrained)
    return known.folder in os.environ if known and known.folder else Path(tokenizer.pretrained).is_dir()


def _published(data: DataSpec, spec: TokenizerSpec) -> Lengths:
    dataset = get_dataset(data.train)
    if isinstance(dataset, Generated):  # its first rows are like any others
        count = card_rows(data)
        rows = [replace(row, key=str(i)) for i, row in enumerate(islice(dataset.generate("train"), SAMPLE))]
        records = to_records(data.train, data.form, "train", rows)
    else:
        records = load_records(data.train, data.form, "train")
        if data.validation_set:
            records = exclude_questions(records, load_records(data.validation_set, data.form, "test"))
        else:
            records, _ = split_validation(records, data.validation)
        count = min(len(records), data.limit or len(records))
    records = records[:count]
    sample = [records[i] for i in spread_over(len(records), SAMPLE)]
    large = sorted(records, key=lambda r: sum(map(len, (r.question, *r.steps, r.answer))), reverse=True)[: 4 * LONGEST]
    tokenizer = make_tokenizer(spec if _at_hand(spec) else STAND_IN, records)

    def examples_of(some: Sequence[Record]) -> list[Example]:
        asked = encode_questions(tokenizer, [record.question for record in some])
        answers = encode_texts(tokenizer, [record.answer for record in some])
        steps = [encode_texts(tokenizer, record.steps) for record in some]
        made = [_like(*parts, i) for i, parts in enumerate(zip(asked, steps, answers, strict=True))]
        return [e for e in made if len(e.question) <= data.max_question_tokens]

    examples, longest = examples_of(sample), sorted(examples_of(large), key=total_length)[-LONGEST:]
    if not examples:
        raise DataError(
            f"no question of {len(sample):,} has {data.max_question_tokens} tokens or fewer; raise "
            "`max_question_tokens`"
        )
    used = round(count * len(examples) / len(sample))
    basis = f"{len(sample):,} of {count:,} rows"
    if _at_hand(spec):
        return Lengths(examples, longest, used, used * _mean(examples), len(tokenizer), basis, _counted(tokenizer))
    basis += f", with a trained tokenizer of {STAND_IN.trained} in the place of {spec.pretrained}"
    return Lengths(examples, longest, used, used * _mean(examples), _size(spec), basis)


def _like(question: Sequence[int], steps: Sequence[Sequence[int]], answer: Sequence[int], number: int) -> Example:
    return example(number, len(question), [len(step) for step in steps], len(answer))


def _assumed(data: DataSpec, tokenizer: TokenizerSpec) -> Lengths:
    mean = ASSUMED.get(data.form, ASSUMED["text"])
    draws = np.random.Generator(np.random.PCG64(0)).standard_normal((SAMPLE, 3))
    other = mean.correlation * draws[:, 0] + (1 - mean.correlation**2) ** 0.5 * draws[:, 1]
    count = np.maximum(1, np.round(mean.steps + draws[:, 2] * mean.steps / STEPS_SPREAD)).astype(int)
    asked = np.maximum(SHORTEST["question"], np.round(mean.question + mean.question_deviation * draws[:, 0]))
    asked = asked.astype(int)
    written = np.maximum(SHORTEST["step"] * count, np.round(mean.chain + mean.chain_deviation * other)).astype(int)
    parts = [np.diff(np.linspace(0, w - c, c + 1).astype(int)) for w, c in zip(written, count, strict=True)]
    examples = [example(i, int(asked[i]), parts[i].tolist(), mean.answer) for i in range(SAMPLE)]
    rows = card_rows(data)
    basis = f"the card's count and assumed lengths (question {mean.question:g}, chain {mean.chain:g} tokens on average)"
    longest = [example(i, *mean.longest) for i in range(LONGEST)]
    return Lengths(examples, longest, rows, rows * _mean(examples), _size(tokenizer), basis)


def card_rows(data: DataSpec) -> int:
    """Return how many rows a block trains on, according to its data set's card."""
    published = get_dataset(data.train).card.counts["train"]
    if data.validation_set:
        return min(published, data.limit or published)
    if data.validation >= published:
        raise DataError(
            f"{data.validation:,} validation rows cannot be split off the {published:,} rows of {data.train}; ask fewer"
        )
    return min(published - data.validation, data.limit or published)


def _size(spec: TokenizerSpec) -> int:
    """Return a tokenizer's size if it is known without loading it, otherwise 0, for which a backbone keeps its own
    vocabulary size."""
    if isinstance(spec.trained, int):
        return spec.trained
    return PUBLISHED[spec.pretrained].size if spec.pretrained in PUBLISHED else 0


def _mean(examples: Sequence[Example]) -> float:
    return float(np.mean([total_length(e) for e in examples]))


def total_length(example: Example) -> int:
    """Return the tokens of question, steps and answer."""
    return len(example.question) + sum(map(len, example.steps)) + len(example.answer)


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

        def values(name: str, layer: nn.Module) -> float:
            if isinstance(layer, Head) and layer.splits(math.ceil(times * self.at_once[name])):
                return head.AT_ONCE
            return times * self._rows(name) * widths(layer)[1]

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


def small_method(run: RunSpec, dimensions: Dimensions = SMALL, count_tokens: TokenCounter = estimated_tokens) -> Method:
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


def example(number: int, question: int, steps: Sequence[int], answer: int) -> Example:
    return Example(str(number), [TOKEN] * question, [[TOKEN] * step for step in steps], [TOKEN] * answer)


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
