"""A model, a vocabulary and problems that are small enough to recompute every number of a method in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.engine.adapters import in_adapter
from methods.backbone import load_backbone
from methods.base import Context, Example, Method, Setup, Stage, Vocabulary
from methods.registry import build

EOS = 0
PROBLEMS = {  # question -> steps and answer
    "Ann has 3 + 4": (["<<3+4=7>>"], "7"),
    "9 of 12 go, then 2 more": (["<<12-9=3>>", "<<3-2=1>>"], "1"),
    "2 + 2, twice, less 1, halved": (["<<2+2=4>>", "<<4*2=8>>", "<<8-1=7>>", "<<7/2=3.5>>"], "3.5"),
    "5": ([], "5"),
}


def ids(text: str) -> list[int]:
    """Encode a text with one token per ASCII character."""
    return list(text.encode("ascii"))


def text(tokens: Sequence[int], **names: int) -> str:
    """Decode tokens, the inverse of ids. End-of-text is $, and tokens that are not characters show their names."""
    special = {EOS: "$", **{token: f"[{name}]" for name, token in names.items()}}
    return "".join(special.get(int(token)) or chr(token) for token in tokens)


GPT2 = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 0}


def setup(backbone: str = "qwen2-tiny", dropout: float = 0.0, **overrides: float) -> Setup:
    sizes = GPT2 if backbone == "gpt2" else {"hidden_size": 32, "intermediate_size": 48}
    made = load_backbone(backbone, 128, overrides={**sizes, **overrides}, dropout=dropout)
    return Setup(made, Vocabulary(128, EOS, ids))


def make(
    name: str,
    options: Mapping[str, Any] | None = None,
    backbone: str = "qwen2-tiny",
    dropout: float = 0.0,
    **overrides: float,
) -> Method:
    return build(name, options or {}, setup(backbone, dropout, **overrides), seed=0)


def disturb(method: Method) -> None:
    """Let adapters, which start at zero, add something."""
    torch.manual_seed(1)
    for name, parameter in method.named_parameters():
        if in_adapter(name):
            parameter.data += 0.1 * torch.randn_like(parameter)


def examples() -> list[Example]:
    return [
        Example(f"row-{i}", ids(question), [ids(step) for step in steps], ids(answer))
        for i, (question, (steps, answer)) in enumerate(PROBLEMS.items())
    ]


def questions() -> list[list[int]]:
    return [ids(question) for question in PROBLEMS]


def context(training: bool = True, **settings: float) -> Context:
    """Return the context of a stage with the given settings."""
    return Context(Stage("a stage", 1.0, settings=settings), epoch=0, step=0, seed=0, training=training)


def passes(method: Method) -> list[torch.Size]:
    """Return a list to which every further pass of a transformer adds the shape of what it reads, padding included."""
    shapes: list[torch.Size] = []

    def note(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        read = kwargs.get("inputs_embeds")
        shapes.append(kwargs["input_ids"].shape if read is None else read.shape[:2])

    for module in method.modules():
        if isinstance(module, PreTrainedModel) and module.base_model is module:
            module.register_forward_pre_hook(note, with_kwargs=True)
    return shapes
