"""One optimizer step: what it sums, and how often it waits for the device."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.data import open_corpus
from benchmarks.engine import Engine, PlaceInPhase, Ranks, build_engine
from benchmarks.models import build_method
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from benchmarks.training.batches import PrefetchingLoader, StageLoader, batches_of
from benchmarks.training.loop import Sums, optimizer_step, validation_sums
from methods.base import Budget, Context, Output
from methods.errors import InputError
from small import OneOf, small_study
from tiny import context, examples, make

LOSS = torch.zeros((), requires_grad=True)


class _Reads(TorchDispatchMode):
    """Counts the values that are read from tensors, each of which waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def stage(results: Path) -> tuple[Engine, StageLoader]:
    """Return the engine and data of MarCos's first stage."""
    options = {"deep": 2, "shallow": 3, "tau": 1, "sparsity": {"target": 1.0}}
    study = small_study([{"id": "marcos", "method": "marcos", "options": options}])
    (spec,) = study.runs.values()
    paths = Paths(results, spec)
    method = build_method(spec, paths.data)
    first = method.stages(Budget(1.0, 10))[0]
    engine = build_engine(method, first, spec.training, spec.engine, PlaceInPhase(0, 1), Ranks())
    return engine, StageLoader(method, open_corpus(paths.data, "train"), first, 0)


@pytest.mark.parametrize(
    ("name", "loss", "selected", "said"),
    [
        (
            "reconstructoin",
            LOSS,
            "reconstruction",
            r"`forward` gives a loss 'reconstructoin', .* it has \['kl', 'recon",
        ),
        ("reconstruction", LOSS.expand(8), "reconstruction", r"`forward` gives 'reconstruction' of shape \(8,\): retu"),
        ("reconstruction", 1.5, "reconstruction", "`forward` gives 'reconstruction' of type float: return its sum"),
        ("reconstruction", LOSS, "lk", r"stage 'phase 1' selects on 'lk', which is no loss; `forward` gives \['recon"),
        ("step", LOSS, "reconstruction", "`forward` gives a loss 'step', which is a field of the log: give it anoth"),
        ("grad_norm", LOSS, "reconstruction", "`forward` gives a loss 'grad_norm', which is a field of the log"),
        # a denominator that no loss goes with, as of the other phase
        ("reconstruction", LOSS, "kl", r"stage 'phase 1' selects on 'kl', which is no loss; `forward` gives \['recon"),
    ],
)
def test_losses_that_do_not_go_with_the_batch_or_the_stage_are_named(
    name: str,
    loss: Any,
    selected: str,
    said: str,
    stage: tuple[Engine, StageLoader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, data = stage
    monkeypatch.setattr(engine, "forward", lambda *_: Output({name: loss}))
    context = replace(data.context(0, 0), stage=replace(data.stage, select_on=(selected,)))
    with pytest.raises(InputError, match=f"marcos: {said}"):
        optimizer_step(PrefetchingLoader(engine, data, [(np.arange(8), context)]), 0)


def test_a_micro_batch_reads_no_number_off_the_device(stage: tuple[Engine, StageLoader]) -> None:
    """This covers the passes of the method and its transformers, and the sum of its loss terms."""
    (engine, data), sums = stage, Sums()
    context = data.context(0, 0)
    batch = data.batch(np.arange(8), context)
    with _Reads() as reads:
        output = engine.forward(batch, context)
        engine.backward(torch.stack([*output.losses.values()]).sum(), last=True)
        sums.add_output(output)
        engine.step(0)
    assert reads.count == 0
    sums.fetch()
    assert sums.losses["reconstruction"] == output.losses["reconstruction"].item()


def test_the_next_batch_is_collated_before_the_device_is_waited_for(
    stage: tuple[Engine, StageLoader], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, data = stage
    order: list[str] = []
    for owner, name in ((data.method, "collate"), (engine, "step"), (Sums, "fetch")):
        plain = getattr(owner, name)

        def noted(*arguments: Any, plain: Any = plain, name: str = name) -> Any:
            order.append(name)
            return plain(*arguments)

        monkeypatch.setattr(owner, name, noted)
    steps = PrefetchingLoader(
        engine, data, [(np.arange(4) + 4 * number, data.context(0, number)) for number in range(2)]
    )
    sums = [optimizer_step(steps, number) for number in range(2)]
    assert order == ["collate", "step", "collate", "fetch", "step", "fetch"]
    assert [each.examples for each in sums] == [4, 4] and sums[0].tokens != sums[1].tokens
    with pytest.raises(StopIteration):
        next(steps)


def test_steps_go_on_from_any_place_of_any_epoch(stage: tuple[Engine, StageLoader]) -> None:
    _, data = stage
    training = TrainingSpec(epochs=2, batch_size=100)
    per_epoch = -(-len(data.corpus) // 100)
    whole = list(batches_of(data, training, per_epoch, range(2 * per_epoch)))
    assert sorted(np.concatenate([rows for rows, _ in whole[:per_epoch]])) == list(range(len(data.corpus)))
    assert [(at.epoch, at.step) for _, at in whole] == [(i // per_epoch, i) for i in range(len(whole))]
    rest = list(batches_of(data, training, per_epoch, range(per_epoch - 1, 2 * per_epoch)))
    for (rows, at), (wanted, place) in zip(rest, whole[per_epoch - 1 :], strict=True):
        assert np.array_equal(rows, wanted) and at == place


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 900), (4, 256), (3, 700)])
def test_all_ranks_make_as_many_passes_and_none_waits(ranks: int, tokens: int) -> None:
    """This holds for batches of any length. Together, the ranks have each row once."""
    method = make("cot_sft")
    (stage,) = method.stages(Budget(1.0, 1, (9,)))
    training, spec = TrainingSpec(epochs=1), EngineSpec(micro_tokens=tokens)
    for batch, longest in itertools.product((32, 31, 5), (9, 40, 100)):
        engines = [
            build_engine(method, stage, training, spec, PlaceInPhase(0, 1), OneOf(r, ranks)) for r in range(ranks)
        ]
        shares = [engine.shard(engine.split_microbatches(np.arange(batch), longest)) for engine in engines]
        assert len({len(share) for share in shares}) == 1
        counted = [rows for share in shares for rows, counts in share if counts]
        assert sorted(np.concatenate(counted)) == list(range(batch))
        assert all(len(rows) * longest <= tokens for rows in counted)
        assert batch == 5 or all(counts for share in shares for _, counts in share)


@pytest.mark.parametrize(("batch", "micro", "mixed"), [(2, None, False), (6, None, False), (6, 2, True)])
def test_ranks_validate_one_batch_at_a_time_where_statistics_are_over_all(
    batch: int, micro: int | None, mixed: bool, stage: tuple[Engine, StageLoader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a statistic would cover two batches. Micro-batches have their own and leave fewer ranks idle."""
    engine, data = stage
    engine.spec = engine.spec.model_copy(update={"micro_batch": micro})
    monkeypatch.setattr(data, "batch", lambda rows, context: rows)
    monkeypatch.setattr(Sums, "add_denominators", lambda *_: None)
    order = np.argsort(data.corpus.lengths, kind="stable")
    batch_of = {row: place // batch for place, row in enumerate(order)}
    passes: list[list[set[int]]] = []
    for rank in range(4):
        engine.ranks, seen = OneOf(rank, 4), list[set[int]]()

        def forward(rows: np.ndarray, context: Context, counts: bool, seen: list[set[int]] = seen) -> Output:
            seen.append({batch_of[row] for row in rows})
            return Output({})

        monkeypatch.setattr(engine, "forward", forward)
        validation_sums(engine, data, data.context(0, 0, training=False), batch)
        passes.append(seen)
    together = [set.union(*ranks) for ranks in zip(*passes, strict=True)]
    assert set.union(*together) == set(batch_of.values())
    assert any(len(batches) > 1 for batches in together) is mixed


def test_weight_decay_may_leave_out_what_is_no_matrix() -> None:
    """One step of each: what decays is where it would be if all decayed, and the rest where it would be if nothing did.
    CODI's projection has biases, and a norm whose gain sets the size of its latents."""
    ends = []
    for decays, weight_decay in (("all", 0.0), ("all", 0.5), ("matrices", 0.5)):
        method = make("codi")
        stage = method.stages(Budget(2.0, 4))[0]
        content = {"epochs": 1, "learning_rate": 0.1, "weight_decay": weight_decay, "decays": decays}
        training = TrainingSpec.model_validate(content)
        engine = build_engine(method, stage, training, EngineSpec(), PlaceInPhase(0, 1), Ranks())
        output = engine.forward(method.collate(examples(), context()), context())
        engine.backward(torch.stack(list(output.losses.values())).sum(), last=True)
        engine.step(0)
        ends.append({name: weight.detach().clone() for name, weight in engine.trainable.items()})
    nothing, everything, matrices = ends
    for name, weight in matrices.items():
        assert torch.equal(weight, (nothing if weight.ndim < 2 else everything)[name]), name
    assert not torch.equal(nothing["project.3.weight"], everything["project.3.weight"])
