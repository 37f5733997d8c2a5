"""FLOPs do not depend on the attention kernel, except that fused kernels compute scores twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.timing.steps import KERNELS, flop_counter
from methods.backbone import load_backbone
from methods.masks import causal_mask

LAYERS, HEADS, KEY_HEADS, HEAD = 2, 4, 2, 8
ROWS, LENGTH, PADDED = 3, 11, 4
SCORES = 2 * ROWS * HEADS * LENGTH * LENGTH * HEAD  # FLOPs of one product of queries and keys in one layer


def counted(backend: SDPBackend, backward: bool) -> tuple[int, set[Any]]:
    """Return the FLOPs of a tiny Qwen2 over padded rows, and the counted operations."""
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS}
    overrides = {**sizes, "head_dim": HEAD, "hidden_size": 32, "intermediate_size": 48}
    trunk = load_backbone("qwen2-tiny", 64, overrides=overrides).trunk()
    real = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    real[0, -PADDED:] = False
    ids = torch.ones(ROWS, LENGTH, dtype=torch.long)
    with torch.set_grad_enabled(backward), sdpa_kernel(backend), flop_counter() as counter:
        output = trunk(ids, attention_mask=causal_mask(real)).last_hidden_state.sum()
        if backward:
            output.backward()
    return counter.get_total_flops(), set(counter.get_flop_counts()["Global"])


@pytest.mark.parametrize(("backward", "again"), [(False, 0), (True, LAYERS * SCORES)])
def test_the_fused_kernel_of_a_cpu_counts_as_products_of_matrices(backward: bool, again: int) -> None:
    """The products are counted one by one. The backward pass has four; a fused kernel has a fifth, for the scores."""
    fused, operations = counted(SDPBackend.FLASH_ATTENTION, backward)
    plain, others = counted(SDPBackend.MATH, backward)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert kernel in operations and kernel not in others
    assert fused == plain + again


@pytest.mark.parametrize("name", KERNELS)
def test_heads_that_share_keys_count_as_heads_of_their_own(name: str) -> None:
    registry = flop_counter().flop_registry
    query, shared, own = (torch.empty(ROWS, heads, LENGTH, HEAD, device="meta") for heads in (HEADS, KEY_HEADS, HEADS))
    for suffix, inputs, products in (("", (), 2), ("_backward", (query,), 5)):
        formula = registry[getattr(torch.ops.aten, name + suffix)]
        grouped, whole = (formula(*inputs, query, keys, keys, out_val=None) for keys in (shared, own))
        assert grouped == whole == products * SCORES
