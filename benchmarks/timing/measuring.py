"""What a study's methods cost on this machine, before anything is trained: rates, memory, epochs, test times.

Weights are untrained. Training steps cost the same whatever the weights are; answers are forced to the lengths of the
gold answers, since untrained weights do not stop by themselves. Values that are not measured but follow from a measured
rate are called extrapolated.
"""

from __future__ import annotations

import gc
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.budgets import budget_of, curriculum
from benchmarks.console import Progress
from benchmarks.data import Corpus, open_corpus, prepare
from benchmarks.data.corpus import open_solutions, spread_over
from benchmarks.engine import ALONE, Ranks, build_engine, deterministic
from benchmarks.engine.adapters import add_adapters
from benchmarks.engine.ranks import join
from benchmarks.environment import environment, with_hardware
from benchmarks.evaluation.inference import temporarily_prepared
from benchmarks.files import read_json_if_intact, write_json, write_text
from benchmarks.models import build_method
from benchmarks.plan.lengths import card_rows
from benchmarks.processes.launch import free_port
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec, row_of, set_path
from benchmarks.studies.specs import EngineSpec, TimingSpec
from benchmarks.studies.study import Study, StudyError
from benchmarks.studies.validation_errors import validate_settings
from benchmarks.timing import USUAL, Part
from benchmarks.timing.steps import time_training, timing_of
from benchmarks.timing.task import time_test
from benchmarks.training.batches import PrefetchingLoader, StageLoader, batches_of
from benchmarks.training.loop import memory_for_training, optimizer_step, phase_of
from methods.base import Example, Method
from methods.errors import InputError
from methods.registry import get_method

WARMUP = 10  # optimizer steps before those that are timed
SAMPLE = 2_000  # training examples whose steps stand in where a test set has none
LOGGED = 20  # mean losses recorded for a row that learns
PROFILED = 5  # optimizer steps
FIELDS = {Part.tests: "tests", Part.learning: "learning", Part.steps: "train"}  # of a record, by what fills them
SETTINGS = ("options", "training", "engine", "backbone", "evaluation", "timing")  # of a run, that may be changed


def measure(
    study: Study,
    results: Path,
    folder: Path,
    steps: int,
    timed: int,
    rows: Sequence[str] = (),
    learn: Sequence[str] = (),
    repeats: int | None = None,
    stand_in: str | None = None,
    settings: Mapping[str, Any] | None = None,
    parts: Collection[Part] = USUAL,
) -> Iterator[dict[str, Any]]:
    """Measure the study's own runs of its first seed and the runs that they start from or, if ``rows`` names some,
    those of ``rows`` and ``learn``.

    ``timed`` steps of each phase are timed, and ``repeats`` passes over each test set (default: the study's). Rows in
    ``learn`` also train for ``steps`` steps. A row's record is yielded, and written to ``folder``, after each of its
    parts (a test set, its losses, its training steps), so that a later failure loses none of them. ``stand_in`` is a
    data set that stands in for training data that is not available; an epoch still has as many rows as the study's own
    data. ``settings`` change those of all runs, by dotted paths (:func:`override_settings`). Only these ``parts`` are
    measured.

    Raise StudyError if a row is unknown, or if the study trains none of the rows itself.
    """
    if stand_in:
        results = results / "stand_in" / stand_in  # kept apart from the study's own data
    runs = _runs_to_measure(study, {*rows, *learn}, everything=not rows)
    if {*parts} == {Part.learning} and not any(run.row in learn for run in runs):
        raise InputError("`--part learning` is of rows that learn, and none is measured: name some with `--learn`")
    for run in runs:
        block, rows_of_epoch = study.block(run.block), None
        if stand_in:
            rows_of_epoch = card_rows(run.data)
            block = block.model_copy(update={"data": block.data.model_copy(update={"train": stand_in})})
        prepare(study, block, results)
        run = run.model_copy(update={"engine": run.engine.model_copy(update={"gpus": 1, "nodes": 1})})
        run = override_settings(run, settings) if settings else run
        timing = timing_of(run).model_copy(update={"train_steps": timed})
        if repeats:
            timing = timing.model_copy(update={"repeats": repeats})
        spec = run.model_copy(update={"timing": timing, "data": block.data})
        path = folder / "runs" / study.name / run.block / f"{run.row}.json"
        held = read_json_if_intact(path)
        if lost := [part for part, field in FIELDS.items() if part not in parts and held.get(field)]:
            raise InputError(
                f"{path} has {', '.join(lost)} of an earlier measurement, which this one leaves out and would replace: "
                "give it another --name"
            )
        torch.set_num_threads(spec.timing_threads)
        with one_rank(spec.engine) as ranks:
            made = environment(spec.method)
            for measured in _measure_run(spec, results, ranks, rows_of_epoch, steps if run.row in learn else 0, parts):
                record: dict[str, Any] = measured | {"environment": with_hardware(made)}
                if settings:
                    record["settings"] = dict(settings)
                if table := record.pop("profile", None):
                    write_text(path.with_suffix(".profile.txt"), table)
                if record["train"] or not held.get("train"):  # a record that is incomplete replaces no complete one
                    write_json(path, record)
                yield record


def _runs_to_measure(study: Study, rows: set[str], everything: bool) -> list[RunSpec]:
    """Return the runs of the first seed that the study trains itself and those that they start from, or only those of
    ``rows``. A run comes after the one that it starts from."""
    known = dict.fromkeys(run.row for run in study.runs.values())  # with rows that others start from
    if unknown := rows - known.keys():
        raise StudyError(
            f"study {study.name} has no row {', '.join(sorted(unknown))}; its rows are: {', '.join(known)}"
        )
    first_seed = [run for run in study.runs.values() if run.seed == study.seeds[0]]
    chosen = {run.id for run in first_seed if study.sources[run.id] is run}
    for run in reversed(first_seed):
        if run.id in chosen and run.starts_from:
            chosen.add(run.starts_from)
    runs = [run for run in first_seed if run.id in chosen and (everything or run.row in rows)]
    if not runs:
        asked = rows or known.keys()
        homes = {source.study for run, source in study.sources.items() if study.runs[run].row in asked} - {study.name}
        place = f": measure them in {' or '.join(sorted(homes))}" if homes else ""
        raise StudyError(f"study {study.name} trains none of these rows itself{place}")
    return runs


def override_settings(run: RunSpec, settings: Mapping[str, Any]) -> RunSpec:
    """Return a run with other settings where dotted paths lead, such as ``options.posterior`` or ``engine.zero_stage``.
    Raise InputError if there is no such setting, or if it cannot have this value."""
    fields, place = run.model_dump(), f"{run.block}/{run.row} with {', '.join(settings)} changed"
    for path, value in settings.items():
        part, _, name = path.partition(".")
        if part not in SETTINGS or not name:
            raise InputError(f"no setting is named {path!r}: name one of a run, in {', '.join(SETTINGS)}, after a dot")
        fields = set_path(fields, path, value)
    fields["options"] = validate_settings(
        get_method(run.method).Options, fields["options"], f"{place}, options"
    ).model_dump()
    return validate_settings(RunSpec, fields, place).validated()


@contextmanager
def one_rank(engine: EngineSpec) -> Iterator[Ranks]:
    """Make this process the only rank of an engine, inside the block."""
    if engine.kind == "process":
        yield ALONE
        return
    alone = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": free_port()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in alone.items()}}
    with join(engine.hang_seconds) as ranks:
        yield ranks


def _measure_run(
    spec: RunSpec, results: Path, ranks: Ranks, rows: int | None, steps: int, parts: Collection[Part]
) -> Iterator[dict[str, Any]]:
    """Yield the row's record after each of its parts."""
    paths = Paths(results, spec)
    with ranks.device:  # weights are drawn fast there, and any will do
        method = build_method(spec, paths.data).to(ranks.device).eval()
    record = _described(method, spec, timing_of(spec), open_corpus(paths.data, "train"), rows)
    tests = spec.evaluation.tests if Part.tests in parts else ()
    with Progress(f"{spec.id} answers", len(tests)) as progress, temporarily_prepared(method, spec.engine):
        for name in tests:
            examples = gold_examples(paths, name)
            questions, lengths = [e.question for e in examples], [method.length(e) for e in examples]
            record["tests"][name] = time_test(method, spec, questions, True, lengths)
            if method.can_skip_steps and all(length.steps for length in lengths):
                record["tests"][name]["all_steps"] = time_test(method, spec, questions, False, lengths)
            progress.advance()
            yield record
    add_adapters(method, spec.training.lora, spec.seed)
    if steps and Part.learning in parts:
        record["learning"] = train_steps(method, spec, paths, ranks, steps)  # before timed steps change the weights
        yield record
    if Part.profile in parts:
        yield record | {"profile": profile_of_steps(method, spec, paths, ranks)}
    if Part.steps in parts:
        record["train"] = time_training(method, spec, paths, ranks, WARMUP, rows)
        yield record
    del method
    torch.compiler.reset()  # the next method has other programs
    gc.collect()  # modules form reference cycles, and the next method needs their memory
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _described(method: Method, spec: RunSpec, timing: TimingSpec, corpus: Corpus, rows: int | None) -> dict[str, Any]:
    """Return a row's record before anything is measured."""
    return {
        "study": spec.study,
        "block": spec.block,
        "row": spec.row,
        "title": method.title,
        "starts_from": row_of(spec.starts_from) if spec.starts_from else None,
        "backbone": spec.backbone.model_dump(),
        "parameters": sum(parameter.numel() for parameter in method.parameters()),
        "precision": spec.engine.precision,
        "batch_size": spec.training.batch_size,
        "engine": spec.engine.model_dump(),
        "lora": spec.training.lora and spec.training.lora.model_dump(),
        "repeats": timing.repeats,
        "test_batch_size": timing.batch_size,
        "test_warm_up": "a whole pass over the set",
        "training_data": spec.data.train,
        "training_rows": len(corpus),
        "epoch_rows": rows or len(corpus),
        "tests": {},
        "learning": None,
        "train": None,
    }


def gold_examples(paths: Paths, name: str) -> list[Example]:
    """Return a test set's problems with their gold solutions. If a problem has no steps, it gets those of a training
    example with a question of about the same length: only lengths matter."""
    corpus = open_corpus(paths.data, "train")
    others = sorted(corpus.examples(spread_over(len(corpus), SAMPLE)), key=lambda example: len(example.question))
    sizes = [len(example.question) for example in others]
    examples = []
    for example in open_solutions(paths.data, name):
        near = others[min(bisect_left(sizes, len(example.question)), len(others) - 1)]
        examples.append(example if example.steps else replace(example, steps=near.steps))
    return examples


@contextmanager
def first_steps(method: Method, spec: RunSpec, paths: Paths, ranks: Ranks, steps: int) -> Iterator[PrefetchingLoader]:
    """Yield the first steps of the first stage, which :func:`optimizer_step` takes one after the other."""
    corpus = open_corpus(paths.data, "train")
    budget = budget_of(spec.training, corpus)
    stages = curriculum(method, budget)
    phase = phase_of(stages, 0, budget.steps_per_epoch)
    engine = build_engine(method, stages[0], spec.training, spec.engine, phase, ranks)
    data = StageLoader(method, corpus, stages[0], spec.seed)
    batches = batches_of(data, spec.training, budget.steps_per_epoch, range(steps))
    method.train()
    with memory_for_training(spec):
        yield PrefetchingLoader(engine, data, batches)
    engine.close()
    method.eval()


@deterministic()  # as in training
def train_steps(method: Method, spec: RunSpec, paths: Paths, ranks: Ranks, steps: int) -> dict[str, Any]:
    """Train for the first steps of the first stage. Return the losses, and what the method observes of a step, as the
    means of :data:`LOGGED` stretches of equal length."""
    losses: list[float] = []
    observed: dict[str, list[float]] = defaultdict(list)
    with first_steps(method, spec, paths, ranks, steps) as left, Progress(f"{spec.id} learning", steps) as progress:
        for number in range(steps):
            sums = optimizer_step(left, number)
            for name, value in method.metrics(sums.statistics).items():
                observed[name].append(value)
            method.after_step(sums.statistics)
            losses.append(sum(sums.terms().values()))
            progress.advance(note=f"loss {losses[-1]:.3g}")
    return {"steps": steps, "losses": _means(losses), "observed": {k: _means(v) for k, v in observed.items()}}


def _means(values: Sequence[float]) -> list[float]:
    return [float(np.mean(part)) for part in np.array_split(values, min(LOGGED, len(values)))]


@deterministic()  # as in training
def profile_of_steps(method: Method, spec: RunSpec, paths: Paths, ranks: Ranks) -> str:
    """Return PyTorch's table of the operations that take most of :data:`PROFILED` steps of the first stage, after
    :data:`WARMUP` steps: by the time of the GPU, or on a CPU by that of the operation itself."""
    by = "self_cuda_time_total" if method.device.type == "cuda" else "self_cpu_time_total"
    with first_steps(method, spec, paths, ranks, WARMUP + PROFILED) as left:
        for number in range(WARMUP):
            optimizer_step(left, number)
        with torch.profiler.profile() as profiler:
            for number in range(WARMUP, WARMUP + PROFILED):
                optimizer_step(left, number)
    return f"{spec.id}, {PROFILED} steps\n{profiler.key_averages().table(sort_by=by, row_limit=40)}\n"
