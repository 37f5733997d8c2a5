"""Training is a function of its specification: repeated or accumulated, it ends with the same weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks import checkpoints
from benchmarks.data import Corpus
from benchmarks.engine import Engine, PlaceInPhase, Ranks, autocast, build_engine
from benchmarks.engine.adapters import whole_weights
from benchmarks.plan.lengths import total_length
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study
from benchmarks.timing import task as timing
from benchmarks.training import batches
from benchmarks.training import loop as training
from benchmarks.training.batches import FeatureStore, StageLoader
from benchmarks.training.loop import train
from inflict import logged
from methods.base import Batch, Context, Example, Stage
from methods.cot_sft import CoTSFT
from methods.errors import InputError
from methods.marcos import MarCos
from small import MARCOS, fresh, small_study

ROWS = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos", "options": MARCOS}]


def final_weights(spec: RunSpec, results: Path) -> dict[str, torch.Tensor]:
    return load_file(Paths(results, spec).weights)


def run_of(study: Study, row: str) -> RunSpec:
    return study.runs[f"equation/{row}/s0"]


@pytest.fixture(scope="module", params=["cot_sft", "marcos"])
def trained(request: pytest.FixtureRequest, small_data: Path, tmp_path_factory: pytest.TempPathFactory):
    """Return a run that was trained without interruptions."""
    spec = run_of(small_study(ROWS), request.param)
    results = fresh(small_data, tmp_path_factory.mktemp("trained"))
    return spec, results, train(spec, results)


def test_record_and_log_agree(trained) -> None:
    spec, results, record = trained
    lines = logged(spec, results)
    assert record["steps"] == 20 == sum(stage["steps"] for stage in record["stages"])
    assert record["examples"] == 2 * 320
    assert [line["step"] for line in lines if line["kind"] == "step"] == [10, 20]
    assert record["weights_sha256"] == checkpoints.digest(final_weights(spec, results))
    assert not list(Paths(results, spec).checkpoints.glob("step-*"))


def test_training_twice_is_bit_identical_and_a_done_run_is_left_alone(
    trained, small_data: Path, tmp_path: Path
) -> None:
    spec, results, record = trained
    again = train(spec, fresh(small_data, tmp_path / "again"))
    assert again["weights_sha256"] == record["weights_sha256"]
    assert train(spec, results) == record


def stepper(spec: RunSpec, results: Path):
    trainer = training.Trainer(spec, results)
    stage = trainer.stages[0]
    engine = build_engine(trainer.method, stage, trainer.training, spec.engine, PlaceInPhase(0, 10), Ranks())
    return trainer, engine, batches.StageLoader(trainer.method, trainer.training_rows, stage, spec.seed)


def test_weights_that_a_method_freezes_when_it_is_built_are_named(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be trained: each stage says what it trains."""
    build = training.build_method
    monkeypatch.setattr(training, "build_method", lambda *args: build(*args).requires_grad_(False))
    with pytest.raises(InputError, match=r"cot_sft: '.*' does not require a gradient when the method is .*`traina"):
        training.Trainer(run_of(small_study(ROWS), "cot_sft"), results)


@pytest.mark.parametrize("row", ["cot_sft", "marcos"])
def test_accumulation_changes_nothing(row: str, small_data: Path) -> None:
    terms, weights = [], []
    for settings in ({}, {"micro_batch": 5}, {"micro_tokens": 400}):
        spec = run_of(small_study(ROWS, engine=settings), row)
        trainer, engine, data = stepper(spec, small_data)
        parts = engine.split_microbatches(np.arange(32), data.longest(np.arange(32)))
        assert [*settings.values()] == [] or 1 < len(parts) < 32
        left = batches.PrefetchingLoader(
            engine, data, ((np.arange(32) + 32 * step, data.context(0, step)) for step in range(3))
        )
        sums = [training.optimizer_step(left, step) for step in range(3)]
        terms.append(torch.tensor(list(sums[-1].terms().values())))
        weights.append(dict(whole_weights(trainer.method)))
    for other in (1, 2):
        torch.testing.assert_close(terms[0], terms[other], rtol=1e-5, atol=1e-6)
        for name, tensor in weights[0].items():
            torch.testing.assert_close(tensor, weights[other][name], rtol=1e-3, atol=1e-5)


def test_no_pass_has_more_tokens_than_asked(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of short examples stay whole and those of long ones are split, in training and in validation."""
    seen: set[tuple[int, int]] = set()
    collate = CoTSFT.collate

    def counted(method: CoTSFT, examples: Sequence[Example], context: Context) -> Batch:
        seen.add((len(examples), max(map(total_length, examples))))
        return collate(method, examples, context)

    monkeypatch.setattr(CoTSFT, "collate", counted)
    train(run_of(small_study(ROWS, engine={"micro_tokens": 1600}), "cot_sft"), results)
    assert max(rows * longest for rows, longest in seen) <= 1600
    assert {rows for rows, _ in seen} >= {32, 16}


def test_cached_stage_equals_the_plain_computation(small_data: Path, tmp_path: Path) -> None:
    """In phase 2 of MarCos, stored features give the same loss and gradient as those computed on the spot."""
    spec = run_of(small_study(ROWS), "marcos")
    trainer, _, data = stepper(spec, small_data)
    second = trainer.stages[1]
    assert second.cached
    trainer.method.requires_grad_(True)  # the first stage's engine froze the predictor
    context = data.context(0, 0)
    store = FeatureStore(tmp_path / "features", "test")
    store.fill(data, np.arange(len(trainer.training_rows)), "float32", 32)
    rows = np.array([5, 300, 17, 2])
    cached = batches.StageLoader(trainer.method, trainer.training_rows, second, 0)
    cached.features = store
    assert cached.longest(rows) == 1 < data.longest(rows)
    gradients, losses = [], []
    fresh_features = trainer.method.features(data.batch(rows, context), context)
    for batch in (store.batch(trainer.method, rows), trainer.method.collate_features(fresh_features)):
        loss = trainer.method(
            batch.to(trainer.method.device),
            cached.context(0, 0),
        )
        loss.losses["kl"].backward()
        losses.append(loss.losses["kl"].detach())
        gradients.append([p.grad for name, p in trainer.method.named_parameters() if name.startswith("prior.")])
        trainer.method.zero_grad(set_to_none=True)
    torch.testing.assert_close(losses[0], losses[1])
    for first, other in zip(*gradients, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-4)


def test_features_are_stored_in_the_precision_that_they_have(small_data: Path, tmp_path: Path) -> None:
    """Half of each float32 made from bfloat16 is zeros, and the features of a corpus take tens of gigabytes."""
    trainer, _, data = stepper(run_of(small_study(ROWS), "marcos"), small_data)
    context, rows = data.context(0, 0), np.arange(12)
    store = FeatureStore(tmp_path / "features", "test")
    store.fill(data, rows, "bfloat16", 12)
    assert store.rows["mu_hat"].dtype == torch.bfloat16
    assert (tmp_path / "features/mu_hat.bfloat16").stat().st_size == 2 * store.rows["mu_hat"].numel()
    ordered = np.argsort(trainer.training_rows.lengths[rows], kind="stable")
    with torch.no_grad(), autocast(trainer.method.device, "bfloat16"):
        features = trainer.method.features(data.batch(rows[ordered], context), context)
    for name, values in store.batch(trainer.method, ordered).tensors.items():
        assert values.dtype == torch.float32 and torch.equal(values, features[name].float())


class Beating(Ranks):
    """One of two ranks of a node, which counts its beats."""

    def __init__(self, local_rank: int) -> None:
        self.local_rank, self.local_world, self.count = local_rank, 2, 0

    def beat(self, where: str) -> None:
        self.count += 1


def test_ranks_with_unequal_numbers_of_batches_come_equally_far(small_data: Path, tmp_path: Path) -> None:
    """Otherwise, a rank with one batch less would be taken for the one that hangs, for the rest of the run."""
    _, _, data = stepper(run_of(small_study(ROWS), "marcos"), small_data)
    ranks = [Beating(0), Beating(1)]
    for each in ranks:  # five batches
        store = FeatureStore(tmp_path / "features", "test", each)
        store.fill(data, np.arange(40), "float32", 8)
    assert ranks[0].count == ranks[1].count == 3


def test_a_validation_loss_that_is_not_finite_stops_the_run(small_data: Path) -> None:
    """No loss would be below it, and records cannot store it."""
    trainer, engine, data = stepper(run_of(small_study(ROWS), "cot_sft"), small_data)
    next(trainer.method.parameters()).data.fill_(float("nan"))
    context = data.context(0, 4, training=False)
    with pytest.raises(
        training.NonFiniteLoss, match=r"step 4 \(chain\): cross_entropy is not finite over the validation"
    ):
        training.validation_sums(engine, data, context, 32)


def test_no_more_rows_at_once_than_a_micro_batch(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This covers training, validation, the computation of features, and the timing of all these."""
    sizes: set[int] = set()
    collate = MarCos.collate

    def counted(method: MarCos, examples: Sequence[Example], context: Context) -> Batch:
        sizes.add(len(examples))
        return collate(method, examples, context)

    monkeypatch.setattr(MarCos, "collate", counted)
    few = {"repeats": 1, "questions": 8, "train_steps": 3}
    spec = run_of(small_study(ROWS, engine={"micro_batch": 8}, training={"epochs": 1}, timing=few), "marcos")
    train(spec, results)
    timing.time_run(spec, results)
    assert max(sizes) == 8


def test_warnings_are_of_all_validation_rows_and_a_stage_has_those_of_its_weights(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single batch in which R shows no activity does not make R dead."""
    monkeypatch.setattr(CoTSFT, "stages", lambda *_: [Stage("first", 1.0, select_on=("cross_entropy",))])
    monkeypatch.setattr(CoTSFT, "metrics", lambda _, statistics: {"alive": statistics.get("alive", 0.0)})
    monkeypatch.setattr(CoTSFT, "warnings", lambda _, observed: [] if observed["alive"] else ["dead"])
    monkeypatch.setattr(CoTSFT, "dead_latents", lambda _, observed: not observed["alive"])
    alive = {5: 1.0, 10: 0.0}  # by step; the first validation has the lowest loss

    def validated(engine: Engine, data: StageLoader, at: Context, rows: int) -> training.Sums:
        return training.Sums({"cross_entropy": float(at.step)}, statistics={"alive": alive[at.step]})

    monkeypatch.setattr(training, "validation_sums", validated)
    spec = run_of(small_study(ROWS, training={"validations": 2}), "cot_sft")
    record = training.Trainer(spec, results).run()
    assert record["stages"][0]["warnings"] == [] and record["warnings"] == ["dead"]
    assert not record["stages"][0]["dead_latents"]
    assert [line["step"] for line in logged(spec, results) if line["kind"] == "warning"] == [10]


def with_losses(monkeypatch: pytest.MonkeyPatch, loss: Callable[[int], float]) -> None:
    """Let the validation of a step have this loss."""

    def validated(engine: Engine, data: StageLoader, at: Context, rows: int) -> training.Sums:
        return training.Sums({"cross_entropy": loss(at.step)})

    monkeypatch.setattr(training, "validation_sums", validated)


def test_every_stage_selects_weights_of_its_own(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier stage's selected weights stay while a checkpoint belongs to it: a killed run has to end it again."""
    selecting = [Stage(name, 0.5, select_on=("cross_entropy",)) for name in ("first", "second")]
    monkeypatch.setattr(CoTSFT, "stages", lambda *_: selecting)
    losses = {3: 1.0, 5: 2.0, 8: 3.0, 10: 4.0}  # by step: the first validation of each stage has the lowest loss
    with_losses(monkeypatch, losses.__getitem__)
    spec = run_of(small_study(ROWS, training={"checkpoint_seconds": 900}), "cot_sft")
    trainer = training.Trainer(spec, results)
    selected = checkpoints.selected_path(trainer.paths.checkpoints, 0, 3)
    first: dict[str, torch.Tensor] = {}
    end_stage = training.Trainer._end_stage

    def compared(trainer: training.Trainer) -> None:
        if trainer.state.stage == 0:
            trainer._checkpoint(None)
            first.update(load_file(selected))
        else:
            assert all(torch.equal(load_file(selected)[name], tensor) for name, tensor in first.items())
        end_stage(trainer)

    monkeypatch.setattr(training.Trainer, "_end_stage", compared)
    trainer.run()
    assert first
    chosen = [(stage["selected_step"], stage["validation"]) for stage in trainer.state.stages]
    assert chosen == [(3, {"cross_entropy": 1.0}), (8, {"cross_entropy": 3.0})]


def test_a_checkpoint_finds_the_weights_that_it_knows_to_be_selected(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that was killed may have selected better weights after the checkpoint, and the next try finds others."""
    losses = {2: 2.0, 4: 1.0, 6: 3.0, 8: 3.0, 10: 3.0}
    with_losses(monkeypatch, losses.__getitem__)
    monkeypatch.setattr(CoTSFT, "stages", lambda *_: [Stage("only", 1.0, select_on=("cross_entropy",))])
    spec = run_of(small_study(ROWS, training={"validations": 5, "epochs": 1}), "cot_sft")
    monkeypatch.setattr(training.Trainer, "_agreed_to_save", lambda trainer: trainer.state.step == 3)
    trainer = training.Trainer(spec, results)
    known = checkpoints.selected_path(trainer.paths.checkpoints, 0, 2)
    with monkeypatch.context() as killed:
        killed.setattr(training.Trainer, "_end_stage", lambda trainer: sys.exit("killed"))
        with pytest.raises(SystemExit, match="killed"):
            trainer.run()
    assert sorted(path.name for path in known.parent.glob("best-*")) == [
        checkpoints.selected_path(known.parent, 0, step).name for step in (2, 4)
    ]
    expected = checkpoints.digest(checkpoints.read_weights(known))
    losses[4] = 2.5
    record = training.Trainer(spec, results).run()
    assert (record["stages"][0]["selected_step"], record["weights_sha256"]) == (2, expected)


def test_a_stage_that_selects_nothing_is_validated_at_its_end(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This distinguishes a curriculum whose last stage goes wrong from one that never went well."""
    stages = [Stage("first", 0.5), Stage("second", 0.5, select_on=("cross_entropy",))]
    monkeypatch.setattr(CoTSFT, "stages", lambda *_: stages)
    with_losses(monkeypatch, float)
    spec = run_of(small_study(ROWS, training={"validations": 2}), "cot_sft")
    record = training.Trainer(spec, results).run()
    chosen = [(stage["selected_step"], stage["validation"]) for stage in record["stages"]]
    assert chosen == [(None, {"cross_entropy": 5.0}), (8, {"cross_entropy": 8.0})]
    lines = [line for line in logged(spec, results) if line["kind"] == "validation"]
    assert [(line["stage"], line["cross_entropy"]) for line in lines] == [
        ("first", 5.0),
        ("second", 8.0),
        ("second", 10.0),
    ]
    assert ["selected_step" in line for line in lines] == [False, True, True]


def test_weights_of_stages_are_kept_where_that_is_asked(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a killed try are kept too, and a run that lacks some is not complete."""
    first, second = Stage("first", 0.4, select_on=("cross_entropy",)), Stage("second", 0.3, answers=False)
    stages = [first, second, Stage("third", 0.3, select_on=("cross_entropy",))]
    monkeypatch.setattr(CoTSFT, "stages", lambda *_: stages)
    with_losses(monkeypatch, float)
    plain, keeping = (run_of(small_study(ROWS, training={"keep_stages": keep}), "cot_sft") for keep in (False, True))
    record = train(plain, fresh(small_data, tmp_path / "plain"))
    assert [stage["weights_sha256"] for stage in record["stages"]] == [None] * 3
    assert not Paths(tmp_path / "plain", plain).kept.exists()

    results = fresh(small_data, tmp_path / "kept")
    paths = Paths(results, keeping)
    data = training.Trainer._data

    def second_kills(trainer: training.Trainer, stage: Stage, corpus: Corpus) -> StageLoader:
        return data(trainer, stage, corpus) if stage.name != "second" else sys.exit("killed")

    with monkeypatch.context() as patched, pytest.raises(SystemExit, match="killed"):
        patched.setattr(training.Trainer, "_data", second_kills)
        train(keeping, results)
    (first,) = paths.kept.iterdir()
    digest = checkpoints.digest(load_file(first))
    for left in (".000.safetensors.killed", "007.safetensors"):  # from a try that was killed, and from other settings
        (paths.kept / left).touch()
    kept = train(keeping, results)
    assert [path.name for path in paths.kept.iterdir()] == [first.name] == ["000.safetensors"]
    assert [stage["weights_sha256"] for stage in kept["stages"]] == [digest, None, None]
    assert kept["stages"][0]["selected_step"] < kept["stages"][0]["steps"]
    assert kept["weights_sha256"] == record["weights_sha256"] != digest
    assert checkpoints.digest(load_file(first)) == digest

    train(keeping, results)
    assert "is trained already" in caplog.text
    first.unlink()
    assert train(keeping, results)["weights_sha256"] == kept["weights_sha256"] and first.exists()


def test_a_run_of_other_settings_is_not_replaced_silently(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As by a copy of a study's file that kept its name."""
    for rate in (1e-3, 2e-3):
        train(run_of(small_study(ROWS, training={"epochs": 0.1, "learning_rate": rate}), "cot_sft"), results)
    assert "equation/cot_sft/s0 was trained with other settings, data or code" in caplog.text


def test_a_warm_up_that_does_not_end_is_told(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = run_of(small_study(ROWS, training={"warmup_steps": 21}), "cot_sft")
    train(spec, results)
    assert "train has 20 steps, and the learning rate rises for 21: it does not reach its peak" in caplog.text
