"""What R encodes, and how its draws are read: on planted codes, and on a model that reads them in a known way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.analysis.draws import draws, explained, reread, transplanted
from benchmarks.analysis.responses import Responses
from benchmarks.data import TestSet
from benchmarks.data.tokenizers import decode, word_level
from benchmarks.scoring import SCORERS, Reference
from benchmarks.studies.specs import EvaluationSpec
from methods.base import Example
from methods.generation import Decoding

TOKENIZER = word_level([" ".join(map(str, range(60))) + " + ="])
SUMMATION = SCORERS["summation"]


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def text(tokens: Sequence[int]) -> str:
    return decode(TOKENIZER, tokens)


def summation(count: int) -> tuple[list[Example], np.ndarray]:
    """Return solutions with one random step, and the digits that they draw."""
    chance = np.random.default_rng(0)
    digits, examples = chance.integers(0, 10, count), []
    for row, digit in enumerate(digits):
        numbers = chance.integers(0, 10, 2)
        after = numbers + digit
        words = [" ".join(map(str, line)) for line in (numbers, after)]
        examples.append(
            Example(str(row), ids(words[0]), [ids(words[1])], ids(f"{after[0]} + {after[1]} = {sum(after)}"))
        )
    return examples, digits


class Reader:
    """A model of two steps whose R is a digit. The first step adds it, rounded; the answer continues from it, rounded
    down: thinking and speaking agree on whole numbers."""

    method = SimpleNamespace(device="cpu")
    spec = SimpleNamespace(evaluation=EvaluationSpec(tests=("rs_n2_k2",), batch_size=3))
    tokenizer = TOKENIZER

    def encode(self, examples: Sequence[Example]) -> np.ndarray:
        first = [int(text(one.steps[0]).split()[0]) - int(text(one.question).split()[0]) for one in examples]
        return np.array([[[digit], [0.0]] for digit in first], dtype=np.float32)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Responses:
        assert decoding.encoded is not None and len(decoding.encoded) == len(questions)
        steps = []
        for question, r in zip(questions, decoding.encoded[:, 0, 0].tolist(), strict=True):
            numbers = [int(word) for word in text(question).split()]
            said, (a, b) = (" ".join(str(n + round(r)) for n in numbers), (n + int(r) for n in numbers))
            steps.append([said, f"#### {a} + {b} = {a + b}"])
        return Responses(steps, np.zeros(len(steps)), {})


def test_draws_belong_to_the_steps_that_make_them() -> None:
    sums = draws(SUMMATION, [["3 4", "#### 3 + 4 = 7"], ["9 1", "#### 9 + 1 = 10"]], [Reference("1 2", "", 1)] * 2)
    assert sums.tolist() == [["2", None], [None, None]]
    hand = Reference("6 9 10 11", "", 0)
    last = draws(SCORERS["last_path"], [["", "7", "11 + 10 = 21 . 21 + 9 = 30 . 30 - 6 = 24"]], [hand])
    assert last.tolist() == [[None, None, "2+3 1+4 5-0"]]
    assert draws(SCORERS["number"], [["1", "2"]], [Reference("", "2", 1)]).tolist() == [[None, None]]
    paths = ["11 + 10 = 21", "9 - 6 = 3 . 10 - 3 = 7", "", "11 + 10 = 21 . 21 + 9 = 30 . 30 - 6 = 24"]
    found = draws(SCORERS["parallel24"], [paths], [Reference("6 9 10 11", "", 2)])
    assert found.tolist() == [["2+3", "1-0 2-4", None, "2+3 1+4 5-0"]]  # more thoughts than steps


def test_what_explains_r_is_told_apart() -> None:
    examples, digits = summation(400)
    steps = [[text(one.steps[0]), text(one.answer)] for one in examples]
    drawn = np.array([[str(digit), None] for digit in digits], dtype=object)
    first = np.array([int(text(one.question).split()[0]) for one in examples])
    number = np.array([int(step[0].split()[0]) for step in steps])

    def shares(r: np.ndarray) -> dict[str, float]:
        latents = np.stack([r, np.zeros_like(r)], axis=1)[..., None].astype(np.float32)
        found = explained(latents, examples, steps, drawn)
        assert set(found["step"]) == {1}, "R of the second step does not vary"
        return found.set_index("cause")["share"].to_dict()

    assert shares(digits)["draw"] == pytest.approx(1) and shares(digits)["question"] == pytest.approx(0, abs=0.1)
    assert shares(first)["question"] == pytest.approx(1) and shares(first)["draw"] == pytest.approx(0, abs=0.1)
    assert shares(number)["first word"] == pytest.approx(1) and 0.3 < shares(number)["draw"] < 0.7


def test_r_may_encode_all_draws_so_far() -> None:
    """Such as their sum, with which a step can be spoken from the question alone."""
    digits = np.random.default_rng(0).integers(0, 10, (900, 2))
    drawn = np.array([[str(one), str(other), None] for one, other in digits], dtype=object)
    latents = np.stack([digits[:, 0], digits.sum(1), np.zeros(900)], axis=1)[..., None].astype(np.float32)
    examples, steps = [Example("", [0], [], [0])] * 900, [["", "", ""]] * 900
    shares = explained(latents, examples, steps, drawn).set_index(["step", "cause"])["share"].to_dict()
    assert shares[1, "draw"] == shares[2, "draws so far"] == pytest.approx(1)
    assert shares[2, "draw"] == pytest.approx(0.5, abs=0.05) and (1, "draws so far") not in shares


def test_r_of_another_question_does_what_it_did_there() -> None:
    examples, digits = summation(20)
    model: Any = Reader()
    drawn = np.array([[str(digit), None] for digit in digits], dtype=object)
    found = transplanted(model, SUMMATION, examples, model.encode(examples), drawn)
    assert len(found) == sum(digits != np.roll(digits, 1)) and set(found["step"]) == {1}
    assert all(found["own"]) and all(found["donor"])
    silent = transplanted(model, SUMMATION, examples, np.zeros((20, 2, 1), np.float32), drawn)
    donors = np.roll(digits, 1)
    assert sum(silent["donor"]) == sum((donors == 0) & (digits != 0)) < len(silent)


def test_a_draw_between_codes_is_read_in_two_ways() -> None:
    examples, _ = summation(7)
    questions = [list(one.question) for one in examples]
    drawn = np.zeros((7, 2, 1), np.float32)
    drawn[:, 0, 0] = [0.0, 1.0, 2.4, 2.6, 3.9, 4.1, 5.0]
    model: Any = Reader()
    said = model.generate(questions, Decoding(encoded=torch.from_numpy(drawn))).steps
    answered = Responses(said, np.zeros(7), {"R": drawn})
    test = TestSet("rs_n2_k2", list("abcdefg"), [], questions, [], [1] * 7, [])
    found = reread(model, test, answered, "R")
    assert all(found["same"]) and set(found["step"]) == {1}
    assert reread(model, replace(test, n_steps=[0] * 7), answered, "R").empty, "solutions without steps"
    assert found["later"].tolist() == [True, True, True, False, False, True, True]
