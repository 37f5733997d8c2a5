"""A study that is small enough to train in a test: a two-layer model of width 32 on a few hundred embedded examples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import Ranks
from benchmarks.studies.study import Study, parse_study
from benchmarks.training import loop
from methods.registry import get_method

# A study of one run that nothing is missing in, as its file would have it
MINIMAL: dict[str, Any] = {
    "name": "minimal",
    "title": "Minimal",
    "tokenizer": {"trained": 512},
    "blocks": [{"id": "equation", "title": "Equation", "data": {"train": "embedded"}}],
    "rows": [{"id": "cot", "method": "cot_sft"}],
    "training": {"epochs": 1},
    "evaluation": {"tests": ["embedded_in_domain"]},
}
TWO_BLOCKS = [{**MINIMAL["blocks"][0], "id": id} for id in ("equation", "other")]

MARCOS = dict(get_method("marcos").tested_options)

# Rows of most methods; tests compare their plans with counted numbers
PLANNED: list[dict[str, Any]] = [
    {"id": "cot_sft", "method": "cot_sft"},
    {"id": "icot_si", "method": "icot_si"},
    {"id": "coconut", "method": "coconut"},
    # A larger factor would be drawn at random, and tests count only a few draws
    {"id": "colar", "method": "colar", "options": {"max_compression": 1}},
    {"id": "codi", "method": "codi"},
    {"id": "marcos", "method": "marcos", "options": MARCOS},
]


def small_study(rows: list[dict[str, Any]], **changes: Any) -> Study:
    """Return a one-block study with the given rows. ``changes`` replace top-level keys; `training` is merged."""
    content: dict[str, Any] = {
        "name": "small",
        "title": "Small",
        "backbone": {
            "name": "qwen2-tiny",
            "overrides": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        },
        "tokenizer": {"trained": 400},
        "blocks": [
            {"id": "equation", "title": "Equation", "data": {"train": "embedded", "validation": 32, "limit": 320}}
        ],
        "rows": rows,
        "evaluation": {"tests": ["embedded_in_domain", "embedded_multistep"], "max_new_tokens": 24},
        "timing": {"repeats": 2, "questions": 64, "train_steps": 3},
        "timing_threads": 1,
    }
    training = {"epochs": 2, "batch_size": 32, "learning_rate": 1e-3, "checkpoint_seconds": 0, "validations": 2}
    content["training"] = training | changes.pop("training", {})
    return parse_study(content | changes, "the test's study")


def fresh(prepared: Path, folder: Path) -> Path:
    """Make a results folder without runs that shares the small study's prepared data."""
    (folder / "small").mkdir(parents=True)
    (folder / "small" / "data").symlink_to(prepared / "small" / "data")
    return folder


class Stopped(RuntimeError):
    """Stops a process in the middle of its work."""


@contextmanager
def stopped_after(count: int) -> Iterator[None]:
    """Stop the training in this block in the step after so many, and expect that it is."""
    taken, step = 0, loop.optimizer_step

    def stops(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > count:
            raise Stopped
        return step(*arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(loop, "optimizer_step", stops)
        yield


class OneOf(Ranks):
    """One of several ranks, for which the engine deals out micro-batches."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
