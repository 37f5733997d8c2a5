"""Planned FLOPs, kept tensors and peak memory agree with counted and measured ones where these are available."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import prepare
from benchmarks.engine import Ranks
from benchmarks.engine.layers import checkpoint_activations
from benchmarks.models import build_method
from benchmarks.plan.costs import MEMORY_ERROR, plan
from benchmarks.plan.flops import Dimensions, small_method
from benchmarks.plan.lengths import estimated_tokens, example
from benchmarks.plan.memory import activation_bytes, saved_by_forward
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import LoraSpec
from benchmarks.timing import steps as step_timing
from benchmarks.training.loop import train
from conftest import needs_linux
from methods import head
from methods.base import Budget
from methods.errors import InputError
from methods.last_layer import widen
from methods.registry import available, get_method
from small import PLANNED, small_study
from tiny import GPT2

FLOPS_ERROR = 0.1  # both sides count only a few batches
SIZE = Dimensions(40, 56, 6, 4, 2, 12, 160)
BUDGET = Budget(2.0, 10, (26,) * 8)
EXAMPLES = [example(number, 20 + number, [9, 8, 7], 3) for number in range(8)]
FORKS = multiprocessing.get_context("forkserver")


@pytest.mark.parametrize(
    ("rows", "backbone"),
    [(PLANNED, {"name": "qwen2-tiny"}), (PLANNED[-2:], {"name": "gpt2", "overrides": GPT2})],
    ids=["all", "gpt2"],
)
def test_flops_are_those_that_are_counted_while_training(
    rows: list[dict[str, Any]], backbone: dict[str, Any], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(rows, timing={"train_steps": 10}, backbone=backbone)
    # FLOPs are counted in the first of the three times that a stage's steps are taken
    take, first = step_timing.take, itertools.cycle((True, False, False))
    monkeypatch.setattr(step_timing, "take", lambda *given: take(*given) if next(first) else ([1.0], 1))
    shares = {}
    for made in plan(study, results):
        paths = Paths(results, made.run)
        method = build_method(made.run, paths.data)
        widen(method)  # a plan does not count on what is saved in last layers
        counted = step_timing.time_training(method, made.run, paths, Ranks())
        shares[made.run.row] = made.flops / counted["training_flops"]
        assert made.parameters == sum(p.numel() for p in method.parameters())
        assert made.basis == "the prepared data"
    assert shares == pytest.approx(dict.fromkeys(shares, 1.0), abs=FLOPS_ERROR)


def test_layers_that_run_again_keep_their_inputs_alone() -> None:
    """With values, only the layers' inputs are kept, plus what one layer keeps without checkpointing."""
    again = {"activation_checkpointing": True}
    for spec in small_study([row for row in PLANNED if row["id"] in ("cot_sft", "marcos")], engine=again).runs.values():
        stage = small_method(spec, estimated_tokens, SIZE).stages(BUDGET)[0]
        sizes = (replace(SIZE, num_hidden_layers=layers) for layers in (6, 7))
        methods = (small_method(spec, estimated_tokens, size) for size in sizes)
        plain, deeper = (saved_by_forward(method, stage, EXAMPLES, "float32") for method in methods)
        checkpointed = small_method(spec, estimated_tokens, SIZE).train()
        checkpoint_activations(checkpointed)
        inputs = saved_by_forward(checkpointed, stage, EXAMPLES, "float32")
        assert inputs.activations < 0.6 * plain.activations
        layer = deeper.deepened(plain, -1)
        assert activation_bytes(spec, stage, EXAMPLES, SIZE, estimated_tokens) == inputs.deepened(layer, 1), spec.id


def by_adapters(spec: RunSpec, *modules: str) -> RunSpec:
    lora = LoraSpec(rank=4, alpha=8, modules=modules)
    return spec.model_copy(update={"training": spec.training.model_copy(update={"lora": lora})})


@pytest.mark.parametrize(
    ("precision", "backbone", "modules", "rows"),
    [
        ("float32", "qwen2-tiny", (), PLANNED),
        ("bfloat16", "gpt2", ("c_attn", "c_fc"), PLANNED[-2:]),
    ],
)
def test_what_is_kept_needs_no_numbers_and_few_layers(
    precision: str, backbone: str, modules: tuple[str, ...], rows: list[dict[str, Any]]
) -> None:
    for plain in small_study(rows, backbone={"name": backbone}, engine={"precision": precision}).runs.values():
        spec = by_adapters(plain, *modules) if modules else plain
        method = small_method(spec, estimated_tokens, SIZE)
        for stage in (stage for stage in method.stages(BUDGET) if not stage.cached):
            kept = saved_by_forward(method, stage, EXAMPLES, precision)
            counted = activation_bytes(spec, stage, EXAMPLES, SIZE, estimated_tokens)
            assert counted == pytest.approx(kept, rel=1e-3), (spec.id, stage.name)
            assert kept.activations and (kept.copies > 0) == (precision == "bfloat16")


def test_weights_that_are_not_trained_keep_less_and_are_copied_for_each_pass() -> None:
    """Their layers' inputs are not kept. Of a weight that is trained, autocast keeps one copy for all of a step."""
    plain = small_study([{"id": "codi", "method": "codi", "options": {"num_latents": 6}}]).runs["equation/codi/s0"]
    both = [small_method(spec, estimated_tokens, SIZE) for spec in (plain, by_adapters(plain, "q_proj"))]
    whole, frozen = (saved_by_forward(method, method.stages(BUDGET)[0], EXAMPLES, "bfloat16") for method in both)
    assert frozen.activations < whole.activations
    assert 6 < frozen.copies / whole.copies < 9  # passes; the head and the projection have fewer


@pytest.mark.parametrize("name", sorted(available().keys() - {row["id"] for row in PLANNED}))
def test_every_other_method_can_be_planned(name: str) -> None:
    rows = [{"id": name, "method": name, "options": dict(get_method(name).tested_options)}]
    spec = small_study(rows, engine={"precision": "bfloat16"}).runs[f"equation/{name}/s0"]
    stage = small_method(spec, estimated_tokens).stages(BUDGET)[0]
    assert activation_bytes(spec, stage, EXAMPLES, SIZE, estimated_tokens).copies > 0


def test_a_forward_pass_that_asks_for_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = next(iter(small_study(PLANNED).runs.values()))
    method = small_method(spec, estimated_tokens)
    monkeypatch.setattr(type(method), "forward", lambda method, *_: next(method.parameters()).sum().item())
    with pytest.raises(InputError, match=r"^cot_sft cannot be planned: .*; find it out in `collate`"):
        activation_bytes(spec, method.stages(BUDGET)[0], EXAMPLES, SIZE, estimated_tokens)


# -- peak memory


def _peak(spec: RunSpec, results: Path, at_once: int, send: Any) -> None:
    """Send the number of bytes by which training raises this process's resident memory."""
    head.AT_ONCE = at_once
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD, so that freed memory is returned at once
    train(spec.model_copy(update={"id": "equation/warm/s0", **_short(spec)}), results)  # loads all libraries
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    train(spec, results)
    send.send(_resident("VmHWM") - before)


def _short(spec: RunSpec) -> dict[str, Any]:
    return {"backbone": spec.backbone.model_copy(update={"overrides": {"hidden_size": 16, "num_hidden_layers": 1}})}


def _resident(name: str) -> int:
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert match
    return 1024 * int(match[1])


@pytest.mark.parametrize(("row", "words", "at_once"), [("marcos", 4096, None), ("cot_sft", 16384, 2**23)])
@needs_linux
def test_memory_is_what_training_takes(
    row: str, words: int, at_once: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``at_once``, logits are computed by parts, of so many values each."""
    monkeypatch.setattr(head, "AT_ONCE", at_once or head.AT_ONCE)
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "vocab_size": words}
    study = small_study(
        [entry for entry in PLANNED if entry["id"] == row],
        backbone={"name": "qwen2-tiny", "overrides": sizes},
        blocks=[{"id": "equation", "title": "E", "data": {"train": "embedded", "validation": 8, "limit": 96}}],
        training={"epochs": 2, "batch_size": 48, "checkpoint_seconds": 1e6, "validations": 1},
    )
    prepare(study, study.blocks[0], tmp_path)
    (made,) = plan(study, tmp_path)
    receive, send = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=_peak, args=(made.run, tmp_path, head.AT_ONCE, send))
    child.start()
    child.join()
    measured = receive.recv()
    print(f"{row}: planned {made.needed / 1e6:.0f} MB, measured {measured / 1e6:.0f} MB")
    assert made.needed == pytest.approx(measured, rel=MEMORY_ERROR)
    monkeypatch.undo()
    (whole,) = plan(study, tmp_path)
    assert (whole.needed > made.needed * (1 + MEMORY_ERROR)) == (at_once is not None)
    assert whole.flops == made.flops  # nothing is computed twice
