"""Latents set by hand: methods with such latents obey, and all others refuse."""

from __future__ import annotations

import pytest
import torch

from benchmarks.evaluation.inference import generate
from conforming import make, questions
from methods.base import Method
from methods.errors import InputError
from methods.generation import Decoding, Generation, Intervention
from methods.registry import available

STEERED = [
    name for name, cls in available().items() if cls.steerable_latents(cls.Options.model_validate(cls.tested_options))
]


def said(method: Method, *interventions: Intervention, count: int | None = None) -> Generation:
    decoding = Decoding(trace=True, max_new_tokens=6, answer_only=False, interventions=interventions)
    return generate(method.eval(), questions()[:count], decoding, "float32")


@pytest.mark.parametrize("name", available())
def test_set_or_refused(name: str) -> None:
    method = make(name)
    one = Intervention((1, 3), 5.0)
    if (latents := method.steerable_latents(method.options)) is None:
        with pytest.raises(InputError, match="has no latents that can be set by hand"):
            said(method, one)
        return
    trace = said(method, one).trace[latents]
    assert trace.ndim == 3 and (trace[:, :, [1, 3]] == 5).all() and not (trace[:, :, 2] == 5).any()


@pytest.mark.parametrize("name", STEERED)
def test_a_step_is_set_and_those_before_it_stay(name: str) -> None:
    method = make(name)
    latents = str(method.steerable_latents(method.options))
    plain, steered = said(method), said(method, Intervention((0,), 40.0, step=2))
    assert (steered.trace[latents][:, 1, 0] == 40).all() and not (steered.trace[latents][:, [0, 2], 0] == 40).any()
    torch.testing.assert_close(plain.trace[latents][:, 0], steered.trace[latents][:, 0])
    torch.testing.assert_close(plain.trace["thoughts"][:, 0], steered.trace["thoughts"][:, 0])
    assert (plain.trace["thoughts"][:, 1] - steered.trace["thoughts"][:, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", STEERED)
def test_a_later_intervention_wins_and_draws_stay(name: str) -> None:
    method = make(name)
    latents = str(method.steerable_latents(method.options))
    trace = said(method, Intervention((0, 1), 2.0), Intervention((1,), 3.0)).trace[latents]
    assert (trace[:, :, 0] == 2).all() and (trace[:, :, 1] == 3).all()
    torch.testing.assert_close(trace[:, 0, 2:], said(method).trace[latents][:, 0, 2:])
    alone = said(method, Intervention((0, 1), 2.0), Intervention((1,), 3.0), count=1).trace[latents]
    torch.testing.assert_close(alone, trace[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEERED)
@pytest.mark.parametrize(
    ("one", "message"),
    [
        (Intervention((0, 4000), 1.0), r"no dimensions \[4000\]"),
        (Intervention((0,), 1.0, step=9), "there is no step 9"),
    ],
)
def test_what_is_not_there_is_refused(name: str, one: Intervention, message: str) -> None:
    with pytest.raises(InputError, match=message):
        said(make(name), one)


def test_options_can_take_the_latents_away() -> None:
    cls = available()["marcos"]
    assert cls.steerable_latents(cls.Options.model_validate({"randomness": False})) is None
