"""The loss of many tokens, computed by parts of their logits."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from conforming import contexts, examples, make, setup
from methods import head
from methods.backbone import label_loss
from methods.head import Head

ROWS, WIDTH, WORDS = 300, 16, 151_936


def _head(words: int, bias: bool = False) -> Head:
    torch.manual_seed(0)
    return Head.like(nn.Linear(WIDTH, words, bias=bias))


def _case(words: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(3, ROWS // 3, WIDTH, generator=generator)
    labels = torch.randint(0, words, hidden.shape[:2], generator=generator)
    return hidden, labels, (labels >= 0).nonzero().T, torch.rand(labels.shape, generator=generator)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_loss_and_gradients_are_those_of_whole_logits(
    bias: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, (hidden, labels, labelled, weights) = _head(500, bias), _case(500)
    found = []
    for most in (head.AT_ONCE, 7 * 500):
        monkeypatch.setattr(head, "AT_ONCE", most)
        states = hidden.clone().requires_grad_()
        loss = label_loss(layer, states, labels, labelled, weights if weighted else None) / ROWS
        found.append([loss, *torch.autograd.grad(loss, [states, *layer.parameters()])])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["codi", "marcos"])  # with a loss of several passes, and one of several steps
def test_methods_learn_the_same_by_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(name)
    for context in contexts(method):
        if context.stage.cached:
            continue
        found = []
        for most in (head.AT_ONCE, 150):
            monkeypatch.setattr(head, "AT_ONCE", most)
            losses = method(method.collate(examples(), context), context).losses
            method.zero_grad()
            (torch.stack([*losses.values()]).sum() / len(examples())).backward()
            found.append((losses, {name: p.grad for name, p in method.named_parameters() if p.grad is not None}))
        (whole, gradients), (parts, others) = found
        assert parts.keys() == whole.keys() and others.keys() == gradients.keys()
        for term, value in whole.items():
            torch.testing.assert_close(parts[term], value, rtol=1e-6, atol=1e-6)
        for weight, gradient in gradients.items():
            torch.testing.assert_close(others[weight], gradient, rtol=1e-5, atol=1e-6)


def test_mixed_precision_rounds_as_it_does_with_whole_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are float32, and a pass that follows still gets the gradient of its own copy of the weight."""
    layer, (hidden, labels, labelled, _) = _head(500), _case(500)
    found = []
    for most in (head.AT_ONCE, 7 * 500):
        monkeypatch.setattr(head, "AT_ONCE", most)
        states = hidden.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            long = label_loss(layer, states, labels, labelled)
            short = label_loss(layer, states, labels, labelled[:, :3])
        found.append([long, short, *torch.autograd.grad((long + short) / ROWS, [states, layer.weight])])
    assert all(tensor.dtype == torch.float32 for tensor in found[1])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-2, atol=1e-2 * float(whole.detach().abs().max()))


def test_what_is_not_trained_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "AT_ONCE", 7 * 500)
    layer, (hidden, labels, labelled, _) = _head(500), _case(500)
    with torch.no_grad():
        assert not label_loss(layer, hidden, labels, labelled).requires_grad
    layer.requires_grad_(False)
    states = hidden.clone().requires_grad_()
    loss = label_loss(layer, states, labels, labelled)
    loss.backward(retain_graph=True)
    assert states.grad is not None and layer.weight.grad is None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # and not scaled twice
        loss.backward()


class _Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is computed, in bytes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.size = max(self.size, out.nbytes)
        return out


def test_logits_of_a_large_vocabulary_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What remains is the gradients of the hidden states and of the weight."""
    layer, (hidden, labels, labelled, _) = _head(WORDS), _case(WORDS)
    kept, largest = [], []
    for most in (head.AT_ONCE, 20 * WORDS):
        monkeypatch.setattr(head, "AT_ONCE", most)
        saved: dict[int, int] = {}

        def keep(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            if tensor.data_ptr() != layer.weight.data_ptr():
                saved[tensor.data_ptr()] = tensor.nbytes
            return tensor

        states = hidden.clone().requires_grad_()
        with _Largest() as mode, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            label_loss(layer, states, labels, labelled).backward()
        kept.append(sum(saved.values()))
        largest.append(mode.size)
    logits = 4 * ROWS * WORDS
    assert kept[0] > logits > 18 * 4 * WIDTH * (WORDS + ROWS) > 0.9 * 18 * kept[1]
    assert largest == [logits, 4 * 20 * WORDS]


def test_adapters_that_add_to_logits_get_them_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "AT_ONCE", 100)
    layer, (hidden, labels, labelled, _) = _head(500), _case(500)
    layer.adapter = nn.Identity()

    def doubled(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        return 2 * output

    layer.register_forward_hook(doubled)
    expected = F.cross_entropy(2 * F.linear(hidden, layer.weight).flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(label_loss(layer, hidden, labels, labelled), expected)


def test_a_head_shares_the_weights_and_leaves_the_random_numbers_alone() -> None:
    lm = setup().backbone.causal_lm(extra_tokens=2)
    assert isinstance(lm.get_output_embeddings(), Head)
    assert lm.get_output_embeddings().weight is lm.get_input_embeddings().weight
    assert sum(prod(p.shape) for p in lm.parameters()) == lm.num_parameters()
