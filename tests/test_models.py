"""Methods built from a published checkpoint, and from what a run has exported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from benchmarks import checkpoints
from benchmarks.data import prepare
from benchmarks.engine.process import whole_weights
from benchmarks.models import build_method, exported_method
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.loop import Trainer
from benchmarks.training.stage import train
from methods.backbone import load_backbone
from small import small_study


def save_checkpoint(folder: Path, seed: int = 0) -> None:
    torch.manual_seed(seed)
    load_backbone("qwen2-tiny", 512).causal_lm().save_pretrained(folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture
def run(checkpoint: Path, tmp_path: Path) -> tuple[RunSpec, Path]:
    """Return a run that starts from the checkpoint, and a results folder with its data."""
    # CODI adds rows to its token table
    study = small_study([{"id": "codi", "method": "codi"}], backbone={"pretrained": str(checkpoint)})
    prepare(study, study.blocks[0], tmp_path / "results")
    return study.runs["equation/codi/s0"], tmp_path / "results"


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
    method = exported_method(moved)
    assert checkpoints.digest(dict(whole_weights(method))) == digest and not method.training
