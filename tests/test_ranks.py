"""Ranks, accumulation and the way that weights are split change neither losses nor weights."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from benchmarks.engine import Ranks
from benchmarks.launch import free_port
from benchmarks.specs import EngineSpec
from conftest import ROOT
from methods.registry import get_method
from rank_cases import Case, cases, numbers


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The numbers of all cases, computed by two ranks in one process group."""
    folder = tmp_path_factory.mktemp("group")
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    place["PATH"] = str(Path(sys.executable).parent)  # without a compiler
    ranks = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests/rank_cases.py"), str(folder)],
            env={**os.environ, **place, "PYTHONPATH": path, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=(folder / f"rank-{rank}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        codes = [rank.wait(timeout=600) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], (folder / "rank-0.log").read_text()[-3000:] + (folder / "rank-1.log").read_text()[-3000:]
    return folder


@functools.cache
def alone(method: str, micro: int | None, folder: Path) -> dict[str, Tensor]:
    """The numbers of one process."""
    return numbers(method, EngineSpec(micro_batch=micro), Ranks(), folder)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_two_ranks_train_as_one_process(case: Case, group: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    # a term that is a statistic of its micro-batch is the same at the same micro-batch
    micro = case.micro if get_method(case.method).batch_terms else None
    expected = alone(case.method, micro, tmp_path_factory.getbasetemp())
    found = load_file(group / f"{case.name}.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if "weight" in name:  # AdamW makes a part of a whole step of the rounding of a gradient near zero
            assert_close(found[name], value, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}")
        elif "state" in name:
            assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
