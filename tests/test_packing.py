"""Batches that are joined instead of padded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.engine.layers import checkpoint_activations
from conforming import contexts, examples, make, setup
from methods.base import Batch, Example, Method
from methods.registry import build, get_method
from tiny import passes

JOINED = [  # the method, its options, the backbone, and whether activations are computed again
    ("cot_sft", {}, "gpt2", True),
    ("cot_sft", {"steps": False}, "qwen2-tiny", False),
    ("icot_si", dict(get_method("icot_si").tested_options), "qwen2-tiny", True),
]


def _uneven() -> list[Example]:
    """Return examples of which one is much longer than the others."""
    first, *others = examples()
    return [replace(first, question=[22 + i % 30 for i in range(40)]), *others]


def _learnt(method: Method, batch: Batch, context: Any) -> tuple[Tensor, dict[str, Tensor]]:
    method.zero_grad()
    loss = method(batch, context).losses["cross_entropy"]
    (loss / batch.denominators["cross_entropy"]).backward()
    return loss.detach(), {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "options", "backbone", "again"), JOINED)
def test_joined_rows_learn_what_padded_rows_do(name: str, options: dict[str, Any], backbone: str, again: bool) -> None:
    padded, joined = (build(name, options | {"packed": packed}, setup(backbone), seed=0) for packed in (False, True))
    if again:
        checkpoint_activations(joined.train())
    for context in contexts(padded):
        whole, packed = (method.collate(_uneven(), context) for method in (padded, joined))
        assert packed["ids"].shape == (1, packed.tokens) and whole["ids"].numel() > 1.5 * whole.tokens
        assert packed.denominators == whole.denominators and packed.tokens == whole.tokens
        (loss, gradients), (other, others) = _learnt(padded, whole, context), _learnt(joined, packed, context)
        torch.testing.assert_close(other, loss, rtol=1e-5, atol=1e-5)
        assert others.keys() == gradients.keys()
        for weight, gradient in gradients.items():
            torch.testing.assert_close(others[weight], gradient, rtol=1e-5, atol=1e-5)


def test_a_row_learns_the_same_in_whatever_company() -> None:
    """Losses are sums over rows, and so may be split over micro-batches and ranks."""
    method = build("cot_sft", {"packed": True}, setup(), seed=0)
    (context,) = contexts(method)
    with torch.no_grad():
        losses = [
            sum(float(method(method.collate(part, context), context).losses["cross_entropy"]) for part in parts)
            for parts in ([_uneven()], [_uneven()[:5], _uneven()[5:]], [[one] for one in _uneven()])
        ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_layers_see_no_padding() -> None:
    method = build("cot_sft", {"packed": True}, setup(), seed=0)
    (context,) = contexts(method)
    read, batch = passes(method), method.collate(_uneven(), context)
    method(batch, context)
    assert [shape.numel() for shape in read] == [batch.tokens]


def test_recorded_runs_keep_their_digests() -> None:
    assert "packed" not in make("cot_sft").options.model_dump() | make("icot_si").options.model_dump()
