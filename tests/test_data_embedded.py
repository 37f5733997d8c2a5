"""The embedded corpora: correct, short, reproducible, and disjoint."""

import re

import pytest

from benchmarks.data import load_records, normalise
from benchmarks.data.records import equations
from benchmarks.data.sets import embedded

CORPORA = {"train": "embedded", **{shape: f"embedded_{shape}" for shape in ("in_domain", "reworded", "multistep")}}
STEP = re.compile(r"<<(\d+)([-+*])(\d+)=(\d+)>>")


@pytest.mark.parametrize("shape", CORPORA)
def test_every_step_is_right_and_the_last_gives_the_answer(shape: str):
    for row in embedded.generate(shape):
        value = 0
        for step in equations(row.solution):
            match = STEP.fullmatch(step)
            assert match
            left, sign, right, value = int(match[1]), match[2], int(match[3]), int(match[4])
            assert value == {"+": left + right, "-": left - right, "*": left * right}[sign]
            assert 2 <= value <= embedded.LARGEST
            assert right < 10
        assert str(value) == row.answer
        assert len(row.question.split()) < 65


def test_no_test_question_is_a_training_question():
    seen: set[str] = set()
    for shape in CORPORA:
        questions = [normalise(row.question) for row in embedded.generate(shape)]
        assert len(set(questions)) == len(questions)
        assert seen.isdisjoint(questions)
        seen.update(questions)


def test_training_shows_no_held_out_pair_and_the_multistep_test_always_one():
    assert not any(embedded.unseen(chain) for chains in embedded.SEEN.values() for chain in chains)
    assert all(embedded.unseen(chain) for chains in embedded.UNSEEN for chain in chains)
    assert {len(row.steps) for row in load_records("embedded_multistep", "text", "test")} == {2, 3}
    assert {len(row.steps) for row in load_records("embedded", "text", "train")} == {1, 2, 3}
