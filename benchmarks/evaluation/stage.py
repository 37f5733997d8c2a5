"""The evaluate stage: all that a run answers under its decodings, scored, and kept with its text.

Answers are kept under a key of all that decides them. So an edit of a scorer, and one decoding more, do not ask a model
again what it has answered.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.code import CODE
from benchmarks.data import load_tokenizer, open_test
from benchmarks.environment import ended, environment
from benchmarks.evaluation.answering import answer_tests, answering_method, decoding_of
from benchmarks.files import BrokenRecord, read_json, read_parquet, write_json, write_parquet
from benchmarks.locks import RunLock
from benchmarks.models import trained_weights
from benchmarks.scoring.by_test import reads_steps, scored
from benchmarks.scoring.diversity import draw_statistics
from benchmarks.studies.paths import DONE, Paths
from benchmarks.studies.runs import RunSpec
from methods.base import Method
from methods.registry import code_digest

log = logging.getLogger(__name__)
ANSWER = ["test", "id", "seed", "text", "tokens", "forward_passes", "latent_steps"]


@dataclass(frozen=True)
class Answered:
    """What a run said under one decoding: rows as :func:`answer_tests` makes them, whether anything was drawn, and
    where it was said."""

    rows: pd.DataFrame
    stochastic: bool
    environment: dict[str, Any]


class Evaluation:
    """One trained run and its tests. Its method is loaded when something is left to answer."""

    def __init__(self, spec: RunSpec, results: Path) -> None:
        self.spec, self.results, self.paths = spec, results, Paths(results, spec)
        self.made = environment(spec.method)
        self.weights = trained_weights(self.paths)
        self.tests = {name: open_test(self.paths.data, name) for name in spec.evaluation.tests}

    @cached_property
    def method(self) -> Method:
        return answering_method(self.spec, self.results)

    def key(self, name: str) -> str:
        """A digest of all that decides what is said under a decoding."""
        asked = self.spec.evaluation
        alone = asked.model_copy(update={"decodings": {name: asked.decodings[name]}})
        digests = read_json(self.paths.data / DONE)["digests"]
        parts = [
            self.spec.model_copy(update={"evaluation": alone}).digest("evaluate"),
            code_digest(self.spec.method, *CODE["answer"]),
            self.weights,
            [digests[f"{test}/test"] for test in self.tests],
            reads_steps(self.tests),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def kept(self, name: str) -> Answered | None:
        """What was answered under a decoding already, by the same weights and code."""
        path = self.paths.predictions(name)
        try:
            proof = read_json(path.with_suffix(".json"))
            if proof["key"] != self.key(name):
                return None
            rows = read_parquet(path, proof["sha256"], "`evaluate`", ANSWER)
        except BrokenRecord:
            return None
        log.warning(
            "%s: its answers (%s) are there and only scored; to answer again, remove %s", self.spec.id, name, path
        )
        return Answered(rows, proof["stochastic"], proof["environment"])

    def asked(self, name: str) -> Answered:
        """What the method answers under a decoding."""
        settings, evaluation = self.spec.evaluation.decodings[name], self.spec.evaluation
        stochastic = self.method.stochastic(decoding_of(settings, evaluation, 0))
        seeds, answer_only = range(settings.seeds if stochastic else 1), not reads_steps(self.tests)
        decodings = [decoding_of(settings, evaluation, seed, answer_only) for seed in seeds]
        tokenizer = load_tokenizer(self.paths.data)
        rows = answer_tests(self.method, tokenizer, self.tests, decodings, self.spec, name)
        return Answered(rows, stochastic, ended(self.made))

    def keep(self, name: str, answered: Answered, frame: pd.DataFrame) -> str:
        """Write predictions, and what proves where they are from; returns the former's SHA-256."""
        path = self.paths.predictions(name)
        digest = write_parquet(path, frame)
        said = {"stochastic": answered.stochastic, "environment": answered.environment}
        write_json(path.with_suffix(".json"), {"key": self.key(name), "sha256": digest, **said})
        return digest


def evaluate(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Evaluate a trained run; returns its record."""
    torch.set_num_threads(spec.threads)
    clock, paths = time.perf_counter(), Paths(results, spec)
    with RunLock(paths.run):
        work = Evaluation(spec, results)
        decodings, digests, earlier = {}, {}, {}
        for name, settings in spec.evaluation.decodings.items():
            if kept := work.kept(name):
                earlier[name] = kept.environment
            answered = kept or work.asked(name)
            frame = scored(answered.rows, work.tests)
            digests[name] = work.keep(name, answered, frame)
            decodings[name] = {
                "decoding": settings.model_dump(mode="json"),
                "stochastic": answered.stochastic,
                "seeds": [int(seed) for seed in frame["seed"].unique()],
                "tests": {test: summary(frame.loc[frame["test"] == test]) for test in work.tests},
            }
        record = {
            "run": spec.id,
            "digest": spec.digest("evaluate"),
            "weights_sha256": work.weights,
            "decodings": decodings,
            "predictions": digests,
            "answered": earlier,
            "seconds": time.perf_counter() - clock,
            "environment": ended(work.made),
        }
        write_json(paths.record("evaluate"), record)
    return record


def summary(frame: pd.DataFrame) -> dict[str, Any]:
    """Scores of one test set under one decoding, a number per seed, and mean costs per question."""
    return {
        **means(frame),
        "forward_passes_per_question": frame["forward_passes"].mean().item(),
        "latent_steps": frame["latent_steps"].mean().item(),
        "tokens_per_question": frame["tokens"].mean().item(),
        "draws": draw_statistics(frame),
    }


def means(frame: pd.DataFrame) -> dict[str, Any]:
    """What a summary says of one test set's predictions alone. ``n_distinct``: see :attr:`TestSet.same_as`, which older
    predictions lack; ``deduplicated`` leaves out questions that are in the training data (not those that the test set
    repeats)."""
    new = frame.loc[~frame.overlap.astype(bool)]
    return {
        "n": int((frame.seed == 0).sum()),
        "n_distinct": len(set(frame["same_as" if "same_as" in frame else "id"])),
        "n_deduplicated": int((new.seed == 0).sum()),
        "accuracy": per_seed(frame, frame.correct),
        "strict": per_seed(frame, frame.strict),
        "no_answer": per_seed(frame, frame.extracted.isna()),
        "deduplicated": per_seed(new, frame.correct) if len(new) else None,
    }


def per_seed(rows: pd.DataFrame, column: pd.Series) -> list[float]:
    """The mean of a column over some rows, for each decoding seed."""
    return [float(value) for value in column.loc[rows.index].groupby(rows.seed).mean()]
