"""Fixed buffers against the growing cache: the same hidden states, whatever the buffers contained before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from methods import _static_cache
from methods._static_cache import StaticKVCache
from methods.backbone import load_backbone
from methods.decoding import Prefix, extend, forward_cached, make_cache, prefill
from methods.generation import CachePolicy
from methods.kv_cache import DynamicKVCache, cache_argument

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # graphs are captured only on a GPU


@pytest.fixture
def lm():
    torch.manual_seed(0)
    overrides = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.3}
    return load_backbone("qwen2-tiny", 40, overrides=overrides).causal_lm().eval().to(DEVICE)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def prompt(rows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return embedding vectors and the mask of real ones. Padding is on the left."""
    generator = torch.Generator().manual_seed(seed)
    real = torch.arange(length) >= torch.arange(rows)[:, None] % length
    return torch.randn(rows, length, 32, generator=generator).to(DEVICE), real.to(DEVICE)


def states(lm, cache: CachePolicy, rows: int, length: int, steps: int, seed: int = 0) -> list[Tensor]:
    """Return the final hidden states of a prompt and of further vectors.

    In between, rows leave the batch, and two vectors are read at once.
    """
    prefix: Prefix = prefill(lm.base_model, *prompt(rows, length, seed), cache)
    found = [prefix.hidden]
    for step in range(steps):
        vectors, _ = prompt(len(prefix.hidden), 2, seed=step + 1)
        prefix = extend(prefix, vectors[:, 0])
        found.append(prefix.hidden)
        if step == 1:
            prefix, output = forward_cached(prefix, vectors)
            found.append(output.last_hidden_state)
        if step == 2 and rows > 1:
            prefix = prefix.select(torch.arange(0, rows, 2, device=vectors.device))
    return found


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (5, 7), (8, 126), (3, 140)])
def test_hidden_states_are_those_of_a_growing_cache(lm, rows: int, length: int) -> None:
    """This includes lengths past the end of the buffers, which then grow."""
    steps = 6 if length < 126 else 140
    for ours, expected in zip(
        states(lm, "static", rows, length, steps), states(lm, "dynamic", rows, length, steps), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_buffers_are_used_again_whatever_is_in_them(lm) -> None:
    states(lm, "static", 6, 9, 12)
    buffers = _static_cache._BUFFERS[lm.base_model]
    kept = [tensor.data_ptr() for own in buffers.layers for tensor in own]
    for own in buffers.layers:
        for tensor in own:
            tensor.fill_(1e4)
    for ours, expected in zip(states(lm, "static", 3, 5, 4), states(lm, "dynamic", 3, 5, 4), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert kept == [tensor.data_ptr() for own in buffers.layers for tensor in own]


def test_buffers_can_be_freed(lm) -> None:
    before = states(lm, "static", 3, 5, 4)
    _static_cache.free_buffers(lm)
    assert lm.base_model not in _static_cache._BUFFERS
    torch.testing.assert_close(states(lm, "static", 3, 5, 4), before)


def test_weights_that_move_are_noticed(lm) -> None:
    before = states(lm, "static", 3, 5, 4)
    for layer in lm.base_model.layers:
        layer.mlp.up_proj.weight = torch.nn.Parameter(-layer.mlp.up_proj.weight)
    after, expected = states(lm, "static", 3, 5, 4), states(lm, "dynamic", 3, 5, 4)
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before[-1], after[-1])


def test_a_batch_that_lost_its_buffers_says_so(lm) -> None:
    first, second = (
        extend(prefill(lm.base_model, *prompt(2, 4), "static"), torch.ones(2, 32).to(DEVICE)) for _ in "ab"
    )
    extend(second, torch.ones(2, 32).to(DEVICE))
    with pytest.raises(RuntimeError, match="buffers serve others"):
        extend(first, torch.ones(2, 32).to(DEVICE))


def test_buffers_refuse_gradients(lm) -> None:
    with torch.enable_grad(), pytest.raises(ValueError, match="no gradients"):
        prefill(lm.base_model, *prompt(2, 4), "static")


def test_the_device_decides_by_itself(lm) -> None:
    assert type(make_cache("auto", lm.base_model)) is (StaticKVCache if DEVICE == "cuda" else DynamicKVCache)
    with torch.enable_grad():
        assert type(make_cache("auto", lm.base_model)) is DynamicKVCache


def test_precision_follows_autocast(lm) -> None:
    """Keys and values have the precision that attention uses. Graphs do not read the temporary casts of autocast."""
    states(lm, "static", 5, 7, 3)
    with torch.autocast(DEVICE, torch.bfloat16):
        ours, expected = (states(lm, cache, 5, 7, 3) for cache in ("static", "dynamic"))
    torch.testing.assert_close(ours, expected, rtol=0.05, atol=0.05)
    assert _static_cache._BUFFERS[lm.base_model].layers[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(states(lm, "static", 5, 7, 3), states(lm, "dynamic", 5, 7, 3), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_during_a_capture(enabled: bool) -> None:
    """Afterwards the garbage collector is in its former state, even if the capture fails."""
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with _static_cache.nothing_collected():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(RuntimeError, match="failed"), _static_cache.nothing_collected():
            raise RuntimeError("failed")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.filterwarnings("error::FutureWarning")
def test_transformers_get_their_cache_by_the_name_of_their_version(lm) -> None:
    for policy in ("static", "dynamic"):
        states(lm, policy, 2, 4, 2)

    class Newer:
        def forward(self, cache: None = None) -> None: ...

    class Older:
        def forward(self, past_key_values: None = None) -> None: ...

    assert (cache_argument(Newer), cache_argument(Older)) == ("cache", "past_key_values")
