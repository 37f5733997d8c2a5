"""The last layer gives the same where it is read, whether it is computed there alone or everywhere."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from conforming import collated, contexts, make
from methods.last_layer import NarrowLayer, forward_last, narrow, widen
from methods.masks import bidirectional_mask, causal_mask, positions_of
from methods.registry import available
from tiny import setup


@pytest.mark.parametrize("name", available())
def test_losses_and_gradients_are_those_of_whole_layers(name: str) -> None:
    method = make(name).double()
    assert any(isinstance(module, NarrowLayer) for module in method.modules())
    found, context = [], contexts(method)[0]
    for change in (None, widen):
        if change:
            change(method)
        method.zero_grad()
        losses = method(collated(method, context), context).losses
        torch.stack(list(losses.values())).sum().backward()
        found.append([*losses.values(), *(p.grad for p in method.parameters() if p.grad is not None)])
    assert not any(isinstance(module, NarrowLayer) for module in method.modules())
    for narrowed, whole in zip(*found, strict=True):
        torch.testing.assert_close(narrowed, whole, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("count", [1, 3, 5, 7])
@pytest.mark.parametrize("kind", ["none", "causal", "bidirectional"])
def test_states_at_the_last_positions(kind: str, count: int) -> None:
    trunk = setup().backbone.trunk().double()
    real = torch.ones(2, 7, dtype=torch.bool)
    if kind != "none":
        real[0, :2] = False
    masks = {"none": lambda _: None, "causal": causal_mask, "bidirectional": bidirectional_mask}
    inputs = {
        "inputs_embeds": torch.randn(2, 7, trunk.config.hidden_size, dtype=torch.float64),
        "attention_mask": masks[kind](real),
        "position_ids": positions_of(real),
    }
    states = forward_last(trunk, count, use_cache=False, **inputs).last_hidden_state
    widen(trunk)
    whole = trunk(use_cache=False, **inputs).last_hidden_state
    assert states.shape == (2, count, trunk.config.hidden_size)
    torch.testing.assert_close(states, whole[:, -count:])


def test_other_architectures_compute_the_whole_layer() -> None:
    trunk = setup("gpt2").backbone.trunk()
    narrow(trunk)
    ids = torch.arange(6).view(2, 3)
    torch.testing.assert_close(
        forward_last(trunk, 2, input_ids=ids).last_hidden_state, trunk(input_ids=ids).last_hidden_state[:, -2:]
    )


@torch.no_grad()
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_is_filled_under_either_of_its_names(name: str) -> None:
    """Which one transformers passes depends on its version."""
    trunk = setup().backbone.trunk()
    states = torch.randn(2, 5, trunk.config.hidden_size)
    cosines, sines = trunk.rotary_emb(states, torch.arange(5)[None])
    cache, last = DynamicCache(), len(trunk.layers) - 1
    trunk.layers[last](states, last=1, position_embeddings=(cosines, sines), **{name: cache})
    assert cache.get_seq_length(last) == 5
