"""SIM-CoT: which text explains which latents, and the loss of the second decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from benchmarks.studies.runs import set_path
from golden import close
from methods.base import Batch, Budget, Example
from methods.coconut import CoconutOptions
from methods.codi import CODIOptions
from methods.collate import IGNORE
from methods.generation import Decoding
from methods.registry import get_method
from methods.sim_cot import SimCoT, SimCoTCoconut, SimCoTCoconutOptions, SimCoTCODI, SimCoTCODIOptions, merge_steps
from tiny import EOS, context, examples, make, passes, questions, text

NAMES = ("sim_cot_coconut", "sim_cot_codi")


def sim_cot(name: str, base: dict[str, Any] | None = None, **options: Any) -> SimCoT:
    method = make(name, {"base": base or {}, **options})
    assert isinstance(method, SimCoT)
    return method


def explained(method: SimCoT, row: int, stage: int = 4) -> list[str]:
    return [text(own) for own in method.explanations(examples()[row], context(stage=stage))]


def test_merge_steps() -> None:
    steps = [[1], [2], [3], [4]]
    assert merge_steps(steps, 5, [9]) == steps
    assert merge_steps(steps, 4, [9]) == steps
    assert merge_steps(steps, 2, [9]) == [[1], [2, 9, 3, 9, 4]]
    assert merge_steps([], 0, [9]) == []


def test_worked_examples_on_coconut() -> None:
    method = sim_cot("sim_cot_coconut")
    assert explained(method, 2, stage=1) == ["<<2+2=4>>"]
    assert explained(method, 2, stage=3) == ["<<2+2=4>>", "<<4*2=8>>", "<<8-1=7>>"]
    assert explained(method, 2, stage=4) == ["<<2+2=4>>", "<<4*2=8>>", "<<8-1=7>>\n<<7/2=3.5>>"]
    assert explained(method, 0, stage=2) == ["<<3+4=7>>", "#### 7"]
    assert explained(method, 3, stage=4) == ["#### 5"] * 3


def test_worked_examples_on_codi() -> None:
    method = sim_cot("sim_cot_codi")
    assert explained(method, 1) == ["<<12-9=3>>", "<<3-2=1>>", "", "", "", "", ""]
    assert explained(method, 3) == [""] * 7
    narrow = sim_cot("sim_cot_codi", {"num_latents": 2})
    assert explained(narrow, 2) == ["<<2+2=4>>", "<<4*2=8>>", "<<8-1=7>>\n<<7/2=3.5>>"]


def direct(method: SimCoT, batch: Batch, rows: list[Example], stage: int) -> list[list[tuple[float, int]]]:
    """Return the cross entropy and number of tokens of each group's text, computed one at a time."""
    _, latents = method.base.losses_and_latents(batch, context(stage=stage))
    found = []
    for row, example in enumerate(rows):
        own = method.explanations(example, context(stage=stage))
        first = latents.shape[1] - len(own) * method.group
        groups = latents[row, first:].unflatten(0, (len(own), method.group)) if own else []
        found.append([say(method, group, said) for group, said in zip(groups, own, strict=True)])
    return found


def say(method: SimCoT, group: Tensor, said: list[int]) -> tuple[float, int]:
    if not said:
        return 0.0, 0
    words = method.base.lm.get_input_embeddings()(torch.tensor(said))
    logits = method.decoder(inputs_embeds=torch.cat([group, words])[None]).logits[0, len(group) - 1 :]
    return float(F.cross_entropy(logits, torch.tensor([*said, EOS]), reduction="sum")), len(said) + 1


@pytest.mark.parametrize("drawn", [0.0, 0.7])
@torch.no_grad()
def test_explanations_on_coconut_count_by_example(drawn: float) -> None:
    method = sim_cot("sim_cot_coconut", {"uniform_prob": drawn}).double()
    for stage in (1, 3, 4):
        batch = method.collate(examples(), context(stage=stage))
        losses = direct(method, batch, examples(), stage)
        means = [sum(loss for loss, _ in own) / len(own) for own in losses if own]
        output = method(batch, context(stage=stage))
        close(output.losses["explanation"], torch.tensor(sum(means)))
        assert batch.denominators["explanation"] == 4
        base = method.base(method.base.collate(examples(), context(stage=stage)), context(stage=stage)).losses
        assert {**output.losses, **base} == output.losses


@torch.no_grad()
def test_explanations_on_codi_count_by_token() -> None:
    method = sim_cot("sim_cot_codi", weight=0.5).double()
    batch = method.collate(examples(), context())
    columns = list(zip(*direct(method, batch, examples(), 0), strict=True))
    means = [sum(loss for loss, _ in nth) / sum(n for _, n in nth) for nth in columns if any(n for _, n in nth)]
    assert len(means) == 4
    explanation = method(batch, context()).losses["explanation"] / batch.denominators["explanation"]
    close(explanation, torch.tensor(0.5 * sum(means) / 4))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_latents(name: str) -> None:
    method = sim_cot(name)
    batch = method.collate(examples(), context(stage=4))
    read, loss = passes(method), method(batch, context(stage=4)).losses["explanation"]
    assert read[-1] == (len(batch["latents"]), method.group + batch["explained"].shape[1])
    loss.backward()
    for part in (method.base.lm, method.decoder):
        assert part.model.layers[0].self_attn.q_proj.weight.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_an_example_without_latents_to_explain(name: str) -> None:
    method = sim_cot(name)
    batch = method.collate(examples()[3:], context(stage=0))
    assert not batch["weights"].any()  # a text without weight may stand in for none
    assert method(batch, context(stage=0)).losses["explanation"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_counted(name: str) -> None:
    method = sim_cot(name)
    batch, base = (one.collate(examples(), context(stage=4)) for one in (method, method.base))
    read = (batch["explained_labels"] != IGNORE).sum() + len(batch["latents"]) * (method.group - 1)
    assert batch.tokens - base.tokens == read


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_decoder_is_no_part_of_answering(name: str) -> None:
    method = sim_cot(name)
    decoding = Decoding(max_new_tokens=4, trace=True)
    generation, base = method.generate(questions(), decoding), method.base.generate(questions(), decoding)
    assert torch.equal(generation.answer, base.answer)
    assert generation.cost == base.cost
    assert generation.trace.keys() == base.trace.keys() != set()


def test_curriculum_is_the_bases() -> None:
    for name in NAMES:
        method = sim_cot(name)
        assert method.stages(Budget(22, 10)) == method.base.stages(Budget(22, 10))


def test_a_stage_answers_as_the_bases() -> None:
    method = sim_cot("sim_cot_coconut")
    asked = [*method.stages(Budget(22, 10)), None]
    with torch.no_grad():
        costs = [method.generate(questions(), Decoding(max_new_tokens=2, stage=stage)).cost for stage in asked]
    assert [cost.latent_steps for cost in costs] == [2, 4, 6, 6, 6]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_trained_model_thinks_as_often_as_it_is_told_to(name: str) -> None:
    (option,) = get_method(name).answering_options
    told = make(name, set_path({}, option, 1))
    assert told.generate(questions(), Decoding(max_new_tokens=1)).cost.latent_steps == 1


@pytest.mark.parametrize("name", NAMES)
def test_warm_start(name: str) -> None:
    """The base is taken over unchanged, including its trained markers, and the decoder starts as a copy of it."""
    method = sim_cot(name)
    parent = make(name.removeprefix("sim_cot_"))
    weights = {k: torch.rand_like(v) for k, v in parent.state_dict().items() if k != "lm.lm_head.weight"}
    method.warm_start(weights)
    own = method.base.state_dict()
    assert all(torch.equal(own[k], v) for k, v in weights.items())
    assert all(torch.equal(v, method.base.lm.state_dict()[k]) for k, v in method.decoder.state_dict().items())


def test_starts_from() -> None:
    assert SimCoTCoconut.starts_from(SimCoTCoconutOptions()) == "coconut"
    assert SimCoTCODI.starts_from(SimCoTCODIOptions()) is None


def test_a_base_without_thoughts_is_refused() -> None:
    with pytest.raises(ValidationError, match="no thoughts to explain"):
        SimCoTCoconutOptions(base=CoconutOptions(control="pause"))


def test_a_base_with_a_warm_start_of_its_own_is_refused() -> None:
    """The option would have no effect: the run starts from a Coconut checkpoint with default options."""
    with pytest.raises(ValidationError, match="leave out the base's `warm_start`"):
        SimCoTCoconutOptions(base=CoconutOptions(warm_start="none"))
    assert SimCoTCODI.starts_from(SimCoTCODIOptions(base=CODIOptions(warm_start="cot_sft"))) == "cot_sft"
