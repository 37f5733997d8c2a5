"""CODI's layout, what its distillation measures and moves, and its warm start."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tiny
from methods.base import Context, Example, Setup, Stage, Vocabulary
from methods.codi import ANSWER_PHRASE, CODI, CODIOptions, layer_distance
from methods.cot_sft import CoTSFT, CoTSFTOptions
from methods.registry import build

CONTEXT = Context(Stage("distillation", 1.0), epoch=0, step=0, seed=0)
ROWS = [("2+3?", ["2+3=5"], "5"), ("1+1+1=", ["1+1=2", "2+1=3"], "3"), ("7-", [], "-12"), ("4*5*2", ["20", "40"], "40")]


@pytest.fixture
def setup() -> Setup:
    return tiny.setup(intermediate_size=64, initializer_range=0.2)  # large, so that the inputs matter


def make(setup: Setup, **options: object) -> CODI:
    model = build("codi", options, setup, seed=1)
    assert isinstance(model, CODI)
    return model


def examples(vocabulary: Vocabulary) -> list[Example]:
    encode = vocabulary.encode
    return [Example(q, encode(q), [encode(step) for step in steps], encode(a)) for q, steps, a in ROWS]


def text(ids: Tensor) -> str:
    return "".join(chr(i) if i < 128 else f"[{i}]" for i in ids.tolist())


def test_layout(setup: Setup) -> None:
    batch = make(setup).collate(examples(setup.vocabulary)[:2], CONTEXT)
    assert text(batch["prompt"][0][batch["prompt_real"][0]]) == "2+3?\n[128]"
    assert text(batch["student"][1]) == "[129]The answer is: 3"
    # The only step is also the last one, which is left out
    assert text(batch["teacher"][0]).rstrip("\0") == "2+3?\nThe answer is: 5"
    assert text(batch["teacher"][1]) == "1+1+1=\n1+1=2\nThe answer is: 3"
    place = batch["distilled_position"][1]
    assert text(batch["teacher"][1][place - 2 : place + 1]) == "s: "
    assert batch["teacher_labels"][1][place] == ord("3")
    count = len(ANSWER_PHRASE) + 2
    assert batch.denominators == {"student": 2 * count, "teacher": 2 * count + len("1+1=2\n"), "distillation": 2}
    passes = ["2+3?\n[", "1+1+1=\n[", "[The answer is: 5", "[The answer is: 3", *map(text, batch["teacher"])]
    assert batch.tokens == 2 * 6 + sum(len(row.rstrip("\0")) for row in passes)


def test_the_last_step_may_stay(setup: Setup) -> None:
    batch = make(setup, include_last_step=True).collate(examples(setup.vocabulary)[:1], CONTEXT)
    assert text(batch["teacher"][0]) == "2+3?\n2+3=5\nThe answer is: 5"


def test_distance_is_divided_by_the_deviation_of_each_layer() -> None:
    teacher = torch.tensor([[[0.0, 2.0], [4.0, 2.0]], [[0.0, 20.0], [40.0, 20.0]]])
    student = teacher + torch.tensor([[[1.0]], [[10.0]]])
    assert layer_distance(student, teacher, divide_by_std=False) == pytest.approx((2 * 0.5 + 2 * 9.5) / 2)
    deviation = (8 / 3) ** 0.5  # of 0, 2, 4, 2
    expected = (2 * 0.5 / deviation + 2 * 9.5 / (10 * deviation)) / 2
    assert layer_distance(student, teacher, divide_by_std=True) == pytest.approx(expected)


def test_distillation_moves_the_student_alone(setup: Setup) -> None:
    model = make(setup)
    rows = [Example("a", [40, 41], [[50, 51], [52]], [60]), Example("b", [42], [[53], [54]], [61])]
    table = model.lm.get_input_embeddings().weight
    losses = model(model.collate(rows, CONTEXT), CONTEXT).losses
    (distilled,) = torch.autograd.grad(losses["distillation"], table, retain_graph=True)
    (taught,) = torch.autograd.grad(losses["teacher"], table)
    chain = [50, 51, 53]  # tokens that only the teacher reads
    assert not distilled[chain].any() and distilled[[40, 41, 42, model.begin]].any(1).all()
    assert taught[chain].any(1).all()


def test_warm_start_keeps_markers_and_projection(setup: Setup) -> None:
    assert CODI.starts_from(CODIOptions()) is None
    assert CODI.starts_from(CODIOptions(warm_start="cot_sft")) == "cot_sft"
    parent, model = CoTSFT(CoTSFTOptions(), setup), make(setup)
    markers = model.lm.get_input_embeddings().weight[128:].clone()
    model.warm_start(parent.state_dict())
    table = model.lm.get_input_embeddings().weight
    assert torch.equal(table[:128], parent.lm.get_input_embeddings().weight)
    assert torch.equal(table[128:], markers)
