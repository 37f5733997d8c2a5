"""Sequences that are longer than a model can read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.evaluation.inference import generate_batches
from methods.errors import InputError
from methods.generation import Decoding


def test_a_question_that_is_longer_than_the_model_is_refused_with_both_numbers() -> None:
    """Before anything is computed: a table of positions would be read behind its end."""
    fields = {"vocab_size": 8, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 400}
    method: Any = nn.ModuleDict({"lm": AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **fields))})
    spec: Any = SimpleNamespace(id="equation/cot_sft/s0", evaluation=SimpleNamespace(batch_size=2))
    said = (
        r"s0 takes sequences of 400 tokens \(it has a table of 400 positions\), and a question \(800 tokens\) with its "
    )
    with pytest.raises(InputError, match=said + r"answer \(up to 24\) has 824, .* may add 128: ask a shorter question"):
        next(generate_batches(method, [[1] * 800, [1]], Decoding(max_new_tokens=24), spec))
