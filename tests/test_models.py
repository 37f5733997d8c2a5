"""Methods built from a published checkpoint, and from what a run has exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from benchmarks import checkpoints
from benchmarks.engine.adapters import whole_weights
from benchmarks.models import build_method, exported_method
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.loop import Trainer, train
from methods.backbone import load_backbone
from methods.base import Setup, Vocabulary
from methods.registry import build
from small import small_study


class Fills(TorchFunctionMode):
    """Notes what is filled with random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= {function.__name__} & {"normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_"}
        return function(*args, **(kwargs or {}))


def test_initial_weights_are_drawn_for_training(vocabulary: Vocabulary) -> None:
    with Fills() as fills:
        build("cot_sft", {}, Setup(load_backbone("qwen2-tiny", vocabulary.size), vocabulary), seed=0)
    assert fills.seen


def save_checkpoint(folder: Path, seed: int = 0) -> None:
    torch.manual_seed(seed)
    load_backbone("qwen2-tiny", 512).causal_lm().save_pretrained(folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture
def run(checkpoint: Path, results: Path) -> tuple[RunSpec, Path]:
    """Return a run that starts from the checkpoint, and a results folder with its data."""
    # CODI adds rows to its token table
    study = small_study([{"id": "codi", "method": "codi"}], backbone={"pretrained": str(checkpoint)})
    return study.runs["equation/codi/s0"], results


def test_a_published_checkpoint_is_built_in_training_mode(run: tuple[RunSpec, Path]) -> None:
    """It is loaded in evaluation mode, in which transformers would keep all activations, whatever the engine asks."""
    spec, results = run
    method = build_method(spec, Paths(results, spec).data)
    assert all(module.training for module in method.modules())


def test_another_checkpoint_under_the_same_name_is_noticed(checkpoint: Path, run: tuple[RunSpec, Path]) -> None:
    keys = []
    for seed in (0, 0, 1):
        save_checkpoint(checkpoint, seed)
        keys.append(Trainer(*run).key)
    assert keys[0] == keys[1] != keys[2]


def test_what_was_trained_from_a_checkpoint_needs_it_no_more(checkpoint: Path, run: tuple[RunSpec, Path]) -> None:
    spec, results = run
    digest = train(spec, results)["weights_sha256"]
    shutil.rmtree(checkpoint)
    moved = Paths(results, spec).model.rename(results / "moved")
    with Fills() as fills:
        method = exported_method(moved)
    assert not fills.seen, "what the file's weights replace is drawn first"
    assert checkpoints.digest(dict(whole_weights(method))) == digest and not method.training
