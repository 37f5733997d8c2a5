"""What the conformance tests ask of every method: a model, examples and questions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.evaluation.inference import generate
from methods.backbone import load_backbone
from methods.base import Batch, Budget, Context, Example, Method, Setup, Vocabulary
from methods.generation import Decoding
from methods.registry import build, get_method
from tiny import GPT2

EOS, WORDS = 1, 60
BACKBONES: dict[str, dict[str, int]] = {
    "qwen2-tiny": {"hidden_size": 32, "intermediate_size": 64},
    "gpt2": GPT2,
}
BUDGET = Budget(epochs=8.0, steps_per_epoch=4, chain_lengths=(9,) * 12)


def encode(text: str) -> list[int]:
    return [2 + (ord(letter) * 7 + i) % 20 for i, letter in enumerate(text)]


def setup(backbone: str = "qwen2-tiny") -> Setup:
    return Setup(load_backbone(backbone, WORDS, overrides=BACKBONES[backbone]), Vocabulary(WORDS, EOS, encode))


def make(name: str, backbone: str = "qwen2-tiny") -> Method:
    return build(name, get_method(name).tested_options, setup(backbone), seed=0)


def perturbed(method: Method) -> Method:
    """Return a method with other weights, for answers: markers with equal weights would tie, and ties are arbitrary."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return method.eval()


def examples(count: int = 12) -> list[Example]:
    """Return questions of unequal length, each with one of its own tokens as the answer."""
    rows = []
    for i in range(count):
        question = [22 + (i * 5 + j) % 30 for j in range(4 + i % 5)]
        steps = [[52, question[0], 53 + k, 55] for k in range(i % 4)]
        rows.append(Example(f"row-{i}", question, steps, [question[-1], 56 + i % 3]))
    return rows


def questions() -> list[Sequence[int]]:
    return [example.question for example in examples()]


def say(method: Method, asked: list[Sequence[int]], **decoding: object) -> list[list[int]]:
    """Return answers without padding."""
    answer = generate(method, asked, Decoding(max_new_tokens=12, **decoding), "float32").answer  # type: ignore[arg-type]
    assert answer.dtype == torch.long and answer.shape[:-1] == (len(asked),)
    return [[token for token in row if token != EOS] for row in answer.tolist()]


def contexts(method: Method) -> list[Context]:
    return [Context(stage, epoch=0, step=3, seed=0) for stage in method.stages(BUDGET)]


@torch.no_grad()
def collated(method: Method, context: Context, some: Sequence[Example] = ()) -> Batch:
    """Return the examples, or some of them, as a micro-batch of a stage."""
    batch = method.collate(list(some) or examples(), context)
    return method.collate_features(method.features(batch, context)) if context.stage.cached else batch
