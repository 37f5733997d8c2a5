"""Curricula that do not spend their budget are refused before they train."""

from __future__ import annotations

import pytest

from benchmarks.training.budgets import curriculum
from methods.base import Budget, Stage
from methods.errors import InputError
from tiny import make

SELECTED = ("cross_entropy",)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([Stage("all", 4.0, select_on=SELECTED)], r"\(all 4\) must be positive, and 2 in all"),
        (
            [Stage("a", 4.0), Stage("b", -2.0, select_on=SELECTED)],
            r"\(a 4, b -2\) must be positive, and 2 in all",
        ),
        ([], r"`stages` \(\) must be positive, and 2 in all"),
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
