"""The task analyse: asks a trained run everything that figures of its latents need.
The figures are then drawn from files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from benchmarks.analysis.dimensions import (
    Patterns,
    digits_of,
    encoding,
    explained_variance,
    is_summation,
    levels_of,
    patterns,
    steer,
)
from benchmarks.analysis.draws import draws, explained, references, reread, solution_texts, transplanted
from benchmarks.analysis.interventions import output_frame, outputs
from benchmarks.analysis.majority_vote import MEAN
from benchmarks.analysis.responses import Responses, TrainedModel, evenly
from benchmarks.console import Progress
from benchmarks.data import Corpus, TestSet, decode, open_corpus
from benchmarks.environment import environment, with_hardware
from benchmarks.evaluation.inference import answer
from benchmarks.files import write_json, write_parquet
from benchmarks.models import trained_weights
from benchmarks.processes.locks import RunLock
from benchmarks.scoring.scorers import reads_steps, score_texts, scorer_of
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from methods.base import Example
from methods.errors import InputError
from methods.generation import Intervention


def analyse(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Write ``analysis/*.parquet`` and, last, ``analysis/analysis.json`` of a trained run.
    Return the content of the latter."""
    name = spec.steerable_latents
    if name is None:
        raise InputError(f"{spec.id} has no latents that can be set by hand: analyse a run of another row")
    made, clock, paths = environment(spec.method), time.perf_counter(), Paths(results, spec)
    path = paths.analysis
    with RunLock(path.parent):
        model = TrainedModel.load(spec, results)
        tests = [model.test(test, spec.analysis.questions) for test in spec.evaluation.tests]
        responses = [model.generate(test.questions, model.decoding, trace=True) for test in tests]
        corpus = open_corpus(model.data, "validation")
        latents, source = _latents(model, corpus, tests, responses, name)
        values = np.stack(latents["values"].tolist())
        found = patterns(values, spec.analysis)
        frames = {
            "latents": latents,
            "interventions": _interventions(model, tests, responses, found),
            "samples": _samples(model, tests),
        }
        examples, found_digits = corpus.examples(range(len(corpus))), None
        encoded = model.encode(examples)
        # A method that groups steps mixes their draws
        if encoded is not None and max(len(example.steps) for example in examples) < encoded.shape[1]:
            frames |= _draws(model, examples, encoded, tests[0], name)
            if (test := next(filter(is_summation, tests), None)) is not None:
                found_digits = _digits(model, examples, encoded, test, frames)
        files = {key: write_parquet(path.with_name(f"{key}.parquet"), frame) for key, frame in frames.items()}
        record = {
            "run": spec.id,
            "digest": spec.digest("analyse"),
            "weights_sha256": trained_weights(paths),
            "name": name,
            "source": source,
            "dimensions": values.shape[1],
            "active": int((found.frequency > 0).sum()),
            "frequent": found.frequent,
            "clique": found.clique,
            "encoding": found_digits,
            "files": files,
            "seconds": time.perf_counter() - clock,
            "environment": with_hardware(made),
        }
        write_json(path, record)
    return record


def _latents(
    model: TrainedModel, corpus: Corpus, tests: list[TestSet], responses: list[Responses], name: str
) -> tuple[pd.DataFrame, Literal["encoded", "drawn"]]:
    """Return one row per question and step with all values of that step, and their origin: training's encoding of the
    written steps of validation questions (as many as there are test questions), which is what the paper looks at, or
    draws for the test questions if a method encodes nothing."""
    count = min(len(corpus), sum(map(len, tests)))
    examples = corpus.examples(evenly(len(corpus), count))
    encoded = model.encode(examples)
    if encoded is not None:
        return _by_step("validation", [example.id for example in examples], encoded), "encoded"
    frames = [_by_step(test.name, test.ids, one.trace[name]) for test, one in zip(tests, responses, strict=True)]
    return pd.concat(frames, ignore_index=True), "drawn"


def _by_step(test: str, ids: Sequence[str], latents: np.ndarray) -> pd.DataFrame:
    rows, steps = latents.shape[:2]
    columns = {"test": test, "id": np.repeat(ids, steps), "step": np.tile(np.arange(1, steps + 1), rows)}
    return pd.DataFrame({**columns, "values": list(latents.reshape(rows * steps, -1))})


def _interventions(
    model: TrainedModel, tests: list[TestSet], responses: list[Responses], found: Patterns
) -> pd.DataFrame:
    """Return outputs without intervention, and with the clique at each value."""
    values = model.spec.analysis.values if found.clique else ()
    by_hand = [Intervention(tuple(found.clique), value) for value in values]
    frames = [output_frame(test, one).assign(setting="") for test, one in zip(tests, responses, strict=True)]
    count = len(by_hand) * sum(map(len, tests))
    with Progress(f"{model.spec.id} interventions", count) as progress:
        for one in by_hand:
            for test in tests:
                frame = outputs(model, test, one)
                frames.append(frame.assign(dims=",".join(map(str, one.dims)), value=one.value))
                progress.advance(len(test))
    columns = [*frames[0], "dims", "value"]  # also if no dimension is ever active, so nothing was set
    return pd.concat(frames, ignore_index=True).reindex(columns=columns)


def _samples(model: TrainedModel, tests: list[TestSet]) -> pd.DataFrame:
    """Return answers under many draws, by seed, and with the mean in place of a draw (seed :data:`MEAN`)."""
    spec = model.spec
    default = replace(model.decoding, answer_only=not reads_steps(test.name for test in tests))
    runs = [(seed, replace(default, seed=seed)) for seed in range(spec.analysis.samples)]
    runs.append((MEAN, replace(default, latents="mean")))
    frames = []
    with Progress(f"{spec.id} samples", len(runs) * sum(map(len, tests))) as progress:
        for seed, decoding in runs:
            for test in tests:
                texts = answer(model.method, model.tokenizer, test.questions, decoding, spec, progress)["text"]
                scores = score_texts(test, texts.tolist())
                columns = {"extracted": [one.extracted for one in scores], "correct": [one.correct for one in scores]}
                frames.append(pd.DataFrame({"test": test.name, "id": test.ids, "seed": seed, **columns}))
    return pd.concat(frames, ignore_index=True)


def _draws(
    model: TrainedModel, examples: Sequence[Example], latents: np.ndarray, test: TestSet, name: str
) -> dict[str, pd.DataFrame]:
    """Return what ``latents``, training's encoding of validation solutions, carry and do, and how the draws that a
    test's answers are made from are read."""
    scorer, text = scorer_of(model.spec.data.held_out), partial(decode, model.tokenizer)
    steps = solution_texts(examples, latents.shape[1], text)
    drawn = draws(scorer, steps, references(model, examples))
    answered = model.generate(test.questions, replace(model.decoding, tokens="greedy", latents="sample"), trace=True)
    return {
        "explained": explained(latents, examples, steps, drawn),
        "transplanted": transplanted(model, scorer, examples, latents, drawn),
        "reread": reread(model, test, answered, name),
    }


def _digits(
    model: TrainedModel,
    examples: Sequence[Example],
    latents: np.ndarray,
    test: TestSet,
    frames: dict[str, pd.DataFrame],
) -> dict[str, Any]:
    """Find out which dimension stands for which digit of Random Summation, and whether setting it, or the digit's whole
    code, steers. Return the result for the record, and add the frame ``encoding`` to ``frames``, and ``steering`` if
    some digit has a code. Validation data tell the dimensions: predicted latents are a blur of all ten."""
    text = partial(decode, model.tokenizer)
    digits = digits_of(examples, references(model, examples), text)
    explained = {
        "digit": explained_variance(latents, digits),
        "level": explained_variance(latents, levels_of(examples, text)),
    }
    encoded = encoding(latents, digits, model.spec.analysis.active_above)
    lines = [(digit, dim, float(value)) for digit, row in enumerate(encoded.matrix) for dim, value in enumerate(row)]
    frames["encoding"] = pd.DataFrame(lines, columns=["digit", "dim", "mean"])
    if (encoded.matrix > model.spec.analysis.active_above).any():
        frames["steering"] = steer(model, test, encoded, digits.shape[1] + 1)
    found = {"dims": encoded.dims, "values": encoded.values, "agreement": encoded.agreement, "explained": explained}
    return {"test": test.name, **found}
