"""`marcos-bench explain`: shows how trained models answer one question, and what they think in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.analysis.interventions import require_test
from benchmarks.analysis.responses import Responses, TrainedModel
from benchmarks.console import console
from benchmarks.data import TestSet
from benchmarks.files import BrokenRecord, replacing
from benchmarks.scoring import Score
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study, StudyError
from methods.base import Method
from methods.errors import InputError

ACTIVE = 8  # active dimensions of a step that are shown at most
SHOWN = 8  # latents of a step that are shown at most


@dataclass(frozen=True)
class Question:
    """A question of a test set by its number, from 1 (``test`` None: the run's first test set), or a text of one's
    own, which has no gold answer."""

    number: int | None = None
    test: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Explanation:
    """One run's answer: the question with its gold answer, the cells of the run's row, and its latents by name."""

    heading: str
    cells: tuple[Text, ...]
    latents: dict[str, np.ndarray]


def explain(
    study: Study, results: Path, question: Question, runs: Sequence[str] = (), output: Path | None = None
) -> None:
    """Print a question and a table of trained runs (``runs``; default: all). Write their latents to ``output``, an NPZ
    file that must not exist yet; :func:`explain_run` says what is in it. One run is in memory at a time."""
    require_new(output)
    asked = {id: study.sources[id] for id in runs or study.sources}
    ready = {id: spec for id, spec in asked.items() if Paths(results, spec).weights.is_file()}
    if not ready:
        first = next(iter(asked.values()))
        command = study.home(first).command("train", results, first.id)
        raise BrokenRecord(
            f"{'none of these runs' if runs else 'no run'} of {study.name} is trained in {results.absolute()}, and "
            f"trained runs are what is asked: train one first, e.g. `{command}`"
        )
    found = {id: explain_run(TrainedModel.load(spec, results), question) for id, spec in ready.items()}
    show(found, [id for id in asked if id not in ready], output)


def explain_model(folder: Path, question: Question, output: Path | None = None) -> None:
    """Do the same with the model in a run's ``model`` folder, whose question is a text."""
    require_new(output)
    model = TrainedModel.of_folder(folder)
    show({model.spec.id: explain_run(model, question)}, [], output)


def require_new(output: Path | None) -> None:
    if output is not None and output.exists():
        raise InputError(f"{output} already exists: name another file, or remove it first")


def show(found: Mapping[str, Explanation], missing: Sequence[str], output: Path | None) -> None:
    """Print each question (blocks may have test sets of their own) with what runs answered to it, and which runs have
    no weights. Write latents to ``output``."""
    out = console()
    for heading in dict.fromkeys(one.heading for one in found.values()):
        run = Column("Run", no_wrap=True, overflow="fold")  # never cut off, as other commands take it as an argument
        columns = (Column(name, overflow="fold") for name in ("Steps", "Answer"))
        table = Table(run, *columns, "Latents as nearest tokens (norm)", "Active dimensions", show_lines=True)
        for id, one in found.items():
            if one.heading == heading:
                table.add_row(id, *one.cells)
        out.print(Text(heading))
        out.print(table)
    latents = {id: one.latents for id, one in found.items()}
    if any(latents.values()):
        out.print(Text("Norm: of a latent, divided by the median norm of the token embeddings."))
    if missing:
        out.print(Text(f"Without weights here: {', '.join(missing)}"))
    if output is not None:
        save(output, latents)
        out.print(Text(f"Latents: {output}"), soft_wrap=True)  # a path that is broken cannot be copied


def explain_run(model: TrainedModel, question: Question) -> Explanation:
    """Ask a run. The latents (float32) are those that the method traces: (n, d), or (steps, n, d) if it thinks in
    steps of n vectors, zeros where a chain has ended; those that can be set by hand, such as MarCos's R, are (steps,
    dims). ``median_token_norm`` () is beside them if there are any."""
    spec, test = model.spec, None
    if question.text is not None:
        heading, ids = question.text, [model.tokenize(question.text)]
    else:
        assert question.number is not None
        test = select_question(model, require_test(spec, question.test), question.number)
        heading, ids = f"{test.name} {test.ids[0]}: {test.texts[0]}\nGold answer: {test.answers[0]}", test.questions
    responses = model.generate(ids, model.decoding, trace=True)
    tokens = TokenEmbeddings(token_embeddings(model.method), model.tokenizer)
    latents = {name: values[0] for name, values in responses.trace.items()}
    if latents:
        latents["median_token_norm"] = np.float32(tokens.median_norm)
    return Explanation(heading, row(spec, tokens, responses, responses.scores(test)[0] if test else None), latents)


def select_question(model: TrainedModel, test: str, number: int) -> TestSet:
    whole = model.test(test)
    if number > len(whole):
        raise StudyError(f"{test} has no question {number}: it has {len(whole)}")
    return whole.select([number - 1])


def save(path: Path, latents: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the latents of runs, each under ``RUN/NAME``. Raise :class:`InputError` if there are none."""
    arrays: dict[str, Any] = {
        f"{run}/{name}": values for run, by_name in latents.items() for name, values in by_name.items()
    }
    if not arrays:
        raise InputError(f"{path} is not written: none of these runs thinks in latents ({', '.join(latents)})")
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def row(spec: RunSpec, tokens: TokenEmbeddings, responses: Responses, score: Score | None) -> tuple[Text, ...]:
    """Return the steps, the answer (green if correct, red if not), the latents as nearest tokens, and the active
    dimensions of the first question."""
    steps, answer = split_steps(responses)
    if not answer or (score is not None and score.extracted is None):
        steps = steps if len(responses.steps[0]) > 1 else []
        answer = f"(no answer) {responses.answers[0]!r}"  # with its blanks, as there may be nothing else
    written = [f"{i}. {step or '(says nothing)'}" for i, step in enumerate(steps, 1)]
    name = spec.steerable_latents
    active = active_dimensions(responses.trace[name][0], spec) if name else []
    named = [line for key, value in responses.trace.items() if key != name for line in tokens.described(value[0])]
    style = "" if score is None else "green" if score.correct else "red"
    return (
        Text("\n".join(written)),
        Text(answer, style=style),
        Text("\n".join(named)),
        Text("\n".join(active)),
    )


def split_steps(responses: Responses) -> tuple[list[str], str]:
    """Return the first question's steps and answer, which is the last line if a method says all in one text."""
    if len(responses.steps[0]) > 1:
        return responses.steps[0][:-1], responses.answers[0].strip()
    *steps, answer = responses.answers[0].strip().split("\n")
    return steps, answer


def active_dimensions(latents: np.ndarray, spec: RunSpec) -> list[str]:
    """Return a line for each step of (steps, D): its active dimensions, the largest first, with their values."""
    lines = []
    for number, step in enumerate(latents, 1):
        order = [int(dim) for dim in np.argsort(-step) if step[dim] > spec.analysis.active_above]
        shown = " ".join(f"{dim}:{step[dim]:.2f}" for dim in order[:ACTIVE])
        lines.append(f"{number}. {shown}{' ...' if len(order) > ACTIVE else ''}" if order else f"{number}. none")
    return lines


# ---- latents beside token embeddings


@dataclass(frozen=True)
class TokenEmbeddings:
    """The input embeddings (V, d) of the model that speaks."""

    vectors: Tensor
    tokenizer: PreTrainedTokenizerBase

    @cached_property
    def norms(self) -> Tensor:
        return self.vectors.norm(dim=-1)

    @property
    def median_norm(self) -> float:
        return float(np.median(self.norms.numpy()))

    def described(self, latents: np.ndarray) -> list[str]:
        """Return the nearest token of each latent with its norm in median norms of tokens: one line for (n, d), one
        line per step for (steps, n, d). Zero vectors are padding and left out."""
        if latents.ndim == 3:
            return [f"{i}. {self.described(step)[0]}" for i, step in enumerate(latents, 1)]
        shown = torch.from_numpy(latents[:SHOWN])
        shown = shown[shown.norm(dim=-1) > 0]
        lengths = (shown.norm(dim=-1) / self.median_norm).tolist()
        tokens = (repr(self.tokenizer.decode([token]))[1:-1] for token in self.nearest(shown))
        more = " ..." if len(latents) > SHOWN else ""
        return [" ".join(f"{token} ({length:.3g})" for token, length in zip(tokens, lengths, strict=True)) + more]

    def nearest(self, latents: Tensor) -> list[int]:
        """Return the tokens that are nearest to (n, d) latents by cosine."""
        # The products are divided instead of the embeddings: at 0.5B a normalised copy of these takes 0.5 GB
        return (latents @ self.vectors.T / self.norms.clamp(min=1e-12)).argmax(-1).tolist()


def token_embeddings(method: Method) -> Tensor:
    """Return the (V, d) input embeddings of the model that speaks, without the markers that methods add."""
    models: Iterator[PreTrainedModel] = (m for m in method.modules() if isinstance(m, PreTrainedModel))
    speaking = next(model for model in models if model.get_output_embeddings() is not None)
    embeddings = speaking.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    return embeddings.weight.detach().float().cpu()[: method.vocabulary.size]
