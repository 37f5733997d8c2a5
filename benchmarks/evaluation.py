"""The evaluate stage: every question answered by every decoding, scored, and kept with its text.

A question that stands in several test sets is answered once. Questions are answered in order of length; a method
must not care, and the conformance tests see to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from benchmarks.casting import cast_linears
from benchmarks.data import DataError, TestSet, decode, get_dataset, load_tokenizer, open_test
from benchmarks.diversity import draw_statistics
from benchmarks.engine import autocast, pick_device
from benchmarks.environment import environment, now
from benchmarks.files import replacing, sha256, write_json
from benchmarks.locks import RunLock
from benchmarks.models import trained_method, trained_weights
from benchmarks.paths import Paths
from benchmarks.progress import Progress
from benchmarks.scoring import SCORERS, Asked, Scorer
from benchmarks.specs import DecodingSpec, EvaluationSpec, RunSpec
from methods.base import Decoding, Generation, Method


@dataclass
class Answers:
    """Answers to distinct questions: text (a line for each step that is said), tokens, and the backbone passes and
    mean latent steps of the batch of each."""

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
    """Indices of batches of about equal length, longest first, so that memory runs out at once if it does. None is left
    alone behind full batches: a control gives it the latents of another."""
    order = np.argsort([-len(question) for question in questions], kind="stable")
    starts = [start for start in range(batch_size, len(order), batch_size) if len(order) - start > 1 or batch_size == 1]
    yield from np.split(order, starts)


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
    answers = Answers([""] * count, *(np.zeros(count, dtype) for dtype in (np.int64, np.int64, np.float64)))
    for indices in batches_by_length(questions, spec.evaluation.batch_size):
        generation = generate(method, [questions[i] for i in indices], decoding, spec.engine.precision)
        ids = (generation.answer[:, None] if generation.steps is None else generation.steps).cpu()  # (B, K, L)
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
    started, clock, paths = now(), time.perf_counter(), Paths(results, spec)
    with RunLock(paths.run):
        method = trained_method(spec, results).to(pick_device())
        tokenizer = load_tokenizer(paths.data)
        tests = {name: open_test(paths.data, name) for name in spec.evaluation.tests}
        scorers = scorers_of(tests)
        answer_only = not any(scorer.reads_steps for scorer in scorers.values())
        place, questions = distinct_questions(tests)
        decodings, digests = {}, {}
        for name, decoding in spec.evaluation.decodings.items():
            stochastic = method.stochastic(decoding_of(decoding, spec.evaluation, 0))
            seeds = list(range(decoding.seeds if stochastic else 1))
            frames, costs = [], []
            label = f"{spec.id} answers ({name})"
            with (
                Progress(label, len(seeds) * len(questions)) as progress,
                cast_linears(method, spec.engine.precision),
            ):
                for seed in seeds:
                    how = decoding_of(decoding, spec.evaluation, seed, answer_only)
                    answers = answer(method, tokenizer, questions, how, spec, progress)
                    costs.append(answers)
                    frames.append(scored(tests, scorers, place, answers, seed))
            frame = pd.concat(frames, ignore_index=True)
            digests[name] = write_predictions(paths.predictions(name), frame)
            decodings[name] = {
                "decoding": decoding.model_dump(mode="json"),
                "stochastic": stochastic,
                "seeds": seeds,
                "tests": {test: summary(frame.loc[frame.test == test], place[test], costs) for test in tests},
            }
        record = {
            "run": spec.id,
            "digest": spec.digest("evaluate"),
            "weights_sha256": trained_weights(paths),
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


def scorers_of(tests: Iterable[str]) -> dict[str, Scorer]:
    """What each test is scored by, as its card names it. They are asked together, so all must read the same."""
    scorers = {name: SCORERS[get_dataset(name).card.scorer] for name in tests}
    if len({scorer.reads_steps for scorer in scorers.values()}) > 1:
        raise DataError(
            f"of the tests {', '.join(scorers)} some are scored by their steps and some are not: give each kind a "
            "block of its own (`tests` of the block)"
        )
    return scorers


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


def summary(frame: pd.DataFrame, place: np.ndarray, costs: list[Answers]) -> dict[str, Any]:
    """Scores of one test set under one decoding, a number per seed, and mean costs per question."""
    new = frame.loc[~frame.overlap.astype(bool)]
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
        "draws": draw_statistics(frame),
    }


def per_seed(rows: pd.DataFrame, column: pd.Series) -> list[float]:
    """The mean of a column over some rows, for each decoding seed."""
    return [float(value) for value in column.loc[rows.index].groupby(rows.seed).mean()]


def write_predictions(path: Path, frame: pd.DataFrame) -> str:
    with replacing(path) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")
    return sha256(path)
