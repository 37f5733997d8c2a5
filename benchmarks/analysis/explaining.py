"""`marcos-bench explain`: shows how every trained run answers one question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.analysis.by_hand import known_test
from benchmarks.analysis.reading import steerable_latents
from benchmarks.analysis.saying import Said, Speaker
from benchmarks.data import TestSet
from benchmarks.evaluation.answering import decoding_of
from benchmarks.files import BrokenRecord
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study, StudyError, load_study
from methods.base import Method

SHOWN = 8  # latents of a step, and active dimensions, that are shown at most


def explain(study: Study, results: Path, number: int, test: str | None) -> None:
    """Print a question and a table of all trained runs. ``number`` counts questions from 1."""
    console, asked = Console(), None
    run = Column("Run", no_wrap=True, overflow="fold")  # never cut off, as other commands take it as an argument
    said_apart = (Column(name, overflow="fold") for name in ("Steps", "Answer"))
    table = Table(run, *said_apart, "Latents as nearest tokens", "Active dimensions", show_lines=True)
    missing = []
    for id, spec in study.sources.items():
        if not Paths(results, spec).weights.is_file():
            missing.append(id)
            continue
        speaker = Speaker.load(spec, results)
        asked = one_question(speaker, known_test(spec, test), number)
        decoding = decoding_of(spec.evaluation.decodings["default"], spec.evaluation, seed=0)
        said = speaker.say(asked.questions, decoding, trace=True)
        table.add_row(id, *row(speaker, asked, said))
    if asked is None:
        first = next(iter(study.sources.values()))
        home = study if first.study == study.name else load_study(first.study)
        raise BrokenRecord(
            f"no run of {study.name} is trained in {results.absolute()}, and trained runs are what is asked: train one "
            f"first, e.g. `{home.command('train', results, first.id)}`"
        )
    console.print(Text(f"{asked.name} {asked.ids[0]}: {asked.texts[0]}\nGold answer: {asked.answers[0]}"))
    console.print(table)
    if missing:
        console.print(Text(f"Without weights here: {', '.join(missing)}"))


def one_question(speaker: Speaker, test: str, number: int) -> TestSet:
    whole = speaker.test(test)
    if number > len(whole):
        raise StudyError(f"{test} has no question {number}: it has {len(whole)}")
    return whole.select([number - 1])


def row(speaker: Speaker, asked: TestSet, said: Said) -> tuple[Text, Text, Text, Text]:
    """Return the steps, the answer (green if correct), the latents in words and the active
    dimensions of the first question."""
    score = said.scores(asked)[0]
    steps, answer = told_apart(said)
    if score.extracted is None:
        steps = steps if len(said.steps[0]) > 1 else []
        answer = f"(no answer) {said.answers[0]!r}"  # with its blanks, as there may be nothing else
    written = [f"{i}. {step or '(says nothing)'}" for i, step in enumerate(steps, 1)]
    name = steerable_latents(speaker.spec)
    words = [words_of(speaker, value[0]) for key, value in said.trace.items() if key != name]
    active = active_dimensions(said.trace[name][0], speaker.spec) if name else []
    return (
        Text("\n".join(written)),
        Text(answer, style="green" if score.correct else "red"),
        Text("\n".join("\n".join(lines) for lines in words)),
        Text("\n".join(active)),
    )


def told_apart(said: Said) -> tuple[list[str], str]:
    """Return the steps and the answer of the first question.
    If a method says everything in one text, the last line is the answer."""
    if len(said.steps[0]) > 1:
        return said.steps[0][:-1], said.answers[0].strip()
    *steps, answer = said.answers[0].strip().split("\n")
    return steps, answer


def words_of(speaker: Speaker, latents: np.ndarray) -> list[str]:
    """Return the tokens that are nearest to latents by cosine: one line for (n, d), one
    line per step for (steps, n, d)."""
    if latents.ndim == 3:
        return [f"{i}. {words_of(speaker, step)[0]}" for i, step in enumerate(latents, 1)]
    tokens = nearest(word_vectors(speaker.method), torch.from_numpy(latents[:SHOWN]))
    more = " ..." if len(latents) > SHOWN else ""
    return [" ".join(repr(speaker.tokenizer.decode([token]))[1:-1] for token in tokens) + more]


def nearest(table: Tensor, latents: Tensor) -> list[int]:
    """Return the rows of a (V, d) table that are nearest to (n, d) vectors by cosine.
    Zero vectors are padding and left out."""
    latents = latents[latents.norm(dim=-1) > 0]
    likeness = torch.nn.functional.normalize(latents, dim=-1) @ torch.nn.functional.normalize(table, dim=-1).T
    return likeness.argmax(-1).tolist()


def word_vectors(method: Method) -> Tensor:
    """Return the (V, d) input embeddings of the model that speaks, without the markers that methods add."""
    models: Iterator[PreTrainedModel] = (m for m in method.modules() if isinstance(m, PreTrainedModel))
    speaking = next(model for model in models if model.get_output_embeddings() is not None)
    embeddings = speaking.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    return embeddings.weight.detach().float().cpu()[: method.vocabulary.size]


def active_dimensions(latents: np.ndarray, spec: RunSpec) -> list[str]:
    """Return a line for each step of (steps, D): its active dimensions, the largest first, with their values."""
    lines = []
    for number, step in enumerate(latents, 1):
        order = [int(dim) for dim in np.argsort(-step) if step[dim] > spec.analysis.active_above]
        shown = " ".join(f"{dim}:{step[dim]:.2f}" for dim in order[:SHOWN])
        lines.append(f"{number}. {shown}{' ...' if len(order) > SHOWN else ''}" if order else f"{number}. none")
    return lines
