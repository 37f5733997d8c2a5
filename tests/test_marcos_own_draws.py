"""MarCos's training on its own draws: what it reads and learns is what MarCos would, with the same steps."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from conforming import EOS, examples, make, setup
from methods.base import Budget, Context, Example
from methods.decoding import decode, prefill
from methods.errors import InputError
from methods.generation import Decoding
from methods.marcos.targets import speaking_start
from methods.marcos_own_draws import MarCosOwnDraws
from methods.registry import build, get_method

Fields = dict[str, object]


def method(**options: object) -> MarCosOwnDraws:
    tested = get_method("marcos_own_draws").tested_options
    return cast(MarCosOwnDraws, build("marcos_own_draws", {**tested, **options}, setup(), seed=0)).eval()


def context(of: MarCosOwnDraws) -> Context:
    return Context(of.stages(Budget(epochs=2.0, steps_per_epoch=4))[0], epoch=0, step=3, seed=0)


@pytest.mark.parametrize("reads", ["step", "path"])
def test_f_reads_spoken_steps_as_gold_ones(reads: str) -> None:
    """The gold steps, as if they were spoken, are encoded to the same R."""
    model = method(encoder_reads=reads, steps=4)
    batch = model.collate(examples(), context(model))
    ids, written, _ = model._collate_targets(examples())
    spoken = ids[:, 1:].masked_fill(~written[:, 1:], EOS)
    with torch.no_grad():
        expected, _ = model.encode_r(batch.tensors)
        found, _ = model.encode_r(model.encoder_inputs(batch, spoken))
    torch.testing.assert_close(found, expected)


def test_steps_are_spoken_and_learned_as_by_marcos() -> None:
    model = method()
    generator = torch.Generator().manual_seed(1)
    shallow = torch.randn(9, model.options.shallow, 32, generator=generator)
    with torch.no_grad():
        spoken = model.speak_greedily(shallow, torch.zeros(9, 1, dtype=torch.bool))
        start = torch.tensor(speaking_start(model.vocabulary)).expand(9, 1)
        words = model.speaking.get_input_embeddings()(start)
        prefix = prefill(model.speaking.base_model, torch.cat([shallow, words], dim=1), None)
        decoding = Decoding(max_new_tokens=model.options.max_step_tokens)
        expected, _ = decode(model.speaking, prefix, decoding, torch.zeros(9, dtype=torch.long), EOS)
    assert spoken[:, : expected.shape[1]].tolist() == expected.tolist()

    steps = [[5, 6, EOS, EOS], [7, EOS, EOS, EOS], [EOS] * 4, [5, 6, 7, 8]]
    with torch.no_grad():
        loss = model.own_loss(shallow[:4], torch.tensor(steps))
        logits = model.speaking.get_output_embeddings()(
            model.speak(shallow[:4], torch.cat([start[:4], torch.tensor(steps)[:, :-1]], dim=1))
        ).log_softmax(-1)
    parts = [
        (0, 0, 5),
        (0, 1, 6),
        (0, 2, EOS),
        (1, 0, 7),
        (1, 1, EOS),
        *((3, i, token) for i, token in enumerate(steps[3])),
    ]
    assert loss.item() == pytest.approx(-sum(logits[row, place, token].item() for row, place, token in parts), rel=1e-5)


def test_first_draws_are_kept_and_no_gold_text_is_used() -> None:
    """Other gold steps, as many for the same questions, change neither the draws nor what is learned from them."""
    model = method()
    other = [Example(one.id, one.question, [[50, 51]] * len(one.steps), [52]) for one in examples()]
    results = []
    with torch.no_grad():
        for rows in (examples(), other):
            batch = model.collate(rows, context(model))
            h_in = model.understand(batch["question"])
            results.append(model.answer_own_draws(h_in, batch, context(model)))
    for one, another in zip(*results, strict=True):
        torch.testing.assert_close(one, another)
    drawn, spoken = results[0]
    lacking = [row for row, one in enumerate(examples()) if len(one.steps) < 2]  # three steps, the answer the last
    assert lacking and (spoken[len(other) :][lacking] == EOS).all(), "steps that solutions lack stay empty"
    assert drawn.std() > 0.5 and spoken.shape == (3 * len(other), model.options.max_step_tokens)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"randomness": False}, "in two phases"),
        ({"joint_kl": 0.5}, "in two phases"),
        ({"speaking": "one_shot"}, "token by token"),
        ({"warm_start": "cot_sft"}, "starts from a trained MarCos"),
    ],
)
def test_what_does_not_fit_is_refused(options: Fields, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        get_method("marcos_own_draws").Options.model_validate(options)


def test_a_start_of_other_sizes_is_refused() -> None:
    with pytest.raises(InputError, match="the options of the row that it starts from"):
        method().warm_start(method(shallow=2).state_dict())


def test_f_and_g_stay_in_the_phase() -> None:
    stage, fit = method().stages(Budget(epochs=2.0, steps_per_epoch=4))
    names = [name for name, _ in make("marcos_own_draws").named_parameters()]
    assert not [name for name in names if stage.trains(name) and name.startswith(("posterior", "prior"))]
    assert [name for name in names if fit.trains(name)] == [name for name in names if name.startswith("prior")]
