"""Coconut: the layout of every stage, the curriculum, and that batching and caching do not change any number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.evaluation.inference import generate
from golden import close
from methods.base import Budget, Example
from methods.coconut import Coconut, CoconutOptions
from methods.collate import IGNORE
from methods.generation import Decoding
from tiny import EOS, context, examples, ids, make, passes, questions, text

CONTROLS = ("none", "no_cot", "no_curriculum", "no_thoughts", "pause", "explicit")


def coconut(options: dict[str, Any] | None = None, **overrides: int) -> Coconut:
    method = make("coconut", options, "qwen2-tiny", 0.0, **overrides)
    assert isinstance(method, Coconut)
    return method


def written(method: Coconut, stage: int, row: int) -> str:
    """Return what a model reads of an example, with || before the first predicted token."""
    batch = method.collate([examples()[row]], context(stage=stage))
    final = batch["labels"][0, -1:].tolist()
    sequence = [*batch["prompt"][0].tolist(), *batch["text"][0].tolist(), *final]
    shown = text(sequence, begin=method.begin, latent=method.latent, end=method.end)
    said = text(batch["labels"][0].tolist())
    assert shown.endswith(said)
    return shown.removesuffix(said) + "||" + said


# -- layout and curriculum


def test_worked_example_of_every_stage() -> None:
    method, question = coconut(), "2 + 2, twice, less 1, halved\n"
    steps = ["<<2+2=4>>\n", "<<4*2=8>>\n", "<<8-1=7>>\n", "<<7/2=3.5>>\n"]
    for stage in (1, 2, 3):
        thoughts = "[latent]" * 2 * stage
        left = "".join(steps[stage:])
        assert written(method, stage, 2) == f"{question}[begin]{thoughts}[end]||{left}#### 3.5$"
    assert written(method, 4, 2) == f"{question}[begin]{'[latent]' * 6}[end]||#### 3.5$"
    assert written(method, 3, 0) == f"Ann has 3 + 4\n[begin]{'[latent]' * 6}[end]||#### 7$"


def test_worked_examples_of_the_controls() -> None:
    assert written(coconut({"control": "no_cot"}), 4, 0) == "Ann has 3 + 4\n||#### 7$"
    assert written(coconut({"control": "no_thoughts"}), 1, 1) == "9 of 12 go, then 2 more\n||<<3-2=1>>\n#### 1$"
    for stage in (1, 4):
        whole = written(coconut({"control": "explicit"}), stage, 1)
        assert whole == "9 of 12 go, then 2 more\n||<<12-9=3>>\n<<3-2=1>>\n#### 1$"
    paused = written(coconut({"control": "pause"}), 1, 1)
    assert paused == "9 of 12 go, then 2 more\n[begin][latent][latent][end]||<<3-2=1>>\n#### 1$"


def test_pretrained_schedule_on_gsm8k() -> None:
    stages = coconut().stages(Budget(22, 100))
    assert [stage.epochs for stage in stages] == pytest.approx([3, 3, 3, 13])
    assert [stage.settings["stage"] for stage in stages] == [1, 2, 3, 4]
    assert [bool(stage.select_on) for stage in stages] == [False, False, False, True]
    assert {stage.phase for stage in stages} == {"train"}


@pytest.mark.parametrize(
    ("control", "restart", "epochs"),
    [("none", "never", 0.3), ("pause", "epoch", 7.5), ("no_curriculum", "stage", 7.5), ("no_cot", "epoch", 0.3)],
)
def test_stages_spend_any_budget(control: str, restart: str, epochs: float) -> None:
    stages = coconut({"control": control, "optimizer_restart": restart}).stages(Budget(epochs, 10))
    assert sum(stage.epochs for stage in stages) == pytest.approx(epochs)
    assert [stage.select_on for stage in stages if stage.select_on] == [("cross_entropy",)]
    assert stages[-1].select_on and stages[-1].settings["stage"] == 4
    assert {stage.keep_optimizer for stage in stages} == {restart == "never"}
    assert len({stage.name for stage in stages}) == len(stages)
    if control in ("no_cot", "no_curriculum"):
        assert {stage.settings["stage"] for stage in stages} == {4}


def test_stages_must_leave_a_final_one_where_there_are_any() -> None:
    with pytest.raises(ValueError, match=r"8 stages of 0\.136 of the budget leave nothing.*lower stage_share"):
        coconut({"max_stage": 8})
    assert len(coconut({"max_stage": 8, "control": "no_curriculum"}).stages(Budget(1.0, 10))) == 1


def test_starts_from_a_chain_of_thought() -> None:
    starts = {control: Coconut.starts_from(CoconutOptions(control=control)) for control in CONTROLS}  # type: ignore
    assert starts == {**dict.fromkeys(CONTROLS, "cot_sft"), "no_cot": None}
    assert Coconut.starts_from(CoconutOptions(warm_start="none")) is None


def test_warm_start_keeps_markers_of_their_own() -> None:
    method, parent = coconut(), make("cot_sft")
    weights = {name: tensor + 1 for name, tensor in parent.state_dict().items() if name != "lm.lm_head.weight"}
    method.warm_start(weights)
    table = method.lm.get_input_embeddings().weight
    assert torch.equal(table[:128], weights["lm.model.embed_tokens.weight"])
    assert torch.equal(method.lm.model.norm.weight, weights["lm.model.norm.weight"])
    for marker in (method.begin, method.end, method.latent):
        torch.testing.assert_close(table[marker], table[ids("<")[0]])  # both characters of << have this token


def test_stages_drawn_at_random() -> None:
    method = coconut({"uniform_prob": 0.3})
    rows = [Example(f"{i}", ids("1"), [ids("2")] * 4, ids("3")) for i in range(2000)]
    drawn = method.example_stages(rows, context(stage=2))
    assert drawn == method.example_stages(rows, context(stage=2))
    shares = torch.bincount(torch.tensor(drawn), minlength=5) / len(rows)
    torch.testing.assert_close(shares, torch.tensor([0.06, 0.06, 0.76, 0.06, 0.06]), atol=0.02, rtol=0)
    assert set(method.example_stages(rows, context(training=False, stage=2))) == {2}


# -- the same numbers as one row at a time, without a cache


def gradients(method: Coconut, loss: Tensor) -> dict[str, Tensor]:
    method.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("stage", "drawn", "control"), [(1, 0.0, "none"), (2, 0.7, "none"), (4, 0.0, "none"), (2, 0.0, "pause")]
)
def test_loss_and_gradients_equal_the_naive_ones(stage: int, drawn: float, control: str) -> None:
    """This includes batches whose rows have unequal numbers of thoughts, and the pause control."""
    method = coconut({"uniform_prob": drawn, "control": control}).double()
    batch = method.collate(examples(), context(stage=stage))
    if drawn:
        assert len(set((batch["prompt"] == method.latent).sum(1).tolist())) > 1
    loss, expected = (
        forward(batch, context(stage=stage)).losses["cross_entropy"] for forward in (method, method.naive_forward)
    )
    close(loss, expected)
    ours, theirs = gradients(method, loss), gradients(method, expected)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        close(gradient, theirs[name])


@pytest.mark.parametrize(
    ("number", "asked_for", "thoughts"), [(None, None, 6), (1, None, 2), (2, None, 4), (None, 0, 0), (None, 3, 3)]
)
@torch.no_grad()
def test_answers_equal_those_of_one_question_at_a_time_without_cache(
    number: int | None, asked_for: int | None, thoughts: int
) -> None:
    """This holds for the weights of any stage, with as many thoughts as that stage was trained with, or as many as are
    asked for."""
    method, limit = coconut({"thoughts": asked_for}, hidden_size=48), 8
    asked, stage = questions(), None if number is None else context(stage=number).stage
    answers = method.generate(asked, Decoding(max_new_tokens=limit, stage=stage)).answer
    for question, answer in zip(asked, answers, strict=True):
        read = [*question, *ids("\n"), method.begin, *[method.latent] * thoughts, method.end]
        vectors = method.naive_inputs(torch.tensor(read))
        tokens: list[int] = []
        while len(tokens) < limit and EOS not in tokens:
            tokens.append(int(method.lm(inputs_embeds=vectors[None]).logits[0, -1].argmax()))
            vectors = torch.cat([vectors, method.lm.get_input_embeddings()(torch.tensor(tokens[-1:]))])
        assert answer[: len(tokens)].tolist() == tokens
        assert not answer[len(tokens) :].any()


def test_what_is_said_in_the_end_is_as_long_as_what_was_learned() -> None:
    _, example, *_ = examples()
    lengths = {control: coconut({"control": control}).length(example).tokens for control in CONTROLS}
    assert lengths == {**dict.fromkeys(CONTROLS, len("#### 1$")), "explicit": len("<<12-9=3>>\n<<3-2=1>>\n#### 1$")}


def test_thoughts_in_training_are_not_those_asked_for() -> None:
    assert written(coconut({"thoughts": 1}), 2, 0) == written(coconut(), 2, 0)


# -- costs and controls


@pytest.mark.parametrize("control", ["none", "no_cot", "pause"])
@torch.no_grad()
def test_costs(control: str) -> None:
    """There is one pass up to the thoughts and one from each thought on. The last one reads everything that follows."""
    method = coconut({"control": control})
    thoughts = 6 if control in ("none", "no_curriculum") else 0
    read = passes(method)
    generation = method.generate(questions(), Decoding(max_new_tokens=5, trace=True))
    assert generation.cost.forward_passes == len(read) == 1 + thoughts + generation.answer.shape[1] - 1
    assert generation.cost.latent_steps == thoughts
    assert generation.trace["thoughts"].shape == (4, thoughts, 32)
    read.clear()
    batch = method.collate(examples(), context(stage=4))
    method(batch, context(stage=4))
    assert len(read) == 1 + thoughts
    assert sum(shape[1] for shape in read) == batch["prompt"].shape[1] + batch["text"].shape[1]
    assert batch.tokens == batch["real"].sum() + (batch["labels"] != IGNORE).sum()


@torch.no_grad()
def test_thoughts_of_others() -> None:
    method = coconut()

    def thoughts(asked: list[list[int]], whose: str) -> Tensor:
        decoding = Decoding(max_new_tokens=1, trace=True, thoughts=whose)  # type: ignore[arg-type]
        return generate(method, asked, decoding, "float32").trace["thoughts"]

    own, exchanged, mean = (thoughts(questions(), whose) for whose in ("own", "exchanged", "mean"))
    torch.testing.assert_close(exchanged, own.roll(1, 0))
    torch.testing.assert_close(mean, own.mean(0).expand_as(own))
    twice = [questions()[0]] * 2
    torch.testing.assert_close(thoughts(twice, "own"), thoughts(twice, "exchanged"))
