"""Training from top to bottom: the loop of all methods, and one optimizer step. It can be resumed at any moment with
the same result (on a GPU, up to rounding).

Everything that happens at a step is a function of the specification and the step's number: the batch, the learning
rate, every random draw. A checkpoint therefore needs weights, optimizer and counters only.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import checkpoints
from benchmarks.budgets import budget_of, curriculum, steps_of
from benchmarks.checkpoints import DIGEST, read_weights
from benchmarks.console import Progress
from benchmarks.data import Corpus, open_corpus
from benchmarks.engine import ALONE, Engine, PlaceInPhase, Ranks, build_engine, deterministic
from benchmarks.engine.adapters import (
    add_adapters,
    enable_gradients,
    merged_weights,
    save_adapters,
    size_without_adapters,
    whole_weights,
)
from benchmarks.engine.device import report_out_of_memory
from benchmarks.environment import environment, with_hardware
from benchmarks.files import DiskFull, read_json, write_json
from benchmarks.models import build_method, complete_folder
from benchmarks.processes.launch import run_ranks
from benchmarks.processes.locks import RunLock
from benchmarks.processes.preemption import Preempted, StopRequest, defer_signals
from benchmarks.studies.micro_batches import rows_per_pass, splits_batches
from benchmarks.studies.paths import DONE, Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.batches import FeatureStore, PrefetchingLoader, StageLoader, batches_of
from benchmarks.training.live_tracking import track_live
from benchmarks.training.records import RunLog, restore_finished, training_key, write_final_record
from benchmarks.training.validation_accuracy import held_out_accuracy
from methods.base import Batch, Context, Method, Output, Stage
from methods.errors import InputError

log = logging.getLogger(__name__)


def train(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Train a run, in this process or on the ranks of its engine, unless it is trained already. Return its record."""
    paths = Paths(results, spec)
    with RunLock(paths.run):
        if record := restore_finished(spec, paths):
            return record
        if spec.engine.kind == "process":
            return train_as(ALONE, spec, results)
        run_ranks(spec, results, "train")
    return read_json(paths.record("train"))


def train_as(ranks: Ranks, spec: RunSpec, results: Path) -> dict[str, Any]:
    """Train as one of the ranks that train the run. Return its record."""
    trainer = Trainer(spec, results, ranks)
    with track_live(trainer, results):
        return trainer.run()


@dataclass
class TrainState:
    """Counters of the run and of its current stage, and what is known about the weights so far."""

    stage: int = 0
    stage_step: int = 0
    step: int = 0
    updates: int = 0  # of the optimizer since its states were zero
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: list[float] | None = None  # what the weights selected so far were selected by
    best_step: int | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    validation: dict[str, float] = field(default_factory=dict)  # loss terms of the weights selected so far in the stage
    standing: list[str] = field(default_factory=list)  # warnings about these weights
    dead_latents: bool = False  # of these weights

    def end_stage(self, stage: Stage, trainable: int, kept: str | None) -> dict[str, Any]:
        """Append the record of the current stage to ``stages``, and return it. ``trainable`` is the number of trainable
        parameters; ``kept`` is the digest of the stage's weights, if they are kept."""
        record = {
            "name": stage.name,
            "phase": stage.phase,
            "epochs": stage.epochs,
            "steps": self.stage_step,
            "trainable_parameters": trainable,
            "seconds": self.seconds - sum(stage["seconds"] for stage in self.stages),
            "tokens": self.tokens - sum(stage["tokens"] for stage in self.stages),
            "selected_step": self.best_step,
            "validation": self.validation,
            "warnings": self.standing,
            "dead_latents": self.dead_latents,
            "weights_sha256": kept,
        }
        self.stages.append(record)
        return record

    def begin_next_stage(self) -> None:
        self.stage, self.stage_step = self.stage + 1, 0
        self.best, self.best_step, self.validation, self.standing = None, None, {}, []
        self.dead_latents = False


class Trainer:
    """Train one run, from its specification to its final weights. Every rank has a trainer; only the first rank writes
    records."""

    def __init__(self, spec: RunSpec, results: Path, ranks: Ranks = ALONE) -> None:
        self.spec, self.paths, self.ranks = spec, Paths(results, spec), ranks
        self.training = spec.training
        self.training_rows = open_corpus(self.paths.data, "train")
        self.held_out = open_corpus(self.paths.data, "validation")
        torch.set_num_threads(spec.threads)
        with memory_for_training(spec):
            self.method = build_method(spec, self.paths.data).to(self.ranks.device)
        _require_trainable(self.method)
        self.budget = budget_of(spec.training, self.training_rows)
        self.stages = curriculum(self.method, self.budget)
        self.state = TrainState()
        self.parent = read_weights(self.paths.start) if self.paths.start else None
        parent = self.parent.metadata[DIGEST] if self.parent else None
        self.key = self.ranks.from_first(training_key(spec, self.paths, parent) if self.ranks.first else "")
        self.log = RunLog(self.paths.log, silent=not self.ranks.first)
        self.optimizer_states: Mapping[str, torch.Tensor] = {}  # of the last stage, if the next continues with them
        self.last_saved = time.monotonic()
        self.notice, self.stopping = StopRequest(), False

    @deterministic()
    def run(self) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if there is one; write the run's record and return it. The caller
        holds the run's lock."""
        started = environment(self.spec.method)
        if self.ranks.first:
            write_json(self.paths.run / "spec.json", self.spec.model_dump(mode="json"))
        with memory_for_training(self.spec):
            self._resume()
            try:
                with defer_signals(self.notice.note):
                    while self.state.stage < len(self.stages):
                        self._train_stage(self.stages[self.state.stage])
                        self._end_stage()
            except BaseException:  # the log shows what led to it; a run that goes on drops what is after its checkpoint
                with suppress(OSError, DiskFull):
                    self.log.flush()
                raise
            self.log.flush()
            record = self._record(started)
        if self.ranks.first:
            write_final_record(self.paths, record)
        self.ranks.wait("the record")
        return read_json(self.paths.record("train"))

    def _resume(self) -> None:
        checkpoint = checkpoints.load_latest(self.paths.checkpoints, self.key, self.ranks)
        if checkpoint is None and self.parent:
            self.method.warm_start({k: v.to(self.method.device) for k, v in self.parent.items()})
        add_adapters(self.method, self.training.lora, self.spec.seed)
        if checkpoint is None:
            self.log.truncate(0)
            return
        checkpoints.load_weights(self.method, checkpoint.model)
        self.state = TrainState(**checkpoint.state["train_state"])
        self.log.truncate(self.state.step)
        log.warning("%s: going on from step %d", self.spec.id, self.state.step)
        self.optimizer_states = checkpoint.optimizer

    def _train_stage(self, stage: Stage) -> None:
        """Make all steps of the current stage that are left. Its engine and data end here: the next stage needs their
        memory."""
        state, steps = self.state, steps_of(stage, self.budget.steps_per_epoch)
        validate_every = max(1, math.ceil(steps / self.training.validations))
        train, held_out = self._data(stage, self.training_rows), self._data(stage, self.held_out)
        engine = self._build_engine(stage)
        numbers = range(state.step, state.step + steps - state.stage_step)
        loader = PrefetchingLoader(
            engine, train, batches_of(train, self.training, self.budget.steps_per_epoch, numbers)
        )
        with Progress(f"{self.spec.id} {stage.name}", steps, state.stage_step) as progress:
            while state.stage_step < steps:
                began = time.perf_counter()
                sums = optimizer_step(loader, state.stage_step)
                self._after_step(engine, sums, time.perf_counter() - began)
                selects = stage.select_on and state.stage_step % validate_every == 0
                if selects or state.stage_step == steps:
                    self._validate(stage, engine, held_out)
                progress.advance(note=f"loss {sum(sums.terms().values()):.3g}")
                if state.stage_step < steps and self._agreed_to_save():
                    self._checkpoint(engine)
        following = self.stages[state.stage + 1 : state.stage + 2]
        if following and following[0].keep_optimizer:
            self.optimizer_states = {name: checkpoints.cpu_copy(tensor) for name, tensor in engine.optimizer_states()}
        engine.close()
        train.close()
        held_out.close()

    def _build_engine(self, stage: Stage) -> Engine:
        """Return the engine of the current stage, with the optimizer states that it continues from."""
        phase = phase_of(self.stages, self.state.stage, self.budget.steps_per_epoch)
        engine = build_engine(self.method, stage, self.training, self.spec.engine, phase, self.ranks)
        if self.optimizer_states and (self.state.stage_step > 0 or stage.keep_optimizer):
            engine.load_optimizer_states(self.optimizer_states, self.state.updates)
            self.optimizer_states = {}
        if phase.steps < self.training.warmup_steps:
            log.warning(
                "%s: %s has %d steps, and the learning rate rises for %d: it does not reach its peak",
                *(self.spec.id, stage.phase, phase.steps, self.training.warmup_steps),
            )
        return engine

    def _data(self, stage: Stage, corpus: Corpus) -> StageLoader:
        data = StageLoader(self.method, corpus, stage, self.spec.seed)
        if not stage.cached:
            return data
        part = "train" if corpus is self.training_rows else "validation"
        label = f"{self.spec.id} {stage.name} features"
        store = FeatureStore(self.paths.checkpoints / f"features-{part}", label, self.ranks)
        began = time.perf_counter()
        with self.notice.immediate():
            store.fill(data, np.arange(len(corpus)), self.spec.engine.precision, self.spec.feature_batch_size)
        # A resumed stage computes features again; their time counts once, and that of validation rows not at all
        if self.state.stage_step == 0 and corpus is self.training_rows:
            self.state.seconds += time.perf_counter() - began
        data.features = store
        return data

    def _after_step(self, engine: Engine, sums: Sums, seconds: float) -> None:
        state = self.state
        self.method.after_step(dict(sums.statistics))
        state.step += 1
        state.stage_step += 1
        state.updates = engine.updates
        state.examples += sums.examples
        state.tokens += sums.tokens
        state.seconds += seconds
        if state.step % self.training.log_every == 0:
            terms = sums.terms()
            losses = {"loss": sum(terms.values()), **terms, **self._metrics(sums), **sums.norms}
            place = {"learning_rate": engine.learning_rate(state.stage_step - 1), "tokens": state.tokens}
            self._log("step", losses | place | {"seconds": round(state.seconds, 3)})

    def _validate(self, stage: Stage, engine: Engine, data: StageLoader) -> None:
        state = self.state
        context = data.context(state.step // self.budget.steps_per_epoch, state.step, training=False)
        self.method.eval()
        sums = validation_sums(engine, data, context, self.training.batch_size)
        terms, metrics = sums.terms(), self._metrics(sums)
        if self.training.validation_questions and stage.answers:
            metrics |= {"accuracy": held_out_accuracy(self.method, self.spec, self.paths, self.held_out, stage)}
        self.method.train()
        warnings = self.method.warnings(metrics)
        for warning in warnings:
            if warning not in state.warnings:
                state.warnings.append(warning)
                log.warning("%s, step %d: %s", self.spec.id, state.step, warning)
                self._log("warning", {"message": warning})
        # The lowest are selected, and of equal ones the first; where weights cannot answer, there is no accuracy
        criterion = [sum(terms[name] for name in stage.select_on)]
        if self.training.select_by == "accuracy" and "accuracy" in metrics:
            criterion.insert(0, -metrics["accuracy"])
        better = bool(stage.select_on) and (state.best is None or criterion < state.best)
        if better or not stage.select_on:
            state.validation, state.standing = terms, warnings
            state.dead_latents = self.method.dead_latents(metrics)
        if better:
            state.best, state.best_step = criterion, state.step
            self._save_weights(self._selected(state.step), engine.weights())
            if self.ranks.first:
                checkpoints.keep_selected(self.paths.checkpoints, self._selected(state.step).name)
        selected = {"selected_step": state.best_step} if stage.select_on else {}
        self._log("validation", {**terms, **metrics, **selected})

    def _metrics(self, sums: Sums) -> dict[str, float]:
        metrics = {name: float(value) for name, value in self.method.metrics(dict(sums.statistics)).items()}
        _require_own_names(self.method.name, metrics, "`metrics` gives")
        return metrics

    def _selected(self, step: int) -> Path:
        """Return the path for the weights of a step of this stage, should they be selected."""
        return checkpoints.selected_path(self.paths.checkpoints, self.state.stage, step)

    def _end_stage(self) -> None:
        """Load the selected weights, record the stage, and go to the next one."""
        state, stage = self.state, self.stages[self.state.stage]
        if state.best_step is not None and state.best_step != state.step:
            selected = read_weights(self._selected(state.best_step))
            checkpoints.load_weights(self.method, selected)
        trainable = sum(parameter.numel() for parameter in enable_gradients(self.method, stage).values())
        kept = None
        if self.training.keep_stages and stage.answers and state.stage + 1 < len(self.stages):
            kept = self._save_weights(self.paths.stage_weights(state.stage), merged_weights(self.method))
        self._log("stage", state.end_stage(stage, trainable, kept))
        state.begin_next_stage()
        if self._agreed_to_save() or state.stage == len(self.stages) or self.stages[state.stage].phase != stage.phase:
            self._checkpoint(None)

    def _agreed_to_save(self) -> bool:
        """Return whether to save now, because it is time or because a rank was told to stop. All ranks ask together and
        get the same answer."""
        due = self.ranks.first and time.monotonic() - self.last_saved >= self.training.checkpoint_seconds
        votes = self.ranks.sum({"stop": self.notice.requested, "save": due})
        self.stopping = votes["stop"] > 0
        return self.stopping or votes["save"] > 0

    def _checkpoint(self, engine: Engine | None) -> None:
        self.log.flush()
        model = engine.weights() if engine else whole_weights(self.method)
        optimizer = engine.optimizer_states() if engine else self.optimizer_states.items()
        state = self.state
        selected = self._selected(state.best_step).name if state.best_step is not None else None
        metadata = {"key": self.key, "seconds": state.seconds, "selected": selected, "train_state": asdict(state)}
        name = f"step-{state.step:09d}-{state.stage:03d}"
        checkpoints.save(self.paths.checkpoints, name, model, optimizer, metadata, self.ranks)
        self.last_saved = time.monotonic()
        if self.stopping:
            log.warning("%s: told to stop; step %d is saved", self.spec.id, self.state.step)
            raise Preempted

    def _save_weights(self, path: Path, tensors: checkpoints.Tensors) -> str:
        """Write all weights to one file. Return their digest on the first rank, and an empty string on the others."""
        kept = {name: checkpoints.cpu_copy(tensor) for name, tensor in tensors if self.ranks.first}
        digest = checkpoints.save_weights(path, kept) if self.ranks.first else ""
        self.ranks.wait(f"{path.name} on disk")
        return digest

    def _log(self, kind: str, values: dict[str, Any]) -> None:
        state = self.state
        place = {"kind": kind, "step": state.step, "stage": self.stages[state.stage].name}
        self.log.add({**place, "epoch": round(state.step / self.budget.steps_per_epoch, 4), **values})

    def _tidy(self) -> None:
        """Remove what earlier attempts left: half-written files, and weights of stages that are no longer kept."""
        stages = enumerate(self.state.stages)
        kept = {self.paths.stage_weights(number) for number, stage in stages if stage["weights_sha256"]}
        for path in {*self.paths.model.glob(".*.*"), *self.paths.kept.glob("*")} - kept:
            if path.is_file():
                path.unlink()

    def _record(self, started: dict[str, Any]) -> dict[str, Any]:
        state, spec = self.state, self.spec
        if self.ranks.first:
            self._tidy()
        weights_digest = self._save_weights(self.paths.weights, merged_weights(self.method))
        if self.ranks.first:
            complete_folder(spec, self.paths)
            if self.training.lora:
                start = spec.starts_at or str(spec.backbone.pretrained)
                save_adapters(self.method, self.paths.model / "adapters", start)
        return {
            "run": spec.id,
            "digest": spec.digest("train"),
            "key": self.key,
            "spec": spec.model_dump(mode="json"),
            "parameters": size_without_adapters(self.method),
            "steps": state.step,
            "examples": state.examples,
            "tokens": state.tokens,
            "stages": state.stages,
            "wall_seconds": state.seconds,
            "tokens_per_second": state.tokens / max(state.seconds, 1e-9),
            "warnings": state.warnings,
            "weights_sha256": weights_digest,
            "data": read_json(self.paths.data / DONE),
            "environment": with_hardware(started),
        }


# Fields of the log's lines beside a method's losses and metrics
LOGGED = {
    *("kind", "step", "stage", "epoch", "tokens", "seconds", "learning_rate"),
    *("loss", "grad_norm", "accuracy", "selected_step"),
}


class NonFiniteLoss(InputError):
    """Training met a loss or a gradient that is not a finite number. It stops before such weights get into a
    checkpoint. ``where``: over which rows, if not over a batch; ``rows``: the batch, with a semicolon before it."""

    def __init__(self, names: Sequence[str], sums: Sums, context: Context, where: str = "", rows: str = "") -> None:
        super().__init__(
            f"step {context.step} ({context.stage.name}): {', '.join(names)} is not finite{where}; loss terms "
            f"{sums.terms()}{rows}. The last checkpoint is kept, and lies before this step; lower the learning rate, "
            "or look at these rows"
        )


@dataclass
class Sums:
    """Loss sums, denominators and statistics of several micro-batches, as Python numbers. Added tensors stay on the
    device until :meth:`fetch`: reading each number at once would keep the device waiting for the next micro-batch."""

    losses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    denominators: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    statistics: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    norms: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the same on all ranks
    tokens: int = 0
    examples: int = 0
    waiting: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def add_denominators(self, batch: Batch, counts: bool = True) -> None:
        self.tokens += int(batch.tokens) * counts
        for name, value in batch.denominators.items():
            self.denominators[name] += float(value) * counts  # a plugin may count with tensors

    def add_output(self, output: Output, counts: bool = True) -> None:
        for kind, tensors in (("losses", output.losses), ("statistics", output.statistics)):
            for name, value in tensors.items():
                total = value.detach().double() if counts else value.new_zeros((), dtype=torch.float64)
                self.waiting[kind, name] = self.waiting[kind, name] + total if (kind, name) in self.waiting else total

    def fetch(self) -> None:
        """Transfer all added tensors from the device at once, and add them to the sums."""
        if self.waiting:
            for (kind, name), value in zip(self.waiting, torch.stack([*self.waiting.values()]).tolist(), strict=True):
                getattr(self, kind)[name] += value
            self.waiting.clear()

    def terms(self) -> dict[str, float]:
        return {name: value / max(self.denominators[name], 1.0) for name, value in self.losses.items()}


def optimizer_step(steps: PrefetchingLoader, number: int) -> Sums:
    """Perform the next update, from one global batch. ``number`` counts the steps of the stage.

    Loss sums are divided by the denominators of the *global* batch, so neither the number of ranks nor gradient
    accumulation changes them. A single process waits for the device only once, after it has queued all work of this
    step and collated the next batch; several ranks also wait for the sum of their denominators. A loss that is not
    finite is therefore noticed after the update, but before any checkpoint: :class:`NonFiniteLoss` is raised.
    """
    step, engine = next(steps), steps.engine
    sums = Sums(examples=len(step.indices))
    for batch, counts in step.batches:
        sums.add_denominators(batch, counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    for place, (batch, counts) in enumerate(step.batches):
        output = engine.forward(batch, step.context, counts, place)
        _require_sums(engine.method.name, output, sums, step.context.stage)
        losses = [value / max(sums.denominators[name], 1.0) for name, value in output.losses.items()]
        engine.backward(torch.stack(losses).sum() * counts, last=place + 1 == len(step.batches))
        sums.add_output(output, counts)
    sums.waiting["norms", "grad_norm"] = engine.step(number).double()
    steps.prefetch()
    reduce_sums(sums, engine.ranks)
    if bad := _not_finite(sums.losses) or _not_finite(sums.norms):
        examples = steps.data.corpus.examples(step.indices)
        raise NonFiniteLoss(bad, sums, step.context, rows=f"; examples {[example.id for example in examples]}")
    return sums


def _require_trainable(method: Method) -> None:
    """Refuse a method that freezes weights where it is built: each stage decides anew what is trained."""
    if frozen := [name for name, weight in method.named_parameters() if not weight.requires_grad]:
        raise InputError(
            f"{method.name}: {frozen[0]!r} does not require a gradient when the method is built, and would be trained "
            "all the same: say what a stage trains in its `trainable`"
        )


def _require_own_names(method: str, names: Iterable[str], given: str) -> None:
    """Refuse losses and metrics that are named like a field of the log."""
    if taken := sorted(LOGGED.intersection(names)):
        raise InputError(f"{method}: {given} {taken[0]!r}, which is a field of the log: give it another name")


def _require_sums(method: str, output: Output, sums: Sums, stage: Stage) -> None:
    """Check that losses and statistics of `forward` are sums, and that its losses match the denominators of `collate`
    and the stage's `select_on`."""
    if not isinstance(output, Output):
        raise InputError(f"{method}: `forward` returns a {type(output).__name__}: return an Output (methods/base.py)")
    _require_own_names(method, output.losses, "`forward` gives a loss")
    known = sorted(sums.denominators)
    if unknown := sorted(output.losses.keys() - sums.denominators.keys()):
        raise InputError(
            f"{method}: `forward` gives a loss {unknown[0]!r}, for which `collate` has no "
            f"denominator; it has {known}: use the same names"
        )
    if unknown := sorted({*stage.select_on} - output.losses.keys()):
        raise InputError(
            f"{method}: stage {stage.name!r} selects on {unknown[0]!r}, which is no loss; `forward` gives "
            f"{sorted(output.losses)}"
        )
    for name, value in {**output.losses, **output.statistics}.items():
        if not isinstance(value, Tensor) or value.dim():
            found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"of type {type(value).__name__}"
            raise InputError(
                f"{method}: `forward` gives {name!r} {found}: return its sum over the micro-batch, a tensor of no "
                "dimensions"
            )


def reduce_sums(sums: Sums, ranks: Ranks) -> None:
    """Sum losses, statistics and tokens over all ranks, in one call."""
    sums.fetch()
    kinds = {"loss": sums.losses, "statistic": sums.statistics}
    named = {f"{kind} {name}": value for kind, values in kinds.items() for name, value in values.items()}
    total = ranks.sum({**named, "tokens": sums.tokens})
    for kind, values in kinds.items():
        values.update({name: total[f"{kind} {name}"] for name in values})
    sums.tokens = round(total["tokens"])


def _not_finite(values: Mapping[str, float]) -> list[str]:
    return [name for name, value in values.items() if not math.isfinite(value)]


def memory_for_training(spec: RunSpec) -> AbstractContextManager[None]:
    """Raise :class:`OutOfMemory`, with what takes less memory, if a training pass inside does not fit."""
    rows = rows_per_pass(spec.training.batch_size, spec.engine.ranks, spec.engine.micro_batch)
    return report_out_of_memory(
        f"{spec.study}: training {spec.id}",
        f"A training pass has at most {rows} rows: lower `engine.micro_batch` or `engine.micro_tokens`, or set "
        "`engine.activation_checkpointing`; `marcos-bench plan` says what fits",
    )


@torch.no_grad()
def validation_sums(engine: Engine, data: StageLoader, context: Context, batch_size: int) -> Sums:
    """Return losses and statistics over the validation rows, in batches that are cut like those of training. Raise
    :class:`NonFiniteLoss` if a loss term is not finite."""
    order = np.argsort(data.corpus.lengths, kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    parts = [engine.split_microbatches(batch, data.longest(batch)) for batch in batches]
    if splits_batches(engine.spec):  # deal them together, so that fewer ranks are idle; else a pass is of one batch
        parts = [[*chain.from_iterable(parts)]]
    sums = Sums()
    for rows, counts in chain.from_iterable(map(engine.shard, parts)):
        batch = data.batch(rows, context)
        sums.add_denominators(batch, counts)
        sums.add_output(engine.forward(batch, context, counts), counts)
    sums.denominators = engine.ranks.sum(sums.denominators)
    reduce_sums(sums, engine.ranks)
    if bad := _not_finite(sums.terms()):
        raise NonFiniteLoss(bad, sums, context, where=" over the validation rows")
    return sums


def phase_of(stages: Sequence[Stage], index: int, steps_per_epoch: int) -> PlaceInPhase:
    """Return where the stage at ``index`` lies within its phase."""
    steps = [steps_of(stage, steps_per_epoch) * (stage.phase == stages[index].phase) for stage in stages]
    return PlaceInPhase(before=sum(steps[:index]), steps=sum(steps))
