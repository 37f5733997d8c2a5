"""Golden cases: tiny models with their inputs, and the numbers that the authors' own code computed from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig

GOLDEN_VARIABLE = "MARCOS_BENCH_GOLDEN"


def cases(method: str) -> list[Path]:
    """Return all cases of a method in the folder that the environment names, or none if it names no folder."""
    folder = os.environ.get(GOLDEN_VARIABLE)
    return sorted(Path(folder).glob(f"{method}_*.safetensors")) if folder else []


def load_case(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a case's tensors by name, and its metadata."""
    with safe_open(path, "pt") as file:
        return load_file(path), file.metadata()


def under_our_names(tensors: Mapping[str, Tensor], kind: str, prefixes: Mapping[str, str]) -> dict[str, Tensor]:
    """Return a case's tensors of a kind (``weight`` or ``grad``) by our names. ``prefixes``: ours by the published."""
    named = {}
    for place, tensor in tensors.items():
        if place.startswith(f"{kind}."):
            name = place.removeprefix(f"{kind}.")
            published = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
            named[prefixes.get(published, "") + name.removeprefix(published)] = tensor
    return named


def check_gradients(model: nn.Module, expected: Mapping[str, Tensor]) -> None:
    """Assert that the parameters that a case has gradients of, of which there are some, have these."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert expected
    for name, gradient in expected.items():
        close(gradients[name], gradient)


def backbone_config(metadata: dict[str, str], **changes: int) -> PreTrainedConfig:
    """Return the Hugging Face configuration of a case, with some fields changed."""
    fields = json.loads(metadata["backbone_config"]) | changes
    fields.pop("torch_dtype", None)
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def close(actual: Tensor, expected: Tensor) -> None:
    """Assert that two tensors are equal up to 1e-5 of the largest magnitude."""
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual.to(expected), expected, rtol=1e-5, atol=1e-5 * max(scale, 1e-12))
