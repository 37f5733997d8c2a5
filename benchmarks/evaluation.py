"""The evaluate stage: every question answered by every decoding, scored, and kept with its text.

A question that is in several test sets is answered once. Questions are answered in order of length, which must make no
difference to a method: the conformance tests check that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from benchmarks.casting import answer_for_good
from benchmarks.data import TestSet, decode, load_tokenizer, open_test
from benchmarks.diversity import draw_statistics
from benchmarks.engine import autocast, pick_device
from benchmarks.environment import ended, environment
from benchmarks.files import write_json, write_parquet
from benchmarks.locks import RunLock
from benchmarks.models import trained_method, trained_weights
from benchmarks.paths import Paths
from benchmarks.progress import Progress
from benchmarks.runs import RunSpec
from benchmarks.scoring import Asked, Scorer
from benchmarks.scoring.by_test import reads_steps, scorers_of
from benchmarks.specs import DecodingSpec, EvaluationSpec
from methods.base import Method
from methods.generation import Decoding, Generation


@dataclass
class Answers:
    """Answers to distinct questions: their texts (a line for each step that is said) and tokens, end-of-text included;
    and the backbone passes and mean latent steps of each question's batch."""

    texts: list[str]
    tokens: np.ndarray
    forward_passes: np.ndarray
    latent_steps: np.ndarray


def decoding_of(spec: DecodingSpec, evaluation: EvaluationSpec, seed: int, answer_only: bool = True) -> Decoding:
    return Decoding(
        tokens=spec.tokens,
        latents=spec.latents,
        thoughts=spec.thoughts,
        temperature=spec.temperature,
        top_p=spec.top_p,
        seed=seed,
        max_new_tokens=evaluation.max_new_tokens,
        answer_only=answer_only,
    )


def batches_by_length(questions: Sequence[Sequence[int]], batch_size: int) -> Iterator[np.ndarray]:
    """Indices of batches of about equal length, longest first, so that memory runs out at once if it does. No batch of
    one is left over (unless all are of one): the control `exchanged` needs another question's latents."""
    order = np.argsort([-len(question) for question in questions], kind="stable")
    starts = [start for start in range(batch_size, len(order), batch_size) if len(order) - start > 1 or batch_size == 1]
    yield from np.split(order, starts)


def answering_method(spec: RunSpec, results: Path) -> Method:
    """A trained run's method on the device that answers, for answers alone: its weights are cast once, and stay where
    they are, so that CUDA graphs of them do too."""
    method = trained_method(spec, results).to(pick_device())
    answer_for_good(method, spec.engine)
    return method


@torch.no_grad()
def generate(method: Method, questions: Sequence[Sequence[int]], decoding: Decoding, precision: str) -> Generation:
    with autocast(method.device, precision):
        return method.generate(questions, decoding)


def generated(
    method: Method, questions: Sequence[Sequence[int]], decoding: Decoding, spec: RunSpec
) -> Iterator[tuple[np.ndarray, Generation]]:
    """Answers to all questions, batch by batch, each with the indices of its questions."""
    for indices in batches_by_length(questions, spec.evaluation.batch_size):
        yield indices, generate(method, [questions[i] for i in indices], decoding, spec.engine.precision)


def said_ids(generation: Generation) -> Tensor:
    """(B, K, L) ids of all that is said, the answer last, on the CPU; K is 1 where that is the answer alone."""
    return (generation.answer[:, None] if generation.steps is None else generation.steps).cpu()


def answer(
    method: Method,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[list[int]],
    decoding: Decoding,
    spec: RunSpec,
    progress: Progress,
) -> Answers:
    """Answer all questions, in their order."""
    count, eos = len(questions), method.vocabulary.eos
    answers = Answers([""] * count, *(np.zeros(count, dtype) for dtype in (np.int64, np.int64, np.float64)))
    for indices, generation in generated(method, questions, decoding, spec):
        ids = said_ids(generation)
        for index, said in zip(indices, ids.tolist(), strict=True):
            answers.texts[index] = "\n".join(decode(tokenizer, part) for part in said)
        written = (ids != eos).sum(2)
        answers.tokens[indices] = (written + (written < ids.shape[2])).sum(1).numpy()  # end-of-text is a token too
        answers.forward_passes[indices] = generation.cost.forward_passes
        answers.latent_steps[indices] = generation.cost.latent_steps
        progress.advance(len(indices))
    return answers


def evaluate(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Evaluate a trained run; returns its record."""
    torch.set_num_threads(spec.threads)
    made, clock, paths = environment(spec.method), time.perf_counter(), Paths(results, spec)
    with RunLock(paths.run):
        method = answering_method(spec, results)
        tokenizer = load_tokenizer(paths.data)
        tests = {name: open_test(paths.data, name) for name in spec.evaluation.tests}
        decodings, digests = {}, {}
        for name in spec.evaluation.decodings:
            decodings[name], frame = decoded(name, method, tokenizer, tests, spec)
            digests[name] = write_parquet(paths.predictions(name), frame)
        record = {
            "run": spec.id,
            "digest": spec.digest("evaluate"),
            "weights_sha256": trained_weights(paths),
            "decodings": decodings,
            "predictions": digests,
            "seconds": time.perf_counter() - clock,
            "environment": ended(made),
        }
        write_json(paths.record("evaluate"), record)
    return record


def decoded(
    name: str, method: Method, tokenizer: PreTrainedTokenizerBase, tests: dict[str, TestSet], spec: RunSpec
) -> tuple[dict[str, Any], pd.DataFrame]:
    """All tests answered under one decoding: what is recorded of it, and its predictions."""
    settings, scorers = spec.evaluation.decodings[name], scorers_of(tests)
    stochastic = method.stochastic(decoding_of(settings, spec.evaluation, 0))
    seeds = list(range(settings.seeds if stochastic else 1))
    asked = [decoding_of(settings, spec.evaluation, seed, answer_only=not reads_steps(tests)) for seed in seeds]
    place, questions = distinct_questions(tests)
    with Progress(f"{spec.id} answers ({name})", len(seeds) * len(questions)) as progress:
        by_seed = [answer(method, tokenizer, questions, how, spec, progress) for how in asked]
    frames = [scored(tests, scorers, place, answers, seed) for seed, answers in zip(seeds, by_seed, strict=True)]
    frame = pd.concat(frames, ignore_index=True)
    record = {
        "decoding": settings.model_dump(mode="json"),
        "stochastic": stochastic,
        "seeds": seeds,
        "tests": {test: summary(frame.loc[frame.test == test], place[test], by_seed) for test in tests},
    }
    return record, frame


def distinct_questions(tests: dict[str, TestSet]) -> tuple[dict[str, np.ndarray], list[list[int]]]:
    """All distinct questions, and for each test set the index of each of its questions among them."""
    known: dict[str, int] = {}
    questions: list[list[int]] = []
    place = {}
    for name, test in tests.items():
        for text, ids in zip(test.texts, test.questions, strict=True):
            if known.setdefault(text, len(questions)) == len(questions):
                questions.append(ids)
        place[name] = np.array([known[text] for text in test.texts])
    return place, questions


def scored(
    tests: dict[str, TestSet],
    scorers: dict[str, Scorer],
    place: dict[str, np.ndarray],
    answers: Answers,
    seed: int,
) -> pd.DataFrame:
    """One row per test question."""
    rows = []
    for name, test in tests.items():
        for i, at in enumerate(place[name]):
            asked, said = Asked(test.texts[i], test.answers[i], test.n_steps[i]), answers.texts[at]
            result = scorers[name].score(said, asked)
            rows.append((name, test.ids[i], seed, said, result.extracted, asked.answer, result.correct, result.strict,
                         test.overlap[i], int(answers.tokens[at]), asked.steps, list(result.draws),
                         list(scorers[name].choices(asked))))  # fmt: skip
    columns = ["test", "id", "seed", "text", "extracted", "gold", "correct", "strict", "overlap", "tokens", "n_steps"]
    return pd.DataFrame(rows, columns=[*columns, "draws", "choices"]).astype({"n_steps": "Int64"})


def summary(frame: pd.DataFrame, place: np.ndarray, by_seed: list[Answers]) -> dict[str, Any]:
    """Scores of one test set under one decoding, a number per seed, and mean costs per question."""
    return {
        "n": len(place),
        "n_distinct": len(np.unique(place)),
        **means(frame),
        "forward_passes_per_question": float(np.mean([answers.forward_passes[place] for answers in by_seed])),
        "latent_steps": float(np.mean([answers.latent_steps[place] for answers in by_seed])),
        "tokens_per_question": float(np.mean([answers.tokens[place] for answers in by_seed])),
        "draws": draw_statistics(frame),
    }


def means(frame: pd.DataFrame) -> dict[str, Any]:
    """What a summary says of one test set's predictions alone; ``deduplicated`` leaves out questions that are in the
    training data."""
    new = frame.loc[~frame.overlap.astype(bool)]
    return {
        "n": int((frame.seed == 0).sum()),
        "n_deduplicated": int((new.seed == 0).sum()),
        "accuracy": per_seed(frame, frame.correct),
        "strict": per_seed(frame, frame.strict),
        "no_answer": per_seed(frame, frame.extracted.isna()),
        "deduplicated": per_seed(new, frame.correct) if len(new) else None,
    }


def per_seed(rows: pd.DataFrame, column: pd.Series) -> list[float]:
    """The mean of a column over some rows, for each decoding seed."""
    return [float(value) for value in column.loc[rows.index].groupby(rows.seed).mean()]
