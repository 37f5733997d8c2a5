"""Ranks, gradient accumulation and sharding change neither losses nor weights."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from benchmarks.engine import Ranks
from benchmarks.processes.launch import free_port
from benchmarks.studies.specs import EngineSpec
from conftest import ROOT, needs_deepspeed
from methods.registry import get_method
from rank_cases import Case, Precision, cases, numbers

pytestmark = needs_deepspeed


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compute the numbers of all cases that are selected on two ranks in one process group."""
    folder = tmp_path_factory.mktemp("group")
    own = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    chosen = [str(item.callspec.id) for item in own if hasattr(item, "callspec")]
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    place["PATH"] = str(Path(sys.executable).parent)  # without a compiler
    ranks = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests/rank_cases.py"), str(folder), *chosen],
            env={
                **os.environ,
                **place,
                "PYTHONPATH": path,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
            },  # as if each saw its own GPU alone
            stdout=(folder / f"rank-{rank}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        codes = [rank.wait(timeout=1800) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], (folder / "rank-0.log").read_text(encoding="utf-8")[-3000:] + (
        folder / "rank-1.log"
    ).read_text(encoding="utf-8")[-3000:]
    return folder


@functools.cache
def alone(case: Case, folder: Path) -> dict[str, Tensor]:
    """Return the numbers of a single process."""
    return numbers(case, EngineSpec(micro_batch=case.micro, precision=case.precision), Ranks(), folder)


def of_precision(precision: Precision) -> Any:
    chosen = [case for case in cases() if case.precision == precision]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


@of_precision("float32")
def test_two_ranks_train_as_one_process(case: Case, group: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    # What is a statistic of a part, or drawn for it, is equal only if the parts are equal, or if batches are not cut
    micro = case.micro if get_method(case.method).batch_terms or case.dropout else None
    one = replace(case, zero_stage=0, micro=micro, offload="none", split=False)
    expected = alone(one, tmp_path_factory.getbasetemp())
    found = load_file(group / f"{case.name}.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if "weight" in name:  # AdamW turns the rounding error of a gradient near zero into part of a whole step
            assert_close(found[name], value, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}")
        elif "state" in name:
            assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@of_precision("bfloat16")
def test_two_ranks_train_as_one_process_in_bfloat16(
    case: Case, group: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The first step rounds like one process in bfloat16, and not like float32.

    Later steps start from weights whose last digits differ, which bfloat16 amplifies: they end near one process in
    float32, and nearer to one in bfloat16.
    """
    folder, found = tmp_path_factory.getbasetemp(), load_file(group / f"{case.name}.safetensors")
    one = replace(case, zero_stage=0)
    expected, other = alone(one, folder), alone(replace(one, micro=None, precision="float32"), folder)
    assert found.keys() == expected.keys()
    first = next(iter(expected)).partition(":")[0]
    for name, value in expected.items():
        if name.startswith(first) and name.endswith("at step 0"):
            assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        elif "validation" in name:
            assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    norm = f"{first}: gradient norm at step 0"
    assert abs(other[norm] / expected[norm] - 1) > 1e-4, "else nothing tells the two apart"
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        assert distance(found, expected, kind) < min(0.01, distance(found, other, kind)), kind


def distance(found: dict[str, Tensor], expected: dict[str, Tensor], kind: str) -> float:
    """Return the distance between all numbers of a kind, relative to the norm of the expected ones."""
    names = [name for name in expected if re.search(rf"\b{kind}\b", name)]
    own, theirs = (torch.cat([numbers[name].flatten() for name in names]) for numbers in (found, expected))
    return float((own - theirs).norm() / theirs.norm())


def test_what_deepspeed_calls_is_no_news(group: Path) -> None:
    """A user cannot fix DeepSpeed's deprecated calls, and every engine would warn of them again."""
    assert "FutureWarning" not in (group / "rank-0.log").read_text(encoding="utf-8")


def test_a_loss_that_is_no_number_on_one_rank_stops_all_with_its_place(group: Path) -> None:
    said = [(group / f"said-{rank}.txt").read_text(encoding="utf-8") for rank in range(2)]
    assert said[0] == said[1]
    assert said[0].startswith("step 5 (chain): cross_entropy is not finite; loss terms {'cross_entropy': nan}")
    assert all(f"'row-{i}'" in said[0] for i in range(6)) and "'row-6'" not in said[0]
