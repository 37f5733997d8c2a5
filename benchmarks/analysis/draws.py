"""Whether R says what was drawn, and whether what is drawn from it is read in one way.

A task's scorer names what each step of a solution leaves to chance: the digit, the partition, the path. What R encodes
of it, and of what it need not encode, is a share of variance. What R does is seen when R of another question takes its
place. And a draw serves two readers: speaking puts the step into words, and thinking continues from it. If a draw lies
between the codes that training has seen, they may take it for different steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from benchmarks.analysis.dimensions import explained_variance
from benchmarks.data.tokenizers import encode_texts
from benchmarks.evaluation.inference import batches_by_length
from benchmarks.scoring import Reference, Scorer
from benchmarks.scoring.base import split_answer
from methods.base import Example
from methods.generation import Decoding

if TYPE_CHECKING:
    from benchmarks.analysis.responses import Responses, TrainedModel

Text = Callable[[Sequence[int]], str]


def draws(scorer: Scorer, steps: Sequence[Sequence[str]], asked: Sequence[Reference]) -> np.ndarray:
    """Return (N, K) what each of K steps drew, as the scorer reads it off their texts, the answer's last; None where a
    step draws nothing, or nothing that the rules explain."""
    found = np.full((len(steps), max(map(len, steps))), None, dtype=object)
    for row, texts, reference in zip(found, steps, asked, strict=True):
        drawn = scorer.score("\n".join(texts) if scorer.reads_steps else texts[-1], reference).draws
        first = 0 if len(drawn) == reference.steps else len(texts) - len(drawn)  # the answer's draw is the last
        row[first : first + len(drawn)] = drawn
    return found


def references(examples: Sequence[Example], text: Text) -> list[Reference]:
    return [Reference(text(example.question), text(example.answer), len(example.steps)) for example in examples]


def explained(
    latents: np.ndarray, examples: Sequence[Example], steps: Sequence[Sequence[str]], drawn: np.ndarray
) -> pd.DataFrame:
    """Return the share of the variance of R (N, K, D) at each step that each cause explains (adjusted R squared), as
    columns ``step``, ``cause`` and ``share``: what was drawn (N, K), the first word of the step's text, and the
    question."""
    words = np.array([[step.partition(" ")[0] for step in texts] for texts in steps], dtype=object)
    shares = {
        "draw": explained_variance(latents, coded(drawn)),
        "first word": explained_variance(latents, coded(words)),
        "question": explained_by_question(latents, [example.question for example in examples]),
    }
    lines = [(step, cause, share) for cause, by_step in shares.items() for step, share in enumerate(by_step, 1)]
    return pd.DataFrame(lines, columns=["step", "cause", "share"]).dropna()


def written(examples: Sequence[Example], steps: int, text: Text) -> list[list[str]]:
    """Return the texts of K steps, of which the answer is the last, and those that a solution lacks are empty."""
    found = [[text(step) for step in example.steps[: steps - 1]] for example in examples]
    return [
        [*lines, *[""] * (steps - 1 - len(lines)), text(one.answer)] for lines, one in zip(found, examples, strict=True)
    ]


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
        within, free = float(((values - design @ fitted) ** 2).sum()), len(values) - int(rank)
        total = float(((values - values.mean(0)) ** 2).sum())
        found.append(1 - (within / free) / (total / (len(values) - 1)) if total > 0 and free > 0 else None)
    return found


def transplanted(
    model: TrainedModel, scorer: Scorer, examples: Sequence[Example], latents: np.ndarray, drawn: np.ndarray, text: Text
) -> pd.DataFrame:
    """Return what steps draw from R of another question: columns ``step``, ``own`` (does the step draw what its own
    solution does, with R that encodes it), ``donor`` (what the other's does, with the other's R in this one step).
    Questions for which both draw the same are left out."""
    asked, questions = references(examples, text), [example.question for example in examples]
    own, frames = draws(scorer, read(model, questions, latents), asked), []
    for step in range(latents.shape[1]):
        given = drawn[:, step]
        donors = np.roll(given, 1)
        kept = np.array([a is not None and b is not None and a != b for a, b in zip(given, donors, strict=True)])
        if not kept.any():
            continue
        mixed = latents.copy()
        mixed[:, step] = np.roll(latents[:, step], 1, axis=0)
        other = draws(scorer, read(model, questions, mixed), asked)
        columns = {"step": step + 1, "own": own[:, step] == given, "donor": other[:, step] == donors}
        frames.append(pd.DataFrame(columns)[kept])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["step", "own", "donor"])


def reread(model: TrainedModel, questions: Sequence[Sequence[int]], answered: Responses, name: str) -> pd.DataFrame:
    """Return how draws of R are read, for every step but the last of each answer, as columns ``step``, ``same`` and
    ``later``. The draw gives way to R that encodes the step as it was spoken, and all other draws stay. ``same``: the
    step is spoken as before. ``later``: so are all steps after it. Where the step stays and the later ones do not,
    speaking and thinking have taken the draw for different steps."""
    drawn = answered.trace[name]
    examples = []
    for at, (question, steps) in enumerate(zip(questions, answered.steps, strict=True)):
        *tokens, answer = encode_texts(model.tokenizer, [*steps[:-1], split_answer(steps[-1])[0][-1]])
        examples.append(Example(str(at), list(question), tokens, answer))
    again = model.encode(examples)
    assert again is not None, "only methods that encode steps are asked"
    frames = []
    for step in range(drawn.shape[1] - 1):
        mixed = drawn.copy()
        mixed[:, step] = again[:, step]
        pairs = list(zip(answered.steps, read(model, questions, mixed), strict=True))
        same = [before[step] == after[step] for before, after in pairs]
        later = [before[step + 1 :] == after[step + 1 :] for before, after in pairs]
        spoken = [bool(before[step]) for before, _ in pairs]
        frames.append(pd.DataFrame({"step": step + 1, "same": same, "later": later})[spoken])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["step", "same", "later"])


def read(model: TrainedModel, questions: Sequence[Sequence[int]], latents: np.ndarray) -> list[list[str]]:
    """Return the texts of all steps that given R (N, K, D) leads to."""
    settings = model.spec.evaluation
    decoding = Decoding(max_new_tokens=settings.max_new_tokens)
    found: list[list[str]] = [[]] * len(questions)
    for indices in batches_by_length(questions, settings.batch_size):  # R belongs to the questions of a batch
        encoded = torch.from_numpy(latents[indices]).to(model.method.device)
        some = model.generate([questions[i] for i in indices], replace(decoding, encoded=encoded))
        for index, steps in zip(indices, some.steps, strict=True):
            found[index] = steps
    return found
