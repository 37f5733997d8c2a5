"""Layers that are compiled, or recomputed for their gradient, compute what plain layers do and leave nothing behind."""

from __future__ import annotations

import re
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.nn import functional as F

from benchmarks.engine import PlaceInPhase, Ranks, autocast, build_engine, pick_device
from benchmarks.engine.adapters import add_adapters
from benchmarks.engine.layers import _require_compiler, compile_layers
from benchmarks.engine.sharded import DeepSpeedEngine
from benchmarks.evaluation import inference
from benchmarks.evaluation.inference import temporarily_prepared
from benchmarks.studies.specs import EngineSpec, LoraSpec, TrainingSpec
from benchmarks.timing.measuring import one_rank
from methods.base import Budget, Method
from methods.errors import InputError
from methods.generation import Decoding
from small import MARCOS
from tiny import context, disturb, examples, make, questions

LORA = LoraSpec(rank=4, alpha=8, modules=("q_proj", "o_proj", "down_proj"))
LORA_OF_GPT2 = LoraSpec(rank=4, alpha=8, modules=("c_attn", "c_proj", "c_fc"))
TRAINING = TrainingSpec(epochs=1, max_grad_norm=2.0)
BUILT_IN = torch._C._nn.linear  # type: ignore[attr-defined]  # what `F.linear` is


@pytest.mark.parametrize(
    ("name", "again", "precision", "lora", "backbone", "layers"),
    [
        ("marcos", True, "bfloat16", None, "qwen2-tiny", 3),  # in each of four transformers; as in the paper's studies
        ("codi", False, "float32", LORA, "qwen2-tiny", 10),  # as in the study of checkpoints
        ("codi", False, "bfloat16", LORA_OF_GPT2, "gpt2", 10),  # as its authors train
    ],
)
def test_compiled_layers_give_the_same_gradient(
    name: str,
    again: bool,
    precision: str,
    lora: LoraSpec | None,
    backbone: str,
    layers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two input shapes share one program, and so do layers; CODI reads a cache. On a CPU, compilation generates no
    code."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    gradients, graphs = [], []
    for compiled in (False, True):
        method = make(name, MARCOS if name == "marcos" else {}, backbone, num_hidden_layers=layers)
        method = add_adapters(method, lora, 0).to(device)
        disturb(method)
        stage = method.stages(Budget(2.0, 4))[0]
        spec = EngineSpec.model_validate(
            {"compile": compiled, "activation_checkpointing": again, "precision": precision}
        )
        engine = build_engine(method.train(), stage, TRAINING, spec, PlaceInPhase(0, 1), Ranks())
        for some in (examples()[:3], examples()):
            output = engine.forward(method.collate(some, context()).to(device), context())
            engine.backward(torch.stack(list(output.losses.values())).sum(), last=True)
        gradients.append({name: parameter.grad for name, parameter in engine.trainable.items()})
        graphs.append(counters["stats"]["unique_graphs"])
        engine.close()
        assert not compiled_parts(method)
    for name, gradient in gradients[0].items():
        if precision == "float32":
            torch.testing.assert_close(gradients[1][name], gradient, msg=name, rtol=1e-4, atol=1e-5)
        else:  # fused kernels round some numbers to 8 bits at other places, each by 2 ** -9 at most
            assert torch.linalg.vector_norm(gradients[1][name] - gradient) < 0.02 * torch.linalg.vector_norm(gradient)
    assert graphs[0] == 0 < graphs[1] <= 8  # not one per layer


def test_more_thoughts_keep_no_more_copies_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thought is a pass, and a compiled layer keeps its weights in bfloat16 for the gradient of each pass."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(F, "linear", BUILT_IN)  # DeepSpeed, which other tests import, has one of its own
    copies = []
    for thoughts in (2, 6):
        method = make("codi", {"num_latents": thoughts}).train()
        shapes = {shape for weight in method.parameters() for shape in (weight.shape, weight.shape[::-1])}
        compile_layers(method, caches=True)
        kept: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, torch.Tensor] = kept, shapes: set = shapes) -> torch.Tensor:
            if tensor.dtype == torch.bfloat16 and tensor.shape in shapes:
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast(method.device, "bfloat16"):
            method(method.collate(examples(), context()), context())
        copies.append(len(kept))
    assert copies[0] == copies[1] > 0


def compiled_parts(method: nn.Module) -> set[str]:
    """Return the names of the compiled modules within layers. The name of a layer itself is empty."""
    return {
        re.split(r"\b(?:layers|h)\.", name, maxsplit=1)[-1].partition(".")[2]
        for name, module in method.named_modules()
        if module._compiled_call_impl is not None
    }


LAYER, PARTS = {""}, {"mlp", "input_layernorm", "post_attention_layernorm"}  # the parts besides attention


@pytest.mark.parametrize(
    ("name", "backbone", "expected"),
    [
        ("cot_sft", "qwen2-tiny", {"lm": PARTS}),
        ("cot_sft", "gpt2", {"lm": {"mlp", "ln_1", "ln_2"}}),
        ("marcos", "qwen2-tiny", {"understanding": LAYER, "thinking": LAYER, "posterior": LAYER, "speaking": PARTS}),
    ],
)
def test_answers_are_given_by_compiled_parts_and_then_by_plain_ones(
    name: str, backbone: str, expected: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds after an error and if layers are plain already. Attention that reads a cache is not compiled."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    engine, method = EngineSpec(compile=True), make(name, MARCOS if name == "marcos" else {}, backbone).eval()
    given = [question for question in questions() if question]

    def said() -> list[list[int]]:
        with torch.no_grad():
            return method.generate(given, Decoding(max_new_tokens=6)).answer.tolist()

    plain = said()
    freed: list[Method] = []
    monkeypatch.setattr(inference, "free_buffers", freed.append)
    for _ in range(2):
        with temporarily_prepared(method, engine):
            compiled = {part: compiled_parts(module) for part, module in method.named_children()}
            assert {part: names for part, names in compiled.items() if names} == expected
            assert inductor.compile_threads == torch.get_num_threads()
            assert said() == plain
        assert not compiled_parts(method)
    with pytest.raises(RuntimeError, match="failed"), temporarily_prepared(method, engine):
        raise RuntimeError("failed")
    assert not compiled_parts(method) and freed == [method] * 3


def test_a_missing_compiler_is_told_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InputError, match=r"needs g\+\+, .* name another compiler in CXX, or set `compile: false`"):
        compile_layers(make("cot_sft"), caches=False)
    monkeypatch.setenv("CXX", "my-compiler")
    with pytest.raises(InputError, match="needs my-compiler"):
        compile_layers(make("cot_sft"), caches=False)
    with pytest.raises(InputError, match="needs gcc or clang"):
        _require_compiler(torch.device("cuda"))


def test_layers_in_parts_are_not_compiled() -> None:
    with pytest.raises(ValueError, match="set zero_stage to 2 at most"):
        EngineSpec(kind="deepspeed", zero_stage=3, compile=True)


@pytest.mark.parametrize(("zero_stage", "compiled"), [(2, False), (3, False), (1, True)])
def test_nothing_is_left_of_an_engine_that_is_closed(
    zero_stage: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"kind": "deepspeed", "zero_stage": zero_stage, "compile": compiled}
    if compiled:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    spec, method = EngineSpec.model_validate(settings), make("cot_sft").to(pick_device())
    linear = F.linear
    with one_rank(spec) as ranks:
        engine = build_engine(method, method.stages(Budget(1.0, 1))[0], TRAINING, spec, PlaceInPhase(0, 1), ranks)
        assert isinstance(engine, DeepSpeedEngine)
        output = engine.forward(method.collate(examples(), context()).to(method.device), context())
        engine.backward(torch.stack(list(output.losses.values())).sum(), last=True)
        engine.step(0)
        del output
        replaced = F.linear is not linear
        left = [weakref.ref(engine.engine), weakref.ref(engine.optimizer), *map(weakref.ref, engine.trainable.values())]
        engine.close()
    assert all(reference() is None for reference in left)
    assert replaced == (zero_stage == 3) and F.linear is linear


def test_activations_are_kept_where_a_cache_is_read() -> None:
    method = make("codi")
    spec = EngineSpec(activation_checkpointing=True)
    with pytest.raises(ValueError, match="codi reads a cache while it trains"):
        build_engine(method, method.stages(Budget(1.0, 1))[0], TRAINING, spec, PlaceInPhase(0, 1), Ranks())
