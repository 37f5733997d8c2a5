"""The evaluate stage: every question answered by every decoding, scored, and kept with its text.

A question that stands in several test sets is answered once. Questions are answered in order of length; a method
must not care, and the conformance tests see to it.
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
from transformers import PreTrainedTokenizerBase

from benchmarks.data import TestSet, decode, load_tokenizer, open_test
from benchmarks.engine import autocast, pick_device
from benchmarks.environment import environment, now
from benchmarks.files import replacing, sha256, write_json
from benchmarks.locks import RunLock
from benchmarks.models import Paths, trained_method
from benchmarks.progress import Progress
from benchmarks.scoring import score
from benchmarks.specs import DecodingSpec, EvaluationSpec, RunSpec
from methods.base import Decoding, Generation, Method


@dataclass
class Answers:
    """Answers to distinct questions: text, tokens, and the backbone passes and latent steps of the batch of each."""

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
    """Indices of batches of about equal length, longest first, so that memory runs out at once if it does."""
    order = np.argsort([-len(question) for question in questions], kind="stable")
    yield from (order[start : start + batch_size] for start in range(0, len(order), batch_size))


@torch.no_grad()
def generate(method: Method, questions: Sequence[Sequence[int]], decoding: Decoding, precision: str) -> Generation:
    with autocast(method.device, precision):
        return method.generate(questions, decoding)


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
    answers = Answers([""] * count, *(np.zeros(count, dtype=np.int64) for _ in range(3)))
    for indices in batches_by_length(questions, spec.evaluation.batch_size):
        generation = generate(method, [questions[i] for i in indices], decoding, spec.engine.precision)
        ids = generation.answer.cpu()
        for index, row in zip(indices, ids.tolist(), strict=True):
            answers.texts[index] = decode(tokenizer, row)
        written = (ids != eos).sum(1)
        answers.tokens[indices] = (written + (written < ids.shape[1])).numpy()  # end-of-text is a token too
        answers.forward_passes[indices] = generation.cost.forward_passes
        answers.latent_steps[indices] = generation.cost.latent_steps
        progress.advance(len(indices))
    return answers


def evaluate(spec: RunSpec, results: Path) -> dict[str, Any]:
    """Evaluate a trained run; returns its record."""
    torch.set_num_threads(spec.threads)
    started, clock, paths = now(), time.perf_counter(), Paths(results, spec)
    with RunLock(paths.run):
        method = trained_method(spec, results).to(pick_device())
        tokenizer = load_tokenizer(paths.data)
        tests = {name: open_test(paths.data, name) for name in spec.evaluation.tests}
        place, questions = distinct_questions(tests)
        decodings, digests = {}, {}
        for name, decoding in spec.evaluation.decodings.items():
            stochastic = method.stochastic(decoding_of(decoding, spec.evaluation, 0))
            seeds = list(range(decoding.seeds if stochastic else 1))
            frames, costs = [], []
            with Progress(f"{spec.id} answers ({name})", len(seeds) * len(questions)) as progress:
                for seed in seeds:
                    how = decoding_of(decoding, spec.evaluation, seed)
                    answers = answer(method, tokenizer, questions, how, spec, progress)
                    costs.append(answers)
                    frames.append(scored(tests, place, answers, seed))
            frame = pd.concat(frames, ignore_index=True)
            digests[name] = write_predictions(paths.run / "predictions" / f"{name}.parquet", frame)
            decodings[name] = {
                "decoding": decoding.model_dump(mode="json"),
                "stochastic": stochastic,
                "seeds": seeds,
                "tests": {test: summary(frame.loc[frame.test == test], place[test], costs) for test in tests},
            }
        record = {
            "run": spec.id,
            "digest": spec.digest("evaluate"),
            "decodings": decodings,
            "predictions": digests,
            "seconds": time.perf_counter() - clock,
            "environment": environment(started),
        }
        write_json(paths.run / "evaluate.json", record)
    return record


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


def scored(tests: dict[str, TestSet], place: dict[str, np.ndarray], answers: Answers, seed: int) -> pd.DataFrame:
    """One row per test question."""
    rows = []
    for name, test in tests.items():
        for index, gold, at, overlap, steps in zip(
            test.ids, test.answers, place[name], test.overlap, test.n_steps, strict=True
        ):
            result = score(answers.texts[at], gold)
            rows.append((name, index, seed, answers.texts[at], result.extracted, gold, result.correct, result.strict,
                         overlap, int(answers.tokens[at]), steps))  # fmt: skip
    columns = ["test", "id", "seed", "text", "extracted", "gold", "correct", "strict", "overlap", "tokens", "n_steps"]
    return pd.DataFrame(rows, columns=columns).astype({"n_steps": "Int64"})


def summary(frame: pd.DataFrame, place: np.ndarray, costs: list[Answers]) -> dict[str, Any]:
    """Scores of one test set under one decoding, a number per seed, and mean costs per question."""
    new = frame.loc[~frame.overlap.astype(bool)]

    def per_seed(rows: pd.DataFrame, column: pd.Series) -> list[float]:
        return [float(value) for value in column.loc[rows.index].groupby(rows.seed).mean()]

    return {
        "n": len(place),
        "n_distinct": len(np.unique(place)),
        "n_deduplicated": int((new.seed == 0).sum()),
        "accuracy": per_seed(frame, frame.correct),
        "strict": per_seed(frame, frame.strict),
        "no_answer": per_seed(frame, frame.extracted.isna()),
        "deduplicated": per_seed(new, frame.correct) if len(new) else None,
        "forward_passes_per_question": float(np.mean([cost.forward_passes[place] for cost in costs])),
        "latent_steps": float(np.mean([cost.latent_steps[place] for cost in costs])),
        "tokens_per_question": float(np.mean([cost.tokens[place] for cost in costs])),
    }


def write_predictions(path: Path, frame: pd.DataFrame) -> str:
    with replacing(path) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")
    return sha256(path)
