"""How a trained run answers: every question once under each decoding and seed.

A question that is in several test sets is answered once. Questions are answered in order of length, which must make no
difference to a method: the conformance tests check that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from benchmarks.data import TestSet, decode
from benchmarks.engine import autocast, pick_device
from benchmarks.evaluation.casting import answer_for_good
from benchmarks.models import trained_method
from benchmarks.out_of_memory import memory_for_answers
from benchmarks.progress import Progress
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import DecodingSpec, EvaluationSpec
from methods.base import Method, Stage
from methods.generation import Decoding, Generation, InterventionError


@dataclass
class Answers:
    """Answers to distinct questions: their texts (a line for each step that is said) and tokens, end-of-text included;
    and the backbone passes and mean latent steps of each question's batch."""

    texts: list[str]
    tokens: np.ndarray
    forward_passes: np.ndarray
    latent_steps: np.ndarray


def decoding_of(
    spec: DecodingSpec, evaluation: EvaluationSpec, seed: int, answer_only: bool = True, stage: Stage | None = None
) -> Decoding:
    return Decoding(
        tokens=spec.tokens,
        latents=spec.latents,
        thoughts=spec.thoughts,
        temperature=spec.temperature,
        top_p=spec.top_p,
        seed=seed,
        max_new_tokens=evaluation.max_new_tokens,
        answer_only=answer_only,
        stage=stage,
    )


def batches_by_length(questions: Sequence[Sequence[int]], batch_size: int) -> Iterator[np.ndarray]:
    """Indices of batches of about equal length, longest first, so that memory runs out at once if it does. No batch of
    one is left over (unless all are of one): the control `exchanged` needs another question's latents."""
    order = np.argsort([-len(question) for question in questions], kind="stable")
    starts = [start for start in range(batch_size, len(order), batch_size) if len(order) - start > 1 or batch_size == 1]
    yield from np.split(order, starts)


def answering_method(spec: RunSpec, results: Path, stage: int | None = None) -> Method:
    """A trained run's method, perhaps as a stage left it, on the device that answers, for answers alone: its weights
    are cast once, and stay where they are, so that CUDA graphs of them do too."""
    method = trained_method(spec, results, stage).to(pick_device())
    answer_for_good(method, spec.engine)
    return method


@torch.no_grad()
def generate(method: Method, questions: Sequence[Sequence[int]], decoding: Decoding, precision: str) -> Generation:
    if decoding.interventions and method.steerable_latents(method.options) is None:
        raise InterventionError(f"{method.title} (options: {method.options}) has no latents that can be set by hand")
    asked = memory_for_answers(len(questions), max(map(len, questions)))
    with asked, autocast(method.device, precision):
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


def answer_tests(
    method: Method,
    tokenizer: PreTrainedTokenizerBase,
    tests: Mapping[str, TestSet],
    decodings: Sequence[Decoding],
    spec: RunSpec,
    note: str,
) -> pd.DataFrame:
    """All tests answered under each of some decodings, which differ in their seed: a row per seed, test and question
    (columns test, id, seed, text, tokens, forward_passes, latent_steps). ``note``: what is shown meanwhile."""
    place, questions = distinct_questions(tests)
    frames = []
    with Progress(f"{spec.id} answers ({note})", len(decodings) * len(questions)) as progress:
        for decoding in decodings:
            said = answer(method, tokenizer, questions, decoding, spec, progress)
            frames += [_rows(test, said, place[name], decoding.seed) for name, test in tests.items()]
    return pd.concat(frames, ignore_index=True)


def _rows(test: TestSet, said: Answers, place: np.ndarray, seed: int) -> pd.DataFrame:
    columns = {
        "test": test.name,
        "id": test.ids,
        "seed": seed,
        "text": [said.texts[at] for at in place],
        "tokens": said.tokens[place],
        "forward_passes": said.forward_passes[place],
        "latent_steps": said.latent_steps[place],
    }
    return pd.DataFrame(columns)


def distinct_questions(tests: Mapping[str, TestSet]) -> tuple[dict[str, np.ndarray], list[list[int]]]:
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
