"""The embedded corpora: correct, short, reproducible, and disjoint."""

import re

import pytest

from benchmarks.data import embedded, load_records, normalise
from benchmarks.data.records import equations

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


def test_the_reworded_test_uses_training_words():
    known = {word for row in embedded.generate("train") for word in re.findall("[A-Za-z]+", row.question)}
    words = {word for row in embedded.generate("reworded") for word in re.findall("[A-Za-z]+", row.question)}
    assert words <= known


def test_both_forms_have_the_same_questions_and_as_many_steps():
    equation, text = (load_records("embedded_in_domain", form, "test") for form in ("equation", "text"))
    assert [row.question for row in equation] == [row.question for row in text]
    assert [len(row.steps) for row in equation] == [len(row.steps) for row in text]
    assert all("<<" not in step and step.endswith(".") for row in text for step in row.steps)


def test_generation_repeats():
    first = [next(embedded.problems("train")) for _ in range(2)]
    assert first[0] == first[1]
    assert first[0].question == embedded.generate("train")[0].question
