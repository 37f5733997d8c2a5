"""Published checkpoints as backbones: which can be used, and what is said of those that cannot."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.engine.layers import compile_layers
from benchmarks.models import build_method
from benchmarks.plan.costs import plan
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import Study
from methods.backbone import Backbone, load_backbone
from methods.base import Setup, Vocabulary
from methods.errors import InputError
from methods.generation import Decoding
from methods.masks import causal_mask
from methods.registry import build
from small import small_study

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
}
USED = ("qwen2", "qwen3", "llama", "mistral", "olmo2", "phi3", "gemma3_text", "gpt2")


def saved(folder: Path, kind: str, spread: float = 1.0, **fields: Any) -> str:
    """Save a random checkpoint of a kind, with its weights ``spread`` apart, and return its folder."""
    if kind in ("gpt2", "gpt_neox"):  # it would keep fields that it does not know
        own = {name: size for name, size in SIZES.items() if name not in ("intermediate_size", "num_key_value_heads")}
    else:
        own = {**SIZES, "head_dim": 8}
    config = AutoConfig.for_model(kind, **{**own, **fields})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for weight in model.parameters():
        weight.data *= spread
    model.save_pretrained(folder / kind)
    return str(folder / kind)


def loaded(checkpoint: str) -> Backbone:
    return load_backbone("qwen2-tiny", 400, pretrained=checkpoint)


def study_of(checkpoint: str, *rows: dict[str, Any], **changes: Any) -> Study:
    return small_study(
        list(rows or [{"id": "cot_sft", "method": "cot_sft"}]), backbone={"pretrained": checkpoint}, **changes
    )


@pytest.mark.parametrize("kind", USED)
def test_a_usable_checkpoint_computes_its_own_logits(kind: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, kind, spread=4.0)
    lm, ids = loaded(checkpoint).causal_lm(), torch.arange(3, 40)[None]
    own = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)(input_ids=ids).logits
    hidden = lm.base_model(input_ids=ids, attention_mask=causal_mask(ids > 0), use_cache=False).last_hidden_state
    torch.testing.assert_close(lm.get_output_embeddings()(hidden), own, atol=1e-4, rtol=1e-4)
    assert lm.config._attn_implementation == "sdpa_own_masks"


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("granite", {"logits_scaling": 8.0}, r"would be another model here: its architecture, granite, does more"),
        ("cohere", {}, r"would be another model here: its architecture, cohere, .* \(logits differ by"),
        ("gemma2", {}, r"is a gemma2, whose attention is not PyTorch's scaled dot product .*LLaMA, Mistral"),
        ("bert", {"is_decoder": True}, r"would be another model here: its architecture, bert"),
    ],
)
def test_a_checkpoint_that_would_be_another_model_is_refused(
    kind: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path, kind, **fields)
    with pytest.raises(InputError, match=f"{kind} {reason}"):
        loaded(checkpoint).causal_lm()


def test_a_checkpoint_with_weights_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has weights that are not finite"):
        loaded(saved(tmp_path, "llama", spread=float("nan"))).causal_lm()


def test_a_checkpoint_that_is_no_language_model_is_refused(tmp_path: Path) -> None:
    for kind in ("t5", "gemma3"):
        AutoConfig.for_model(kind).save_pretrained(tmp_path / kind)
        with pytest.raises(InputError, match=rf"{kind} is no language model of texts alone \({kind}\)"):
            loaded(str(tmp_path / kind))


def test_dropout_of_a_checkpoint_is_cleared_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backbone = loaded(saved(tmp_path, "gpt2"))
    assert not caplog.messages, "an evaluation reads the configuration too"
    with caplog.at_level(logging.WARNING):
        models = backbone.causal_lm().train(), backbone.trunk().train()
    assert all(module.p == 0 for model in models for module in model.modules() if isinstance(module, torch.nn.Dropout))
    (said,) = [message for message in caplog.messages if "dropout" in message]
    assert "gpt2 has dropout (resid_pdrop, embd_pdrop, attn_pdrop, summary_first_dropout): it is 0 here, unless" in said
    caplog.clear()
    load_backbone("qwen2-tiny", 400, pretrained=str(tmp_path / "gpt2"), dropout=0.2).causal_lm()
    assert not [message for message in caplog.messages if "dropout" in message]


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("mistral", {"sliding_window": 40}, r"`sliding_window` is 40, and attention reaches back over everything here"),
        ("gemma3_text", {"sliding_window": 40}, "`sliding_window` is 40, and .*"),
        ("gpt2", {"max_position_embeddings": 40}, "it has a table of 40 positions"),
    ],
)
def test_sequences_that_a_checkpoint_has_no_room_for_are_refused(
    kind: str, fields: dict[str, Any], reason: str, small_data: Path, tmp_path: Path
) -> None:
    spec = study_of(saved(tmp_path, kind, **fields)).runs["equation/cot_sft/s0"]
    with pytest.raises(InputError, match=rf"takes sequences of 40 tokens \({reason}\), and .* has \d+, .*: lower"):
        build_method(spec, Paths(small_data, spec).data)


def test_markers_and_thoughts_have_room_besides(small_data: Path, tmp_path: Path) -> None:
    def build(window: int) -> None:
        spec = study_of(saved(tmp_path / str(window), "mistral", sliding_window=window)).runs["equation/cot_sft/s0"]
        build_method(spec, Paths(small_data, spec).data)

    with pytest.raises(InputError, match="to which markers and thoughts may add 128: lower") as refused:
        build(40)
    (longest,) = re.findall(r"has (\d+), to which", str(refused.value))
    with pytest.raises(InputError, match=f"has {longest}, to which"):
        build(int(longest) + 127)
    build(int(longest) + 128)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False}),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}),
    ],
)
def test_a_window_that_no_layer_has_limits_nothing(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    lm = loaded(saved(tmp_path, kind, **fields)).causal_lm()
    lm.base_model(input_ids=torch.ones(1, 2000, dtype=torch.long))


def test_a_checkpoint_that_lacks_weights_or_is_damaged_is_refused(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, "llama")) / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    save_file({other: weights[other] for other in weights if other != name}, path, {"format": "pt"})
    for build_one in (Backbone.causal_lm, Backbone.trunk):
        with pytest.raises(InputError, match=r"lacks 1 weights of its model, such as .*up_proj\.weight: fetch"):
            build_one(loaded(str(path.parent)))
    for damaged in ({**weights, name: weights[name][:1]}, None):
        if damaged is None:
            path.write_bytes(path.read_bytes()[:-10])
        else:
            save_file(damaged, path, {"format": "pt"})
        with pytest.raises(InputError, match=r"^no checkpoint can be read from .*llama \("):
            loaded(str(path.parent)).causal_lm()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "nope")
    with pytest.raises(InputError, match=rf"^there is no folder {missing}, which `backbone: .* on the hub$"):
        loaded(missing)
    with pytest.raises(InputError, match=rf"equation/cot_sft/s0: there is no folder {missing}"):
        plan(study_of(missing), tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "phi3"])
def test_layers_that_a_plan_would_not_count_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=rf"a plan counts the layers of the configuration qwen2-tiny, and .*{kind} has"
    ):
        plan(study_of(saved(tmp_path, kind)), tmp_path)


def test_attention_that_reads_a_cache_is_not_compiled_under_any_name(
    tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, it could not be called: GPT-NeoX calls it `attention`."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    backbone = load_backbone("qwen2-tiny", vocabulary.size, pretrained=saved(tmp_path, "gpt_neox"))
    method = build("cot_sft", {}, Setup(backbone, vocabulary), seed=0).eval()
    with torch.no_grad():
        plain = method.generate([[5, 6, 7]], Decoding(max_new_tokens=4)).answer
        compile_layers(method, caches=True)
        assert torch.equal(method.generate([[5, 6, 7]], Decoding(max_new_tokens=4)).answer, plain)


def test_layers_that_cannot_be_compiled_are_named(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.engine.layers._require_compiler", lambda device: None)
    method: Any = build("cot_sft", {}, Setup(load_backbone("qwen2-tiny", vocabulary.size), vocabulary), seed=0)
    method.lm.model.layers = torch.nn.Sequential(torch.nn.Identity())
    with pytest.raises(InputError, match="`compile` does not find the layers of a qwen2: set `compile: false`"):
        compile_layers(method, caches=True)


def test_a_folder_without_a_checkpoint_or_its_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^no checkpoint can be read from {tmp_path} \(.*config.json.*\). To fix"):
        loaded(str(tmp_path))
    load_backbone("qwen2-tiny", 400).config.save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=rf"^no checkpoint can be read from {tmp_path} \(.*model.safetensors.*\). To f"
    ):
        loaded(str(tmp_path)).causal_lm()


def test_a_checkpoint_that_the_hub_does_not_give_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub.\nCheck your connection.")

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    with pytest.raises(InputError, match=r"from some/model \(We couldn't connect to the hub\. Check .*`hf auth login`"):
        loaded("some/model")
