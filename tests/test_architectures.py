"""Methods on tiny checkpoints of all architectures that a backbone may have: they learn, and answer cached.

No method refuses any of these architectures; `tests/test_pretrained.py` has those that no method can take, with the
reasons.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from conforming import EOS, WORDS, collated, contexts, encode, perturbed, questions, say
from methods.backbone import load_backbone
from methods.base import Setup, Vocabulary
from methods.registry import build, get_method

SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), EOS),
}
GATED = SIZES | {"intermediate_size": 64, "num_key_value_heads": 2}
ARCHITECTURES = {
    "llama": GATED,
    "qwen2": GATED,
    "qwen3": GATED | {"head_dim": 8},
    "gpt2": SIZES,
    "phi": GATED,
    "phi3": GATED,
    "mistral": GATED | {"head_dim": 8},
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind, sizes in ARCHITECTURES.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **sizes)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / kind)
    return folder


# One method on all; those with trunks, markers and latents of other kinds on what is least like the conformance tests'
CASES = [*product(["coconut"], ARCHITECTURES), ("marcos", "gpt2"), *product(["marcos", "codi", "colar"], ["phi"])]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_method_learns_and_answers_on_a_checkpoint(name: str, kind: str, checkpoints: Path) -> None:
    backbone = load_backbone("qwen2-tiny", WORDS, pretrained=str(checkpoints / kind))
    method = build(name, get_method(name).tested_options, Setup(backbone, Vocabulary(WORDS, EOS, encode)), seed=0)
    for context in (contexts(method)[0], contexts(method)[-1]):
        batch = collated(method, context)
        weights = {key: weight for key, weight in method.named_parameters() if context.stage.trains(key)}
        before = {key: weight.detach().clone() for key, weight in weights.items()}
        optimizer = torch.optim.AdamW(weights.values(), lr=1e-3)
        losses = method.forward(batch, context).losses
        torch.stack([*losses.values()]).sum().backward()
        optimizer.step()
        method.zero_grad()
        assert all(loss.isfinite() for loss in losses.values())
        assert any(not torch.equal(before[key], weight) for key, weight in weights.items())
    method = perturbed(method)
    assert say(method, questions(), cache="dynamic") == say(method, questions(), cache="none")
