"""What R encodes, what it does, and whether draws of it are read in one way.

A task's scorer names what each step of a solution leaves to chance: the digit, the partition, the path. The share of
R's variance that it explains tells whether R encodes that, or something that R need not carry. What R does shows when R
of another question takes its place. And R has two readers: speaking puts the step into words, and thinking continues
from it. If a draw lies between the codes that training has seen, they may take it for different steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from benchmarks.analysis.dimensions import adjusted_r_squared, explained_variance
from benchmarks.data import TestSet, decode
from benchmarks.data.tokenizers import encode_texts, question_text
from benchmarks.evaluation.inference import batches_by_length
from benchmarks.scoring import Reference, Scorer
from methods.base import Example
from methods.generation import Decoding

if TYPE_CHECKING:
    from benchmarks.analysis.responses import Responses, TrainedModel

Text = Callable[[Sequence[int]], str]


def draws(scorer: Scorer, steps: Sequence[Sequence[str]], asked: Sequence[Reference]) -> np.ndarray:
    """Return (N, K) draws, as the scorer reads them off the texts of K steps, the answer's last. A draw is None where a
    step draws nothing, or nothing that the rules explain. Steps that the solution lacks are left out."""
    found = np.full((len(steps), max(map(len, steps))), None, dtype=object)
    for row, texts, reference in zip(found, steps, asked, strict=True):
        lines = [*texts[: reference.steps or 0], texts[-1]]
        drawn = scorer.score("\n".join(lines) if scorer.reads_steps else texts[-1], reference).draws
        before = drawn[: reference.steps] if len(drawn) >= len(lines) - 1 else ()
        row[: len(before)] = before
        if len(drawn) > len(before):  # the answer draws too
            row[-1] = drawn[-1]
    return found


def references(model: TrainedModel, examples: Sequence[Example]) -> list[Reference]:
    """Return what the examples ask and answer, as text."""
    return [
        Reference(question_text(model.tokenizer, one.question), decode(model.tokenizer, one.answer), len(one.steps))
        for one in examples
    ]


def explained(
    latents: np.ndarray, examples: Sequence[Example], steps: Sequence[Sequence[str]], drawn: np.ndarray
) -> pd.DataFrame:
    """Return the share of the variance of R (N, K, D) at each step that each cause explains (adjusted R squared), as
    columns ``step``, ``cause`` and ``share``: what was drawn (N, K), by the step and, from the second on, by all steps
    so far, the first word of the step's text, and the question. There is no line where R does not vary, or a step draws
    nothing."""
    so_far = np.array(
        [[" ".join(map(str, row[: step + 1])) for step in range(len(row))] for row in drawn], dtype=object
    )
    words = np.array([[step.partition(" ")[0] for step in texts] for texts in steps], dtype=object)
    by_draw, by_draws = (np.array(explained_variance(latents, coded(one)), dtype=float) for one in (drawn, so_far))
    by_draw[pd.isna(drawn).all(axis=0)] = np.nan
    by_draws[np.isnan(by_draw)] = by_draws[0] = np.nan
    shares = {
        "draw": by_draw,
        "draws so far": by_draws,
        "first word": explained_variance(latents, coded(words)),
        "question": explained_by_question(latents, [example.question for example in examples]),
    }
    lines = [(step, cause, share) for cause, by_step in shares.items() for step, share in enumerate(by_step, 1)]
    return pd.DataFrame(lines, columns=["step", "cause", "share"]).dropna()


def solution_texts(examples: Sequence[Example], steps: int, text: Text) -> list[list[str]]:
    """Return the texts of K steps, of which the answer is the last; those that a solution lacks are empty."""
    return [[*map(text, one.steps), *[""] * (steps - 1 - len(one.steps)), text(one.answer)] for one in examples]


def coded(labels: np.ndarray) -> np.ndarray:
    """Return (N, K) labels as whole numbers, None as -1."""
    return pd.factorize(labels.ravel())[0].reshape(labels.shape)


def explained_by_question(latents: np.ndarray, questions: Sequence[Sequence[int]]) -> list[float | None]:
    """Return for each step the share of R's variance that a linear regression on the question explains, with one
    variable for each token in each place (adjusted R squared). None as for :func:`explained_variance`."""
    tokens = pd.DataFrame(list(map(list, questions))).astype("category")
    design = np.column_stack([np.ones(len(tokens)), pd.get_dummies(tokens).to_numpy(float)])
    found: list[float | None] = []
    for values in latents.swapaxes(0, 1).astype(float):
        fitted, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        within, total = ((values - design @ fitted) ** 2).sum(), ((values - values.mean(0)) ** 2).sum()
        found.append(adjusted_r_squared(within, total, len(values), int(rank)))
    return found


def transplanted(
    model: TrainedModel, scorer: Scorer, examples: Sequence[Example], latents: np.ndarray, drawn: np.ndarray
) -> pd.DataFrame:
    """Return what steps draw from R of another question: columns ``step``, ``own`` (does the step draw what its own
    solution does, with R that encodes it), ``donor`` (what the other's does, with the other's R in this one step).
    Questions for which both draw the same are left out."""
    asked, questions = references(model, examples), [example.question for example in examples]
    own, frames = draws(scorer, spoken_from(model, questions, latents), asked), []
    for step in range(latents.shape[1]):
        given = drawn[:, step]
        donors = np.roll(given, 1)
        kept = np.array([a is not None and b is not None and a != b for a, b in zip(given, donors, strict=True)])
        if not kept.any():
            continue
        mixed = latents.copy()
        mixed[:, step] = np.roll(latents[:, step], 1, axis=0)
        other = draws(scorer, spoken_from(model, questions, mixed), asked)
        columns = {"step": step + 1, "own": own[:, step] == given, "donor": other[:, step] == donors}
        frames.append(pd.DataFrame(columns)[kept])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["step", "own", "donor"])


def reread(model: TrainedModel, test: TestSet, answered: Responses, name: str) -> pd.DataFrame:
    """Return how draws of R are read, as columns ``step``, ``same`` and ``later``, for every step but the last of each
    answer, as far as the test's solution has such a step. ``answered`` was spoken greedily. The draw gives way to R
    that encodes the step as it was spoken, and all other draws stay. ``same``: the step is spoken as before. ``later``:
    so are all steps after it. A step that stays while later ones do not is a sign that speaking and thinking have taken
    the draw for different steps."""
    questions, drawn = test.questions, answered.trace[name]
    examples = []
    for id, question, steps in zip(test.ids, questions, answered.steps, strict=True):
        *tokens, answer = encode_texts(model.tokenizer, steps)
        examples.append(Example(id, question, tokens, answer))
    again = model.encode(examples)
    assert again is not None, "only methods that encode steps are asked"
    frames = []
    for step in range(drawn.shape[1] - 1):
        mixed = drawn.copy()
        mixed[:, step] = again[:, step]
        pairs = list(zip(answered.steps, spoken_from(model, questions, mixed), strict=True))
        same = [before[step] == after[step] for before, after in pairs]
        later = [before[step + 1 :] == after[step + 1 :] for before, after in pairs]
        asked = [step < (count or 0) for count in test.n_steps]  # what else is spoken was never trained
        frames.append(pd.DataFrame({"step": step + 1, "same": same, "later": later})[asked])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["step", "same", "later"])


def spoken_from(model: TrainedModel, questions: Sequence[Sequence[int]], latents: np.ndarray) -> list[list[str]]:
    """Return the texts of all steps that given R (N, K, D) leads to."""
    settings = model.spec.evaluation
    found: list[list[str]] = [[]] * len(questions)
    for indices in batches_by_length(questions, settings.batch_size):  # R belongs to the questions of a batch
        encoded = torch.from_numpy(latents[indices]).to(model.method.device)
        decoding = Decoding(max_new_tokens=settings.max_new_tokens, encoded=encoded)
        some = model.generate([questions[i] for i in indices], decoding)
        for index, steps in zip(indices, some.steps, strict=True):
            found[index] = steps
    return found
