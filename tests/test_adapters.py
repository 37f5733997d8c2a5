"""Training low-rank adapters of a checkpoint: only they change, and what is left is a plain model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoConfig

from benchmarks.checkpoints import load_weights, read_weights
from benchmarks.engine import Ranks
from benchmarks.engine.adapters import (
    add_adapters,
    enable_gradients,
    in_adapter,
    merged_weights,
    save_adapters,
    size_without_adapters,
    whole_weights,
)
from benchmarks.files import read_json
from benchmarks.models import build_method, trained_method
from benchmarks.plan.costs import ADAPTED, FROZEN, plan, plan_run
from benchmarks.plan.lengths import lengths_of
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import EngineSpec, LoraSpec
from benchmarks.studies.study import Study, StudyError
from benchmarks.timing import measuring
from benchmarks.timing.steps import time_training
from benchmarks.timing.task import time_run
from benchmarks.training.loop import train
from methods.backbone import Backbone, load_backbone
from methods.base import Budget, Context, Method, Setup, Vocabulary
from methods.errors import InputError
from methods.last_layer import widen
from methods.registry import available, build, get_method
from small import fresh, small_study, stopped_after
from tiny import disturb, examples, ids, make

LORA = LoraSpec(rank=4, alpha=8, modules=("q_proj", "down_proj"))
CODI = {"id": "codi", "method": "codi", "options": {"num_latents": 2}}


def losses(method: Method) -> dict[str, Tensor]:
    stage = method.stages(Budget(8.0, 3, (9,) * 12))[0]
    context = Context(stage, 0, 0, seed=0)
    return method(method.collate(examples(), context), context).losses


@pytest.mark.parametrize(("name", "tied"), [*((name, True) for name in available()), ("coconut", False)])
def test_adapters_add_nothing_at_first_and_end_as_part_of_the_weights(name: str, tied: bool) -> None:
    options = get_method(name).tested_options
    plain, adapted = (make(name, options, tie_word_embeddings=tied) for _ in range(2))
    add_adapters(adapted, LORA, seed=0)
    assert (
        size_without_adapters(adapted)
        == size_without_adapters(plain)
        < sum(parameter.numel() for parameter in adapted.parameters())
    )
    before = dict(whole_weights(plain))
    assert_close(dict(merged_weights(adapted)), before, rtol=0, atol=0)
    assert_close(losses(adapted), losses(plain))  # kernels depend on what takes gradients
    disturb(adapted)
    found = losses(adapted)
    load_weights(plain, dict(merged_weights(adapted)))
    assert_close(losses(plain), found)
    fresh = losses(make(name, options, tie_word_embeddings=tied))
    assert any(not torch.equal(found[term], value) for term, value in fresh.items())


def test_adapters_are_drawn_from_the_seed_alone() -> None:
    methods = [make("cot_sft") for _ in range(3)]
    state, drawn = torch.get_rng_state(), []
    for method, seed in zip(methods, (0, 0, 1), strict=True):
        added = add_adapters(method, LORA, seed).named_parameters()
        drawn.append(torch.cat([weight.detach().flatten() for name, weight in added if ".lora_A." in name]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_adapters_and_what_lies_outside_of_transformers_is_trained() -> None:
    codi = add_adapters(make("codi"), LORA, seed=0)
    names = enable_gradients(codi, codi.stages(Budget(1, 1))[0])
    assert {name.partition(".")[0] for name in names} == {"project", "lm"}
    inside = {re.sub(r".*layers\.\d+\.\w+\.", "", name) for name in names if name.startswith("lm")}
    low_rank = {f"{layer}.lora_{part}.default.weight" for layer in LORA.modules for part in "AB"}
    assert inside == low_rank | {"lm.model.embed_tokens.adapter.rows"}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["coconut", "colar"])
def test_markers_that_begin_as_copies_of_tokens_are_told_apart(name: str, tied: bool) -> None:
    """With rows that stay equal, no chain of CoLaR would ever end: the token that its separator copies comes first."""
    method = add_adapters(make(name, get_method(name).tested_options, tie_word_embeddings=tied), LORA, seed=0)
    stage = method.stages(Budget(8.0, 3, (9,) * 12))[-1]
    trained = enable_gradients(method, stage)
    context = Context(stage, 0, 0, seed=0)
    torch.stack(list(method(method.collate(examples(), context), context).losses.values())).sum().backward()
    rows = {place: parameter.grad for place, parameter in trained.items() if place.endswith(".rows")}
    assert len(rows) == 2 - tied
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in rows.values())


def test_a_transformer_that_starts_from_no_checkpoint_is_trained_whole() -> None:
    """MarCos's randomness encoder is drawn, whatever the others start from."""
    marcos = add_adapters(make("marcos", get_method("marcos").tested_options), LORA, seed=0)
    trained = set(enable_gradients(marcos, marcos.stages(Budget(2, 1, (9,)))[0]))
    own = {name for name, _ in marcos.named_parameters() if name.startswith("posterior.")}
    assert own and own <= trained and not any(map(in_adapter, own))


@pytest.mark.parametrize("tied", [True, False])
def test_adapters_are_written_as_peft_reads_them(tied: bool, tmp_path: Path) -> None:
    options = get_method("colar").tested_options
    start, method = (make("colar", options, tie_word_embeddings=tied) for _ in range(2))
    lm: Any = start.lm
    disturb(add_adapters(method, LORA, seed=0))
    save_adapters(method, tmp_path, "a checkpoint")
    settings = read_json(tmp_path / "lm" / "adapter_config.json")
    assert (settings["r"], settings["lora_alpha"], settings["peft_type"]) == (4, 8, "LORA")
    assert settings["base_model_name_or_path"] == "a checkpoint"
    merged = PeftModel.from_pretrained(lm, tmp_path / "lm").merge_and_unload()
    expected = {name.removeprefix("lm."): weight for name, weight in merged_weights(method) if name.startswith("lm.")}
    assert_close(dict(whole_weights(merged)), expected)


def test_without_lora_peft_is_not_imported() -> None:
    code = "import sys, benchmarks.training.loop, benchmarks.plan.report; sys.exit('peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- runs


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    load_backbone("qwen2-tiny", 512).causal_lm().save_pretrained(folder)
    return str(folder)


def lora_study(checkpoint: str, **lora: Any) -> Study:
    """Return a study in which Coconut, by adapters, starts from all weights of CoT-SFT."""
    rows = [
        {"id": "cot_sft", "method": "cot_sft"},
        {"id": "coconut", "method": "coconut", "training": {"lora": LORA.model_dump() | lora}},
    ]
    backbone = {"name": "qwen2-tiny", "pretrained": checkpoint}
    return small_study(rows, backbone=backbone, training={"epochs": 5, "keep_stages": True})


@pytest.fixture(scope="module")
def trained(checkpoint: str, small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """Train both runs; the second is stopped after its first stage, and goes on."""
    study, results = lora_study(checkpoint), fresh(small_data, tmp_path_factory.mktemp("results"))
    train(study.runs["equation/cot_sft/s0"], results)
    spec = study.runs["equation/coconut/s0"]
    with stopped_after(25):
        train(spec, results)
    train(spec, results)
    return study, results


def test_a_run_is_left_with_plain_weights(trained: tuple[Study, Path], small_data: Path, tmp_path: Path) -> None:
    study, results = trained
    start, spec = study.runs.values()
    before, after = (dict(read_weights(Paths(results, one).weights)) for one in (start, spec))
    # Coconut has rows for markers below those of CoT-SFT
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name][: len(tensor)])}
    assert changed == {name for name in before for layer in LORA.modules if name.endswith(f"{layer}.weight")}
    record = read_json(Paths(results, spec).record("train"))
    assert record["parameters"] == sum(tensor.numel() for tensor in after.values())
    assert all(stage["trainable_parameters"] < 0.2 * record["parameters"] for stage in record["stages"])
    method = trained_method(spec, results, stage=0)
    assert dict(whole_weights(method)).keys() == after.keys(), "so do the weights that stages end with"
    undisturbed = fresh(small_data, tmp_path)
    train(start, undisturbed)
    assert train(spec, undisturbed)["weights_sha256"] == record["weights_sha256"]


def test_steps_are_timed_as_they_are_trained(trained: tuple[Study, Path]) -> None:
    """Without gradients of the weights, a step has about two thirds of the FLOPs."""
    study, results = trained
    spec = study.runs["equation/coconut/s0"]
    flops = time_run(spec, results)["train"]["training_flops"]
    method, whole = trained_method(spec, results), spec.model_copy(update={"training": study.training})
    everything = time_training(method, whole, Paths(results, spec), Ranks())["training_flops"]
    assert 0.6 < flops / everything < 0.9


def test_what_is_measured_trains_adapters_and_says_so(
    trained: tuple[Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, results = trained
    seen = []

    def watched(method: Method, *_: Any) -> dict[str, Any]:
        seen.append(any(in_adapter(name) for name, _ in method.named_parameters()))
        return {}

    for name in ("time_test", "train_steps", "time_training"):
        monkeypatch.setattr(measuring, name, watched)
    *_, record = measuring.measure(study, results, tmp_path, steps=1, timed=1, rows=["coconut"], learn=["coconut"])
    assert seen == [False, False, True, True], "two tests are answered by the plain method"
    assert record["lora"] == LORA.model_dump() and record["row"] == "coconut"


def test_a_plan_counts_no_gradients_of_what_stays(trained: tuple[Study, Path]) -> None:
    study, results = trained
    planned = {made.run.row: made for made in plan(study, results)}["coconut"]
    spec = planned.run
    method = add_adapters(build_method(spec, Paths(results, spec).data), LORA, 0)
    widen(method)  # plans take all layers to be alike
    counted = time_training(method, spec, Paths(results, spec), Ranks())
    assert planned.flops == pytest.approx(counted["training_flops"], rel=0.1)
    assert planned.memory.gradients < 0.2 * planned.memory.weights
    plain = spec.model_copy(update={"training": study.training})
    whole = plan_run(plain, lengths_of(study, study.blocks[0], results))
    half = EngineSpec(precision="bfloat16")
    adapted, all_trained = (
        plan_run(one.model_copy(update={"engine": half}), lengths_of(study, study.blocks[0], results)).memory
        for one in (spec, plain)
    )
    assert planned.memory.copy == 0 and adapted.copy > 2 * all_trained.copy, "a copy for each of Coconut's passes"
    assert planned.layers == pytest.approx(whole.layers * (1 + len(LORA.modules) * ADAPTED - FROZEN))
    assert planned.parameters == read_json(Paths(results, spec).record("train"))["parameters"]


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"modules": ["q_proj", "qproj"]}, "'qproj', which is no linear layer of the backbone: down_proj, gate_proj"),
        ({"modules": ["lm_head"]}, "'lm_head', which is no linear layer"),
    ],
)
def test_layers_that_are_none_are_named(lora: dict[str, Any], said: str, checkpoint: str, results: Path) -> None:
    with pytest.raises(InputError, match=said):
        plan(lora_study(checkpoint, **lora), results)


def test_weights_that_are_drawn_are_not_left_as_they_are() -> None:
    with pytest.raises(StudyError, match=r"equation/codi: `lora` leaves .* name a checkpoint in `backbone"):
        small_study([{**CODI, "training": {"lora": LORA.model_dump()}}])


def test_markers_are_scaled_as_tokens_are() -> None:
    """Gemma 3 multiplies what it looks up."""
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 128}
    backbone = Backbone(AutoConfig.for_model("gemma3_text", **sizes, **heads))
    adapted, plain = (build("codi", {}, Setup(backbone, Vocabulary(128, 0, ids)), seed) for seed in (0, 1))
    disturb(add_adapters(adapted, LORA, seed=0))
    load_weights(plain, dict(merged_weights(adapted)))
    assert_close(losses(plain), losses(adapted))
