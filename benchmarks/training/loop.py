"""The training loop of all methods, resumable at any moment with the same result (on a GPU, up to rounding).

Everything that happens at a step is a function of the specification and the step's number: the batch, the learning
rate, every random draw. A checkpoint therefore needs weights, optimizer and counters only.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import checkpoints
from benchmarks.budgets import budget_of, curriculum, steps_of
from benchmarks.checkpoints import DIGEST, read_weights
from benchmarks.data import Corpus, open_corpus
from benchmarks.engine import Engine, Ranks, build_engine
from benchmarks.engine.adapters import add_adapters, enable_gradients, plain_size, plain_weights
from benchmarks.engine.weights import whole_weights
from benchmarks.environment import ended, environment
from benchmarks.files import DiskFull, read_json, write_json
from benchmarks.models import build_method, complete_folder
from benchmarks.processes.preemption import Notice, Preempted, noting
from benchmarks.progress import Progress
from benchmarks.studies.paths import DONE, Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.training.asking import held_out_accuracy
from benchmarks.training.features import FeatureStore
from benchmarks.training.finished import training_key
from benchmarks.training.position import Position
from benchmarks.training.run_log import RunLog
from benchmarks.training.steps import (
    StageData,
    Steps,
    Sums,
    batches_of,
    optimizer_step,
    phase_of,
    validation_sums,
)
from methods.base import Stage

log = logging.getLogger(__name__)


class Trainer:
    """Train one run, from its specification to its final weights. Every rank has a trainer; only the first rank writes
    records."""

    def __init__(self, spec: RunSpec, results: Path, ranks: Ranks | None = None) -> None:
        self.spec, self.paths, self.ranks = spec, Paths(results, spec), ranks or Ranks()
        self.training = spec.training
        self.train = open_corpus(self.paths.data, "train")
        self.held_out = open_corpus(self.paths.data, "validation")
        self.method = build_method(spec, self.paths.data).to(self.ranks.device)
        self.budget = budget_of(spec.training, self.train)
        self.stages = curriculum(self.method, self.budget)
        self.position = Position()
        self.parent = read_weights(self.paths.start) if self.paths.start else None
        parent = self.parent.metadata[DIGEST] if self.parent else None
        self.key = self.ranks.from_first(training_key(spec, self.paths, parent) if self.ranks.first else "")
        self.log = RunLog(self.paths.run / "log.jsonl", silent=not self.ranks.first)
        self.optimizer: Mapping[str, torch.Tensor] = {}  # states of the last stage, if the next one continues with them
        self.saved = time.monotonic()
        self.notice, self.stopping = Notice(), False

    def run(self) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if there is one, and return the record of the run."""
        made = environment(self.spec.method)
        if self.ranks.first:
            write_json(self.paths.run / "spec.json", self.spec.model_dump(mode="json"))
        self._resume()
        try:
            with noting(self.notice.note):
                while self.position.stage < len(self.stages):
                    self._run_stage(self.stages[self.position.stage])
                    self._end_stage()
        except BaseException:  # the log has what led to it; a run that goes on drops lines after its checkpoint
            with suppress(OSError, DiskFull):
                self.log.flush()
            raise
        self.log.flush()
        return self._record(made)

    def _resume(self) -> None:
        found = checkpoints.load_latest(self.paths.checkpoints, self.key, self.ranks)
        if found is None and self.parent:
            self.method.warm_start({k: v.to(self.method.device) for k, v in self.parent.items()})
        add_adapters(self.method, self.training.lora, self.spec.seed)
        if found is None:
            self.log.truncate(0)
            return
        checkpoints.load_weights(self.method, found.model)
        self.position = Position(**found.state["position"])
        self.log.truncate(self.position.step)
        log.warning("%s: going on from step %d", self.spec.id, self.position.step)
        self.optimizer = found.optimizer

    def _run_stage(self, stage: Stage) -> None:
        at, steps = self.position, steps_of(stage, self.budget.steps_per_epoch)
        train, held_out = (self._data(stage, corpus) for corpus in (self.train, self.held_out))
        phase = phase_of(self.stages, at.stage, self.budget.steps_per_epoch)
        engine = build_engine(self.method, stage, self.training, self.spec.engine, phase, self.ranks)
        if self.optimizer and (at.stage_step > 0 or stage.keep_optimizer):
            engine.load_optimizer_states(self.optimizer, at.updates)
            self.optimizer = {}
        if phase.steps < self.training.warmup_steps:
            log.warning(
                "%s: %s has %d steps, and the learning rate rises for %d: it does not reach its peak",
                *(self.spec.id, stage.phase, phase.steps, self.training.warmup_steps),
            )
        every = max(1, math.ceil(steps / self.training.validations))
        per_epoch, ahead = self.budget.steps_per_epoch, range(at.step, at.step + steps - at.stage_step)
        left = Steps(engine, train, batches_of(train, self.training, per_epoch, ahead))
        with Progress(f"{self.spec.id} {stage.name}", steps, at.stage_step) as progress:
            while at.stage_step < steps:
                began = time.perf_counter()
                sums = optimizer_step(left, at.stage_step)
                self._after_step(engine, sums, time.perf_counter() - began)
                if at.stage_step == steps or (stage.select_on and at.stage_step % every == 0):
                    self._validate(stage, engine, held_out)
                progress.advance(note=f"loss {sum(self.position.terms.values()):.3g}")
                if at.stage_step < steps and self._agreed_to_save():
                    self._checkpoint(engine)
        if at.stage + 1 < len(self.stages) and self.stages[at.stage + 1].keep_optimizer:
            self.optimizer = {name: checkpoints.copied(tensor) for name, tensor in engine.optimizer_states()}
        engine.close()
        for data in (train, held_out):
            if data.features is not None:
                data.features.remove()

    def _data(self, stage: Stage, corpus: Corpus) -> StageData:
        plain = StageData(self.method, corpus, stage, self.spec.seed, None)
        if not stage.cached:
            return plain
        part = "train" if corpus is self.train else "validation"
        label = f"{self.spec.id} {stage.name} features"
        store = FeatureStore(self.paths.checkpoints / f"features-{part}", label, self.ranks)
        began = time.perf_counter()
        rows = np.arange(len(corpus))
        context, precision = plain.context(0, 0), self.spec.engine.precision
        with self.notice.obeyed():
            store.fill(self.method, precision, corpus, rows, context, self.spec.rows_at_once)
        if self.position.stage_step == 0:  # a resumed stage computes features again; their time counts once
            self.position.seconds += time.perf_counter() - began
        return StageData(self.method, corpus, stage, self.spec.seed, store)

    def _after_step(self, engine: Engine, sums: Sums, seconds: float) -> None:
        at = self.position
        self.method.after_step(sums.statistics)
        at.terms = sums.terms()
        at.step, at.stage_step, at.updates = at.step + 1, at.stage_step + 1, engine.updates
        at.examples, at.tokens, at.seconds = at.examples + sums.examples, at.tokens + sums.tokens, at.seconds + seconds
        if at.step % self.training.log_every == 0:
            line = {"loss": sum(at.terms.values()), **at.terms, **self.method.observed(sums.statistics), **sums.norms}
            rate = engine.learning_rate(at.stage_step - 1)
            self._log("step", {**line, "learning_rate": rate, "tokens": at.tokens, "seconds": round(at.seconds, 3)})

    def _validate(self, stage: Stage, engine: Engine, data: StageData) -> None:
        at = self.position
        context = data.context(at.step // self.budget.steps_per_epoch, at.step, training=False)
        self.method.eval()
        sums = validation_sums(engine, data, context, self.training.batch_size)
        terms, observed = sums.terms(), self.method.observed(sums.statistics)
        if self.training.validation_questions and stage.answers:
            observed |= {"accuracy": held_out_accuracy(self.method, self.spec, self.paths, self.held_out, stage)}
        self.method.train()
        warnings = self.method.warnings(observed)
        for warning in warnings:
            if warning not in at.warnings:
                at.warnings.append(warning)
                log.warning("%s, step %d: %s", self.spec.id, at.step, warning)
                self._log("warning", {"message": warning})
        # The lowest are selected, and of equal ones the first; where weights cannot answer, there is no accuracy
        found = [sum(terms[name] for name in stage.select_on)]
        if self.training.select_by == "accuracy" and "accuracy" in observed:
            found.insert(0, -observed["accuracy"])
        better = bool(stage.select_on) and (at.best is None or found < at.best)
        if better or not stage.select_on:
            at.validation, at.standing, at.dead_latents = terms, warnings, self.method.dead_latents(observed)
        if better:
            at.best, at.best_step = found, at.step
            self._save_weights(self._selected(at.step), engine.weights())
            if self.ranks.first:
                checkpoints.keep_selected(self.paths.checkpoints, self._selected(at.step).name)
        selected = {"selected_step": at.best_step} if stage.select_on else {}
        self._log("validation", {**terms, **observed, **selected})

    def _selected(self, step: int) -> Path:
        """Return the path for the weights of a step of this stage, should they be selected."""
        return checkpoints.selected_path(self.paths.checkpoints, self.position.stage, step)

    def _end_stage(self) -> None:
        """Load the selected weights, record the stage, and go to the next one."""
        at, stage = self.position, self.stages[self.position.stage]
        if at.best_step is not None and at.best_step != at.step:
            selected = read_weights(self._selected(at.best_step))
            checkpoints.load_weights(self.method, selected)
        trainable = sum(parameter.numel() for parameter in enable_gradients(self.method, stage).values())
        kept = None
        if self.training.keep_stages and stage.answers and at.stage + 1 < len(self.stages):
            kept = self._save_weights(self.paths.stage_weights(at.stage), plain_weights(self.method))
        self._log("stage", at.end_stage(stage, trainable, kept))
        at.begin_next_stage()
        if self._agreed_to_save() or at.stage == len(self.stages) or self.stages[at.stage].phase != stage.phase:
            self._checkpoint(None)

    def _agreed_to_save(self) -> bool:
        """Return whether to save now, because it is time or because a rank was told to stop. All ranks ask together and
        get the same answer."""
        due = self.ranks.first and time.monotonic() - self.saved >= self.training.checkpoint_seconds
        told = self.ranks.sum({"stop": self.notice.given, "save": due})
        self.stopping = told["stop"] > 0
        return self.stopping or told["save"] > 0

    def _checkpoint(self, engine: Engine | None) -> None:
        self.log.flush()
        model = engine.weights() if engine else whole_weights(self.method)
        optimizer = engine.optimizer_states() if engine else self.optimizer.items()
        at = self.position
        selected = self._selected(at.best_step).name if at.best_step is not None else None
        state = {"key": self.key, "seconds": at.seconds, "selected": selected, "position": asdict(at)}
        name = f"step-{at.step:09d}-{at.stage:03d}"
        checkpoints.save(self.paths.checkpoints, name, model, optimizer, state, self.ranks)
        self.saved = time.monotonic()
        if self.stopping:
            log.warning("%s: told to stop; step %d is saved", self.spec.id, self.position.step)
            raise Preempted

    def _save_weights(self, path: Path, tensors: checkpoints.Tensors) -> str:
        """Write all weights to one file. Return their digest on the first rank, and an empty string on the others."""
        kept = {name: checkpoints.copied(tensor) for name, tensor in tensors if self.ranks.first}
        digest = checkpoints.save_weights(path, kept) if self.ranks.first else ""
        self.ranks.wait(f"{path.name} on disk")
        return digest

    def _log(self, kind: str, values: dict[str, Any]) -> None:
        at = self.position
        place = {"kind": kind, "step": at.step, "stage": self.stages[at.stage].name}
        self.log.add({**place, "epoch": round(at.step / self.budget.steps_per_epoch, 4), **values})

    def _tidy(self) -> None:
        """Remove what earlier attempts left: half-written files, and weights of stages that are no longer kept."""
        stages = enumerate(self.position.stages)
        kept = {self.paths.stage_weights(number) for number, stage in stages if stage["weights_sha256"]}
        for path in {*self.paths.model.glob(".*.*"), *self.paths.kept.glob("*")} - kept:
            if path.is_file():
                path.unlink()

    def _record(self, made: dict[str, Any]) -> dict[str, Any]:
        at, spec = self.position, self.spec
        if self.ranks.first:
            self._tidy()
        weights_digest = self._save_weights(self.paths.weights, plain_weights(self.method))
        if self.ranks.first:
            complete_folder(spec, self.paths)
        return {
            "run": spec.id,
            "digest": spec.digest("train"),
            "key": self.key,
            "spec": spec.model_dump(mode="json"),
            "parameters": plain_size(self.method),
            "steps": at.step,
            "examples": at.examples,
            "tokens": at.tokens,
            "stages": at.stages,
            "final": at.terms,
            "validation": at.stages[-1]["validation"],
            "wall_seconds": at.seconds,
            "tokens_per_second": at.tokens / max(at.seconds, 1e-9),
            "warnings": at.warnings,
            "weights_sha256": weights_digest,
            "data": read_json(self.paths.data / DONE),
            "environment": ended(made),
        }
