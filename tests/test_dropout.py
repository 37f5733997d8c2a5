"""Dropout: where there is some, and that a run with it can be repeated and resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.data import open_corpus, prepare
from benchmarks.engine import PlaceInPhase, Ranks, build_engine
from benchmarks.engine.adapters import add_adapters
from benchmarks.files import read_json
from benchmarks.models import CONFIG, build_method, trained_method
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import EngineSpec, LoraSpec, TrainingSpec
from benchmarks.studies.study import Study
from benchmarks.training import batches, loop
from benchmarks.training.batches import FeatureStore
from benchmarks.training.loop import train
from methods.base import Budget
from small import MARCOS, small_study, stopped_after
from tiny import GPT2, context, disturb, examples, make

TRAINING = TrainingSpec(epochs=1, dropout=0.3)
LORA = LoraSpec(rank=2, alpha=4, modules=("c_attn",), dropout=0.2)
BACKBONES = {"qwen2-tiny": {"num_hidden_layers": 2}, "gpt2": GPT2}


def study_with(row: str, dropout: float, backbone: str = "gpt2", **engine: Any) -> Study:
    """Return a study of CoT-SFT or MarCos on a tiny backbone, with 3 steps an epoch."""
    return small_study(
        [{"id": row, "method": row, "options": MARCOS if row == "marcos" else {}}],
        backbone={"name": backbone, "overrides": BACKBONES[backbone]},
        blocks=[{"id": "equation", "title": "E", "data": {"train": "embedded", "validation": 8, "limit": 48}}],
        training={"batch_size": 16, "validations": 1, "dropout": dropout},
        engine={"micro_batch": 8, **engine},
    )


def run_with(row: str, dropout: float, backbone: str = "gpt2", **engine: Any) -> RunSpec:
    return study_with(row, dropout, backbone, **engine).runs[f"equation/{row}/s0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with the data of these runs."""
    study, folder = study_with("cot_sft", 0.0), tmp_path_factory.mktemp("dropout")
    prepare(study, study.blocks[0], folder)
    return folder


@pytest.mark.parametrize(
    ("row", "backbone", "engine"),
    [
        ("cot_sft", "gpt2", {}),
        ("cot_sft", "gpt2", {"compile": True, "activation_checkpointing": True}),
        ("marcos", "qwen2-tiny", {"activation_checkpointing": True}),
    ],
)
def test_a_run_is_repeated_and_resumed_with_the_same_draws(
    row: str, backbone: str, engine: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    spec = run_with(row, 0.1, backbone, **engine)
    undisturbed = train(spec, folder)
    config = read_json(Paths(folder, spec).model / CONFIG / "config.json")
    assert not any(value for name, value in config.items() if "dropout" in name or "pdrop" in name)
    shutil.rmtree(Paths(folder, spec).run)
    torch.manual_seed(7)  # another process is elsewhere in the global generator
    with stopped_after(undisturbed["steps"] // 2):
        train(spec, folder)
    torch.rand(3)
    assert train(spec, folder)["weights_sha256"] == undisturbed["weights_sha256"]
    shutil.rmtree(Paths(folder, spec).run)
    assert train(run_with(row, 0.0, backbone, **engine), folder)["weights_sha256"] != undisturbed["weights_sha256"]
    shutil.rmtree(Paths(folder, spec).run)


def gradients(again: bool, *moments: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the gradients of one micro-batch at each of some steps, and places in the step."""
    method = make("cot_sft", {}, "gpt2", 0.3).train()
    stage, spec = method.stages(Budget(2.0, 4))[0], EngineSpec(activation_checkpointing=again)
    engine = build_engine(method, stage, TRAINING, spec, PlaceInPhase(0, 1), Ranks())
    found = []
    for step, place in moments:
        at = replace(context(), step=step)
        output = engine.forward(method.collate(examples(), at), at, place=place)
        engine.backward(torch.stack(list(output.losses.values())).sum(), last=True)
        found.append({name: parameter.grad for name, parameter in engine.trainable.items()})
        engine.optimizer.zero_grad(set_to_none=True)
    return found


def test_each_micro_batch_draws_its_own_and_layers_that_run_again_draw_the_same() -> None:
    plain, other_step, other_place, same = gradients(False, (0, 0), (1, 0), (0, 1), (0, 0))
    torch.testing.assert_close(same, plain, rtol=0, atol=0)
    for other in (other_step, other_place):
        assert all(not torch.equal(other[name], gradient) for name, gradient in plain.items())
    torch.testing.assert_close(gradients(True, (0, 0))[0], plain)


def test_a_run_trains_with_dropout_and_is_validated_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after each of several validations, which answer questions too."""
    spec = run_with("cot_sft", 0.1)
    more = {"validations": 3, "validation_questions": 4}
    spec = spec.model_copy(update={"training": spec.training.model_copy(update=more)})
    modes: dict[str, list[bool]] = {"train": [], "validate": [], "ask": []}

    def noting(kind: str, method_of: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            modes[kind].append(method_of(arguments[0]).training)
            return original(*arguments)

        return noted

    monkeypatch.setattr(loop, "optimizer_step", noting("train", lambda left: left.engine.method, loop.optimizer_step))
    monkeypatch.setattr(loop, "validation_sums", noting("validate", lambda engine: engine.method, loop.validation_sums))
    monkeypatch.setattr(loop, "held_out_accuracy", noting("ask", lambda method: method, loop.held_out_accuracy))
    train(spec, folder)
    shutil.rmtree(Paths(folder, spec).run)
    assert modes == {"train": [True] * 6, "validate": [False] * 3, "ask": [False] * 3}


def test_a_trained_method_keeps_its_dropout_for_the_timing_of_steps(folder: Path) -> None:
    spec = run_with("cot_sft", 0.1)
    train(spec, folder)
    method = trained_method(spec, folder)
    assert {part.p for part in method.modules() if isinstance(part, nn.Dropout)} == {0.1} and not method.training
    shutil.rmtree(Paths(folder, spec).run)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"micro_batch": 4}, True),
        ({"micro_tokens": 512}, True),
        ({"compile": True}, True),
        ({"activation_checkpointing": True}, False),
        ({"micro_batch": 16}, True),
        ({"micro_batch": 4, "kind": "deepspeed", "gpus": 2}, True),
    ],
)
def test_how_batches_are_cut_is_a_setting_of_a_run_with_dropout(change: dict[str, Any], counts: bool) -> None:
    """Without dropout it changes nothing, and the digest stays as it was."""
    assert run_with("cot_sft", 0.0, **change).digest("train") == run_with("cot_sft", 0.0).digest("train")
    one, other = run_with("cot_sft", 0.1, **change), run_with("cot_sft", 0.1)
    assert (one.digest("train") != other.digest("train")) == counts
    by_adapters = [
        run.model_copy(update={"training": run.training.model_copy(update={"dropout": 0.0, "lora": LORA})})
        for run in (one, other)
    ]
    assert (by_adapters[0].digest("train") != by_adapters[1].digest("train")) == counts


def test_ranks_draw_for_their_own_shares_where_batches_are_not_cut() -> None:
    one, two = (
        run_with("cot_sft", 0.1, micro_batch=None, kind="deepspeed", gpus=ranks).digest("train") for ranks in (1, 2)
    )
    assert one != two and one == run_with("cot_sft", 0.1, micro_batch=None).digest("train")
    one, two = (
        run_with("cot_sft", 0.1, micro_batch=None, micro_tokens=512, kind="deepspeed", gpus=ranks).digest("train")
        for ranks in (1, 2)
    )
    assert one != two


def test_compiled_layers_draw_in_their_own_way_where_batches_are_not_cut() -> None:
    compiled, plain = (run_with("cot_sft", 0.1, micro_batch=None, compile=how).digest("train") for how in (True, False))
    assert compiled != plain


def test_features_and_validation_losses_have_no_dropout(folder: Path) -> None:
    sums, features = [], []
    for dropout in (0.0, 0.5):
        spec = run_with("marcos", dropout)
        method = build_method(spec, Paths(folder, spec).data)
        rates = {part.p for part in method.modules() if isinstance(part, nn.Dropout)}
        assert rates == {dropout} and method.training
        corpus: Any = open_corpus(Paths(folder, spec).data, "validation")
        stages = method.stages(Budget(2.0, 3))
        store = FeatureStore(folder / f"features-{dropout}", "features")
        data = batches.StageLoader(method, corpus, stages[0], 0)
        store.fill(data, torch.arange(8).numpy(), "float32", 4)
        assert method.training
        features.append({name: rows.clone() for name, rows in store.rows.items()})
        engine = build_engine(method.eval(), stages[0], spec.training, spec.engine, PlaceInPhase(0, 1), Ranks())
        sums.append(loop.validation_sums(engine, data, data.context(0, 0, training=False), 4).terms())
    assert sums[0] == sums[1]
    torch.testing.assert_close(features[0], features[1], rtol=0, atol=0)


def test_adapters_drop_what_they_read() -> None:
    lora = LoraSpec(rank=2, alpha=6, modules=("q_proj",), dropout=0.5)
    assert TrainingSpec(epochs=1, lora=lora).draws and not TrainingSpec(epochs=1).draws
    method = add_adapters(make("cot_sft"), lora, 0)
    assert method.training
    disturb(method)
    layer: Any = method.get_submodule("lm.model.layers.0.self_attn.q_proj")
    inputs = torch.randn(2, 32)
    plain = layer.base_layer(inputs)
    added = []
    for training in (True, False):
        layer.train(training)
        torch.manual_seed(0)
        added.append(layer(inputs) - plain)
    torch.manual_seed(0)
    dropped = F.dropout(inputs, 0.5)
    assert 0.3 < float((dropped == 0).double().mean()) < 0.7
    down, up = (getattr(layer, f"lora_{part}").default.weight for part in "AB")
    for read, found in zip((dropped, inputs), added, strict=True):
        torch.testing.assert_close(found, 3 * read @ down.T @ up.T)
