"""One optimizer step: what it sums, and how often it waits for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.data import open_corpus, prepare
from benchmarks.engine import Phase, Ranks, build_engine
from benchmarks.models import build_method
from benchmarks.paths import Paths
from benchmarks.steps import StageData, Sums
from methods.base import Budget, Output
from small import small_study


class _Reads(TorchDispatchMode):
    """Counts the single numbers that are read off tensors: each waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_sums_are_those_of_the_numbers() -> None:
    sums, generator = Sums(), torch.Generator().manual_seed(0)
    values = [torch.rand((), generator=generator) for _ in range(20)]
    for number, value in enumerate(values):
        sums.add(Output({"loss": value}, {"count": torch.tensor(number)}), counts=number != 7)
    sums.fetch()
    assert sums.losses["loss"] == sum(float(value) for number, value in enumerate(values) if number != 7)
    assert sums.statistics["count"] == sum(range(20)) - 7
    sums.fetch()
    assert sums.statistics["count"] == sum(range(20)) - 7


def test_a_micro_batch_reads_no_number_off_the_device(tmp_path: Path) -> None:
    """Neither in the method's passes nor when its terms are summed. Transformers itself reads one for each trunk that
    it makes a mask for (are sequences packed?): here three."""
    options = {"deep": 2, "shallow": 3, "tau": 1, "sparsity": {"target": 1.0}}
    study = small_study([{"id": "marcos", "method": "marcos", "options": options}])
    (spec,) = study.runs.values()
    prepare(study, study.blocks[0], tmp_path)
    paths, sums = Paths(tmp_path, spec), Sums()
    method = build_method(spec, paths.data)
    stage = method.stages(Budget(1.0, 10))[0]
    engine = build_engine(method, stage, spec.training, spec.engine, Phase(0, 1), Ranks())
    data = StageData(method, open_corpus(paths.data, "train"), stage, 0, None)
    context = data.context(0, 0)
    batch = data.batch(np.arange(8), context)
    with _Reads() as reads:
        output = engine.forward(batch, context)
        engine.backward(torch.stack([*output.losses.values()]).sum(), last=True)
        sums.add(output)
    assert reads.count == 3
    sums.fetch()
    assert sums.losses["reconstruction"] == output.losses["reconstruction"].item()
