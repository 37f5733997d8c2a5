"""Who is asked together with whom."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evaluation import batches_by_length
from benchmarks.specs import EvaluationSpec


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
