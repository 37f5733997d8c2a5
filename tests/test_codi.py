"""CODI's layout, its losses against a naive row-by-row reference, and its generation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tiny
from methods.base import Budget, Context, Example, Setup, Stage, Vocabulary
from methods.codi import ANSWER_PHRASE, CODI, CODIOptions, layer_distance
from methods.cot_sft import CoTSFT, CoTSFTOptions
from methods.generation import Decoding
from methods.registry import build
from tiny import passes

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
    assert batch["teacher_labels"][1][place - batch["teacher"].shape[1]] == ord("3")
    count = len(ANSWER_PHRASE) + 2
    assert batch.denominators == {"student": 2 * count, "teacher": 2 * count + len("1+1=2\n"), "distillation": 2}
    passes = ["2+3?\n[", "1+1+1=\n[", "[The answer is: 5", "[The answer is: 3", *map(text, batch["teacher"])]
    assert batch.tokens == 2 * 6 + sum(len(row.rstrip("\0")) for row in passes)


def test_the_last_step_may_stay(setup: Setup) -> None:
    batch = make(setup, include_last_step=True).collate(examples(setup.vocabulary)[:1], CONTEXT)
    assert text(batch["teacher"][0]) == "2+3?\n2+3=5\nThe answer is: 5"


def naive(model: CODI, example: Example) -> dict[str, Tensor]:
    """Return one row's losses without padding and cache, reading the whole sequence again for each latent."""
    embed, head, vocabulary = model.lm.get_input_embeddings(), model.lm.get_output_embeddings(), model.vocabulary
    encode = vocabulary.encode

    def read(vectors: Tensor) -> tuple[Tensor, ...]:
        return model.lm.base_model(inputs_embeds=vectors[None], output_hidden_states=True).hidden_states

    def loss(hidden: Tensor, labels: list[int]) -> Tensor:
        return F.cross_entropy(head(hidden[-len(labels) - 1 : -1]).float(), torch.tensor(labels), reduction="sum")

    question = [*example.question, *encode("\n")]
    answer = [*encode(ANSWER_PHRASE), *example.answer, vocabulary.eos]
    chain = [token for step in example.steps[:-1] for token in (*step, *encode("\n"))]
    vectors = embed(torch.tensor([*question, model.begin]))
    for _ in range(model.options.num_latents):
        vectors = torch.cat([vectors, model.project(read(vectors)[-1][0, -1:])])
    student = read(torch.cat([vectors, embed(torch.tensor([model.end, *answer]))]))
    teacher = read(embed(torch.tensor([*question, *chain, *answer])))
    before = -len(example.answer) - 2
    distances = [F.smooth_l1_loss(s[0, before], t[0, before].detach()) for s, t in zip(student, teacher, strict=True)]
    return {
        "student": loss(student[-1][0], answer),
        "teacher": loss(teacher[-1][0], [*chain, *answer]),
        "distillation": model.options.distill_weight * torch.stack(distances).mean(),
    }


@pytest.mark.parametrize("latents", [0, 3])
def test_losses_and_gradients_equal_a_naive_reference(setup: Setup, latents: int) -> None:
    model = make(setup, divide_by_std=False, num_latents=latents, distill_weight=20.0).double()
    rows = examples(setup.vocabulary)
    parameters = list(model.parameters() if latents else model.lm.parameters())
    fast = model(model.collate(rows, CONTEXT), CONTEXT).losses
    fast_gradients = torch.autograd.grad(torch.stack(list(fast.values())).sum(), parameters)
    slow = [naive(model, row) for row in rows]
    for name, value in fast.items():
        torch.testing.assert_close(value, torch.stack([row[name] for row in slow]).sum())
    slow_gradients = torch.autograd.grad(torch.stack([v for row in slow for v in row.values()]).sum(), parameters)
    for ours, theirs in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("latents", [0, 1, 6])
def test_forward_passes_are_counted(setup: Setup, latents: int) -> None:
    model = make(setup, num_latents=latents).eval()
    calls = passes(model)
    with torch.no_grad():
        generation = model.generate([[40, 41], [42]], Decoding(max_new_tokens=5))
    assert generation.cost.forward_passes == len(calls) == 2 + latents + generation.answer.shape[1] - 1
    assert generation.cost.latent_steps == latents
    calls.clear()
    model(model.collate(examples(setup.vocabulary), CONTEXT), CONTEXT)
    assert len(calls) == 3 + latents


def test_warm_start_keeps_markers_and_projection(setup: Setup) -> None:
    assert CODI.starts_from(CODIOptions()) is None
    assert CODI.starts_from(CODIOptions(warm_start="cot_sft")) == "cot_sft"
    parent, model = CoTSFT(CoTSFTOptions(), setup), make(setup)
    markers = model.lm.get_input_embeddings().weight[128:].clone()
    model.warm_start(parent.state_dict())
    table = model.lm.get_input_embeddings().weight
    assert torch.equal(table[:128], parent.lm.get_input_embeddings().weight)
    assert torch.equal(table[128:], markers)


def test_one_stage_spends_the_budget(setup: Setup) -> None:
    (stage,) = make(setup).stages(Budget(epochs=2.5, steps_per_epoch=7))
    assert (stage.epochs, stage.select_on) == (2.5, ("student",))
