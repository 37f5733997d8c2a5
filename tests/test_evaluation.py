"""Who is asked together with whom, and in what precision."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import evaluation
from benchmarks.evaluation import answering_method, batches_by_length, generated, said_ids
from benchmarks.runs import RunSpec
from benchmarks.specs import EngineSpec, EvaluationSpec
from methods.generation import Cost, Decoding, Generation


@pytest.mark.parametrize(
    ("count", "size", "expected"), [(7, 3, [3, 4]), (8, 3, [3, 3, 2]), (1, 3, [1]), (3, 1, [1, 1, 1]), (6, 3, [3, 3])]
)
def test_no_question_is_left_alone_behind_full_batches(count: int, size: int, expected: list[int]) -> None:
    """A control gives a question the latents of another of its batch."""
    questions = [[0] * (i % 4 + 1) for i in range(count)]
    batches = list(batches_by_length(questions, size))
    assert [len(batch) for batch in batches] == expected
    together = np.concatenate(batches)
    assert sorted(together.tolist()) == list(range(count))
    lengths = [len(questions[i]) for i in together]
    assert lengths == sorted(lengths, reverse=True)


def test_controls_need_more_than_one_question_at_a_time() -> None:
    decodings = {"default": {}, "exchanged": {"thoughts": "exchanged"}}
    settings = {"tests": ["embedded_in_domain"], "decodings": decodings}
    assert EvaluationSpec.model_validate(settings | {"batch_size": 2})
    with pytest.raises(ValueError, match="`exchanged` takes the latents of other questions of a batch"):
        EvaluationSpec.model_validate(settings | {"batch_size": 1})
    assert EvaluationSpec.model_validate({"tests": ["embedded_in_domain"], "batch_size": 1})


class Noting(nn.Module):
    """Says the first token of each question, and notes what its weights are meanwhile."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.seen: list[torch.dtype] = []

    def generate(self, questions: list[list[int]], decoding: Decoding) -> Generation:
        self.seen.append(self.layer.weight.dtype)
        return Generation(torch.tensor([[question[0], 0] for question in questions]), Cost())


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_all_questions_are_answered_with_weights_in_the_runs_precision(
    precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are cast once: a CUDA graph is of weights that stay where they are."""
    engine = EngineSpec.model_validate({"precision": precision})
    settings = SimpleNamespace(engine=engine, evaluation=SimpleNamespace(batch_size=2))
    monkeypatch.setattr(evaluation, "trained_method", lambda *_: Noting())
    method = answering_method(cast(RunSpec, settings), Path())
    assert isinstance(method, Noting)
    weight = method.layer.weight
    questions = [[3], [4, 0, 0], [5, 0], [6, 0, 0, 0]]
    answered = {}
    for indices, generation in generated(method, questions, Decoding(), cast(RunSpec, settings)):
        answered |= dict(zip(indices.tolist(), said_ids(generation).tolist(), strict=True))
    assert answered == {i: [[question[0], 0]] for i, question in enumerate(questions)}
    assert method.seen == [dtype] * 2 and method.layer.weight is weight
