"""Curricula that do not spend their budget are refused before they train."""

from __future__ import annotations

import json

import pytest

from benchmarks.budgets import curriculum
from benchmarks.studies.study import load_study, shipped
from methods.base import Budget, Stage
from methods.errors import InputError
from tiny import make

SELECTED = ("cross_entropy",)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([Stage("all", 4.0, select_on=SELECTED)], r"spends more than its budget of 2 epochs \(all: 4\)"),
        (
            [Stage("a", 4.0), Stage("b", -2.0, select_on=SELECTED)],
            "returns a: 4, b: -2: every stage needs some",
        ),
        ([], "returns none: every stage needs"),
        (
            [Stage("a", 1.0, trainable=("lm.lm_head",)), Stage("b", 1.0, keep_optimizer=True, select_on=SELECTED)],
            "stage 'b' keeps the optimizer of 'a', which trains less: leave out `keep_optimizer`",
        ),
        (
            [Stage("a", 2.0, select_on="kl")],  # pyright: ignore[reportArgumentType]
            r"stage 'a' has `select_on='kl'`: write the tuple \('kl',\)",
        ),
        ([Stage("a", 2.0)], "its last stage, 'a', names no loss in `select_on`"),
    ],
)
def test_a_curriculum_that_would_be_no_fair_one_is_refused(
    stages: list[Stage], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make("cot_sft")
    monkeypatch.setattr(method, "stages", lambda budget: stages)
    with pytest.raises(InputError, match=f"^cot_sft: .*{said}"):
        curriculum(method, Budget(epochs=2.0, steps_per_epoch=10))


def test_a_curriculum_that_leaves_a_part_of_its_budget_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """MarCos has two phases by default, and without R only the first."""
    budget = Budget(epochs=2.0, steps_per_epoch=10)
    curriculum(make("marcos", {"randomness": False, "first_phase": 1.0}), budget)
    assert not caplog.text
    curriculum(make("marcos", {"randomness": False}), budget)
    assert "marcos spends phase 1: 1 of its 2 epochs" in caplog.text


def test_all_runs_of_the_shipped_studies_keep_to_their_budgets() -> None:
    runs = [run for name in shipped() for run in load_study(name).runs.values()]
    for run in {json.dumps([run.method, run.options]): run for run in runs}.values():
        small = {"deep": 1, "shallow": 1, "tau": 1} if run.method == "marcos" else {}
        assert curriculum(make(run.method, run.options | small), Budget(20.0, 1506, chain_lengths=(30,) * 20)), run.id
