"""The evaluate task: answers all tests under a run's decodings, scores the answers, and stores them with their text.

Answers are stored under a key of everything that decides them. After an edit of a scorer, or with one more decoding, a
model is therefore not asked again what it has already answered. If training has kept the weights of its stages, the
stages are evaluated as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.budgets import budget_of
from benchmarks.data import get_dataset, load_tokenizer, open_corpus, open_solutions, open_test
from benchmarks.data.corpus import spread_over
from benchmarks.environment import environment, with_hardware
from benchmarks.evaluation.inference import answer_tests, decoding_of, load_for_inference, nats_of
from benchmarks.files import BrokenRecord, json_digest, read_json, read_parquet, write_json, write_parquet
from benchmarks.models import kept_stages, trained_weights
from benchmarks.processes.locks import RunLock
from benchmarks.scoring.diversity import draw_statistics
from benchmarks.scoring.scorers import reads_steps, score_answers, versions
from benchmarks.studies.paths import DONE, Paths, at_stage
from benchmarks.studies.runs import RunSpec
from benchmarks.task_dependencies import CODE
from methods.base import Example, Method, Stage
from methods.errors import InputError
from methods.registry import code_digest

log = logging.getLogger(__name__)
ANSWER = ["test", "id", "seed", "text", "tokens", "forward_passes", "latent_steps", "latents_of", "with_own"]


@dataclass(frozen=True)
class AnswerSet:
    """The answers of a run under one decoding: rows as returned by :func:`answer_tests`, whether anything was drawn,
    and the environment in which the run answered."""

    rows: pd.DataFrame
    stochastic: bool
    environment: dict[str, Any]


class Evaluation:
    """A trained run, or its state after one stage (given by its number), and its tests. The method is loaded only if
    something is left to answer."""

    def __init__(self, spec: RunSpec, results: Path, made: dict[str, Any], number: int | None = None) -> None:
        self.spec, self.results, self.paths, self.number = spec, results, Paths(results, spec), number
        self.made = made  # the environment at the beginning of the work
        self._loaded: tuple[Mapping[str, Any], Method] | None = None
        self.weights = trained_weights(self.paths, number)
        self.tests = {name: open_test(self.paths.data, name) for name in spec.evaluation.tests}

    def method(self, decoding: str = "default") -> Method:
        """Return the method that answers under a decoding. One is in memory at a time: it stays until a decoding has
        other options."""
        options = self.spec.evaluation.decodings[decoding].options
        if self._loaded is None or self._loaded[0] != options:
            self._loaded = None
            self._loaded = options, load_for_inference(self.spec, self.results, self.number, decoding)
        return self._loaded[1]

    def stage_end(self) -> dict[str, Any]:
        """Return the name of the last stage that trained these weights, and the run's steps and
        epochs up to its end."""
        stages = read_json(self.paths.record("train"))["stages"]
        done = stages if self.number is None else stages[: self.number + 1]
        totals = {name: sum(stage[name] for stage in done) for name in ("steps", "epochs")}
        return {"name": done[-1]["name"], **totals}

    @cached_property
    def stage(self) -> Stage | None:
        """The stage whose way of answering the method uses; None for that of its last stage."""
        if self.number is None:
            return None
        budget = budget_of(self.spec.training, open_corpus(self.paths.data, "train"))
        return self.method().stages(budget)[self.number]

    def key(self, decoding: str) -> str:
        """Return a digest of everything that decides the answers under a decoding."""
        asked = self.spec.evaluation
        alone = asked.model_copy(update={"decodings": {decoding: asked.decodings[decoding]}, "nats": 0})
        digests = read_json(self.paths.data / DONE)["digests"]
        parts = [
            self.spec.model_copy(update={"evaluation": alone}).digest("evaluate"),
            code_digest(self.spec.method, *CODE["answer"]),
            self.weights,
            [digests[f"{test}/test"] for test in self.tests],
            reads_steps(self.tests),
        ]
        return json_digest(parts)

    def name(self, decoding: str) -> str:
        """Return the name that answers under a decoding are stored under."""
        return decoding if self.number is None else at_stage(self.number)

    def stored_answers(self, decoding: str) -> AnswerSet | None:
        """Return the stored answers under a decoding, or None if there are none from the same
        weights, settings and code."""
        path = self.paths.predictions(self.name(decoding))
        try:
            proof = read_json(path.with_suffix(".json"))
            if proof["key"] != self.key(decoding):
                return None
            rows = read_parquet(path, proof["sha256"], "`evaluate`", ANSWER)
        except BrokenRecord:
            return None
        log.warning(
            "%s: its answers (%s) are there and only scored; to answer again, remove %s", self.spec.id, path.stem, path
        )
        return AnswerSet(rows, proof["stochastic"], proof["environment"])

    def answer(self, decoding: str) -> AnswerSet:
        """Let the method answer all tests under a decoding."""
        settings, evaluation, stage = self.spec.evaluation.decodings[decoding], self.spec.evaluation, self.stage
        method = self.method(decoding)
        stochastic = method.stochastic(decoding_of(settings, evaluation, 0))
        seeds, answer_only = range(settings.seeds if stochastic else 1), not reads_steps(self.tests)
        decodings = [decoding_of(settings, evaluation, seed, answer_only, stage) for seed in seeds]
        tokenizer, note = load_tokenizer(self.paths.data), f"{decoding}, {stage.name}" if stage else decoding
        solutions = self.solutions() if settings.latents == "encoded" else None
        rows = answer_tests(method, tokenizer, self.tests, decodings, self.spec, note, solutions)
        return AnswerSet(rows, stochastic, with_hardware(self.made))

    def solutions(self) -> dict[str, list[Example]]:
        """Return the tests' solutions, whose steps can be encoded. Raise :class:`InputError` if a test has none."""
        found = {name: open_solutions(self.paths.data, name) for name in self.tests}
        for name, examples in found.items():
            if not any(example.steps for example in examples) and not get_dataset(name).card.stepless:
                raise InputError(
                    f"{self.spec.id}: {name} has no written steps as {self.spec.data.form}, which `latents: encoded` "
                    "takes: leave that decoding out, or the test set in the block's `tests`"
                )
        return found

    def score_validation(self) -> str:
        """Write the nats of the validation rows that the study asks for. Return the SHA-256 of the file."""
        corpus = open_corpus(self.paths.data, "validation")
        examples = corpus.examples(spread_over(len(corpus), self.spec.evaluation.nats))
        return write_parquet(self.paths.nats, nats_of(self.method(), examples, self.spec))

    def evaluate(self, decoding: str) -> tuple[dict[str, Any], str, dict[str, Any] | None]:
        """Score the answers under a decoding, which are asked for unless they are stored. Write the predictions, and
        beside them the key that proves their origin. Return the scores, the SHA-256 of the predictions, and the
        environment in which they were answered, if they were only scored again."""
        stored = self.stored_answers(decoding)
        answered = stored or self.answer(decoding)
        frame, path = score_answers(answered.rows, self.tests), self.paths.predictions(self.name(decoding))
        digest = write_parquet(path, frame)
        origin = {"stochastic": answered.stochastic, "environment": answered.environment}
        write_json(path.with_suffix(".json"), {"key": self.key(decoding), "sha256": digest, **origin})
        scores = {
            "stage": self.stage_end(),
            "decoding": self.spec.evaluation.decodings[decoding].model_dump(mode="json"),
            "stochastic": answered.stochastic,
            "seeds": [int(seed) for seed in frame["seed"].unique()],
            "tests": {test: summary(frame.loc[frame["test"] == test]) for test in self.tests},
        }
        return scores, digest, stored.environment if stored else None


def evaluate(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Evaluate a trained run. Return its record."""
    torch.set_num_threads(spec.threads)
    clock, paths, made = time.perf_counter(), Paths(results, spec), environment(spec.method)
    with RunLock(paths.answers):  # not the whole run: it may be timed or analysed meanwhile
        scores, predictions, answered, nats = {}, {}, {}, None
        for number in (None, *kept_stages(paths)):  # the final weights, then those of stages
            evaluation = Evaluation(spec, results, made, number)
            for decoding in spec.evaluation.decodings if number is None else ("default",):
                name = evaluation.name(decoding)
                scores[name], predictions[name], earlier = evaluation.evaluate(decoding)
                if earlier:
                    answered[name] = earlier
            if number is None and spec.evaluation.nats:
                nats = evaluation.score_validation()
        record = {
            "run": spec.id,
            "digest": spec.digest("evaluate"),
            "weights_sha256": trained_weights(paths),
            "scorers": versions(spec.evaluation.tests),
            "decodings": scores,
            "predictions": predictions,
            "answered": answered,
            "nats": nats,
            "seconds": time.perf_counter() - clock,
            "environment": with_hardware(made),
        }
        write_json(paths.record("evaluate"), record)
    return record


def summary(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the scores of one test set under one decoding (a number per seed) and the mean costs per question."""
    return {
        **means(frame),
        "forward_passes_per_question": frame["forward_passes"].mean().item(),
        "latent_steps": frame["latent_steps"].mean().item(),
        "tokens_per_question": frame["tokens"].mean().item(),
        "draws": draw_statistics(frame),
    }


def means(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the part of a summary that one test set's predictions alone decide.

    ``follows``: how many answers are what the question whose latents they were given is answered. ``n_distinct``: the
    number of different questions by :attr:`TestSet.same_as`, or by id in older predictions, which lack it.
    ``deduplicated``: the accuracy without the questions that are in the training data (repetitions within the test set
    stay)."""
    new = frame.loc[~frame.overlap.astype(bool)]
    return {
        "n": int((frame.seed == 0).sum()),
        "n_distinct": len(set(frame["same_as" if "same_as" in frame else "id"])),
        "n_deduplicated": int((new.seed == 0).sum()),
        "accuracy": per_seed(frame.correct, frame.seed),
        "strict": per_seed(frame.strict, frame.seed),
        "no_answer": per_seed(frame.extracted.isna(), frame.seed),
        "deduplicated": per_seed(new.correct, new.seed) if len(new) else None,
        **({"follows": per_seed(frame.follows, frame.seed)} if "follows" in frame else {}),
    }


def per_seed(values: pd.Series, seeds: pd.Series) -> list[float]:
    """Return the mean of values for each decoding seed."""
    return [float(value) for value in values.groupby(seeds).agg("mean")]
