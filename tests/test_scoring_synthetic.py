"""The scorers of the synthetic tasks: handwritten answers of each kind, and solvers that try everything."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from typing import Any

import pytest

from benchmarks.data import load_records
from benchmarks.data.sets import synthetic
from benchmarks.scoring import SCORERS, Reference
from benchmarks.scoring.synthetic import walk

# The three examples of the paper's overview figure
RS = Reference("7 9 8 5 7 4 1 3 6 2", "14 + 16 = 30", 2)
RS_STEPS = "12 14 13 10 12 9 6 8 11 7\n14 16 15 12 14 11 8 10 13 9\n"
RP = Reference("7 9 8 5 7 4 1 3 6 2", "", 1)
RP_STEP = "11 12 -1 7 15 3 7 6 -5 3\n"
P24 = Reference("6 9 10 11", "11 + 10 = 21 . 21 + 9 = 30 . 30 - 6 = 24", 2)
P24_STEPS = "9 - 6 = 3\n10 - 9 = 1 . 11 / 1 = 11\n"
LAST = Reference(P24.question, P24.answer, 0)
COPY = Reference("0 1 2 3 4", "5 6 7 8 9", 2)
COPY_STEPS = "1 2 3 4 5\n5 6 7 8 9\n"


@pytest.mark.parametrize(
    ("task", "asked", "text", "correct", "strict", "draws"),
    [
        ("summation", RS, RS_STEPS + "#### 14 + 16 = 30", True, True, ("5", "2")),
        ("summation", RS, RS_STEPS + "14+16=30", True, False, ("5", "2")),  # no marker
        ("summation", RS, RS_STEPS + "#### 14 + 15 = 29", False, False, ("5", "2")),  # not the first two
        ("summation", RS, RS_STEPS + "#### 16 + 14 = 30", False, False, ("5", "2")),  # in the other order
        ("summation", RS, RS_STEPS + "#### 14 + 16 = 31", False, False, ("5", "2")),  # not true
        ("summation", RS, RS_STEPS, False, False, ("5", "2")),  # no answer
        ("summation", RS, RS_STEPS.replace("13 10", "13 11") + "#### 14 + 16 = 30", False, False, (None, None)),
        ("summation", RS, RS_STEPS.replace(" 9\n", "\n") + "#### 14 + 16 = 30", False, False, ("5", None)),  # one short
        ("summation", RS, RS_STEPS.replace(" 9\n", " x\n") + "#### 14 + 16 = 30", False, False, ("5", None)),
        # A step is missing
        ("summation", RS, RS_STEPS.splitlines()[1] + "\n#### 14 + 16 = 30", False, False, ("7", None)),
        ("summation", RS, RS_STEPS + RS_STEPS + "#### 14 + 16 = 30", False, False, ("5", "2")),  # steps too many
        ("summation", Reference("1 2", "", 1), "11 12\n#### 11 + 12 = 23", False, False, (None,)),  # 10 is not a digit
        ("summation", Reference("1 2", "", 1), "0 1\n#### 0 + 1 = 1", False, False, (None,)),  # nor is -1
        ("summation", Reference("1 2", "", 1), "1 2\n#### 1 + 2 = 3", True, True, ("0",)),
        ("summation", RS, "", False, False, (None, None)),
        ("pairing", RP, RP_STEP + "#### 11 + 12 = 23", True, True, ("0,5 1,7 3,9 4,2 6,8",)),
        ("pairing", RP, RP_STEP + "#### 11 + 12 = -1", False, False, ("0,5 1,7 3,9 4,2 6,8",)),
        ("pairing", RP, RP_STEP.replace("-5", "5") + "#### 11 + 12 = 23", False, False, (None,)),  # |a - b|
        ("pairing", Reference("3 5", "", 1), "8 -2\n#### 8 + -2 = 6", True, True, ("0,1",)),
        ("pairing", Reference("3 5", "", 1), "8 2\n#### 8 + 2 = 10", False, False, (None,)),
        (
            "pairing",
            Reference("1 2 3 4", "", 1),
            "3 -1 4 -1\n#### 3 + -1 = 2",
            False,
            False,
            (None,),
        ),  # 3 is used twice
        # A collapsed model repeats one number, which has very many partitions
        ("pairing", Reference("3 5", "", 2), 2 * (" ".join(17 * "0") + "\n") + "#### 0 + 0 = 0", False, False, ...),
        ("pairing", Reference("1 2 3", "", 1), "3 -1 3\n#### 3 + -1 = 2", False, False, (None,)),
        ("parallel24", P24, P24_STEPS + "#### " + P24.answer, True, True, ("1-0", "2-1 3/4", "2+3 1+4 5-0")),
        ("parallel24", P24, P24_STEPS + P24.answer.replace(" ", ""), True, False, ("1-0", "2-1 3/4", "2+3 1+4 5-0")),
        ("parallel24", P24, P24_STEPS + "#### 9 - 6 = 3 . 10 + 11 = 21 . 3 + 21 = 24", True, True, ...),
        ("parallel24", P24, P24_STEPS + "#### 9 - 6 = 3 . 10 + 11 = 21 . 3 + 20 = 24", False, False, ...),  # no 20
        ("parallel24", P24, P24_STEPS + "#### 9 - 6 = 4 . 10 + 11 = 21 . 3 + 21 = 24", False, False, ...),  # not true
        ("parallel24", P24, P24_STEPS + "#### 9 + 9 = 18 . 18 + 6 = 24", False, False, ...),  # 9 twice, not all four
        ("parallel24", P24, P24_STEPS + "#### 9 - 6 = 3 . 10 + 11 = 21 . 3 * 21 = 63", False, False, ...),  # not 24
        ("parallel24", P24, P24_STEPS + "#### 9 - 6 = 3 . 10 + 11 = 21", False, False, ...),  # not at its end
        ("parallel24", P24, P24_STEPS.replace("= 3", "= 4") + "#### " + P24.answer, False, False, (None, ..., ...)),
        ("parallel24", P24, "9 - 6 = 3\n9 - 6 = 3\n#### " + P24.answer, True, False, ...),  # two operations are asked
        ("parallel24", P24, "9 - 6 = 3\n\n#### " + P24.answer, False, False, ("1-0", None, ...)),
        ("parallel24", P24, "10 / 6 = 1\n9 - 6 = 3\n#### " + P24.answer, False, False, (None, "1-0", ...)),  # not whole
        (
            "parallel24",
            P24,
            "6 - 9 = -3\n9 - 6 = 3\n#### " + P24.answer,
            False,
            False,
            (None, "1-0", ...),
        ),  # not natural
        ("parallel24", P24, "9 - 9 = 0\n9 / 0 = 0\n#### " + P24.answer, False, False, (None, None, ...)),
        ("parallel24", P24, f"9 - 6 = {'3' * 5_000}\n" + "#### " + P24.answer, False, False, (None, ..., ...)),
        ("last_path", LAST, "#### " + P24.answer, True, True, ("2+3 1+4 5-0",)),
        ("last_path", LAST, P24.answer, True, False, ...),
        ("last_path", LAST, "#### 9 - 6 = 3 . 10 + 11 = 21", False, False, ("1-0 2+3",)),
        ("last_path", LAST, P24_STEPS + "#### " + P24.answer, False, False, ...),  # it has steps
        ("copy", COPY, COPY_STEPS + "#### 5 6 7 8 9", True, True, ("2",)),
        ("copy", COPY, COPY_STEPS + "1 2 3 4 5", True, False, ("1",)),
        ("copy", COPY, COPY_STEPS + "#### 0 1 2 3 4", False, False, (None,)),  # the question
        ("copy", COPY, COPY_STEPS + "#### 5 6 7 9 8", False, False, (None,)),
        ("copy", COPY, "1 2 3 4 5\n#### 1 2 3 4 5", False, False, (None,)),  # a step is missing
        ("copy", COPY, "1 2 3 4\n1 2 3 4 5\n#### 1 2 3 4 5", False, False, (None,)),  # a step of four
        ("copy", COPY, COPY_STEPS + COPY_STEPS + "#### 5 6 7 8 9", False, False, (None,)),
    ],
)
def test_answers_of_each_kind(task: str, asked: Reference, text: str, correct: bool, strict: bool, draws: Any):
    result = SCORERS[task].score(text, asked)
    assert (result.correct, result.strict) == (correct, strict)
    if draws is not ...:
        assert len(result.draws) == len(draws)
        assert all(
            drawn == expected for drawn, expected in zip(result.draws, draws, strict=True) if expected is not ...
        )
    assert len(result.draws) == len(SCORERS[task].choices(asked))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("rs_n2_k3", "summation"),
        ("rp_n2_k3", "pairing"),
        ("p24_k1", "last_path"),
        ("p24_k3", "parallel24"),
        ("copy_k8", "copy"),
    ],
)
def test_solutions_of_the_data_are_right_and_those_of_another_question_are_not(name: str, task: str):
    records = load_records(name, "lines", "test")[:100]
    for record, other in zip(records, records[1:] + records[:1], strict=True):
        text = "\n".join([*record.steps, f"#### {record.answer}"])
        found = SCORERS[task].score(text, Reference(record.question, record.answer, len(record.steps)))
        assert found.correct and found.strict and None not in found.draws
        wrong = SCORERS[task].score(text, Reference(other.question, other.answer, len(other.steps)))
        same = task == "copy" or sorted(record.question.split()) == sorted(other.question.split())
        assert same or not wrong.correct  # a copy does not depend on the question


def sequences(count: int, low: int, high: int, size: int = 4) -> list[tuple[int, ...]]:
    draw = random.Random(0)
    return [tuple(draw.randint(low, high) for _ in range(size)) for _ in range(count)]


def test_a_partition_is_found_where_trying_all_finds_one():
    for before in sequences(60, 0, 3):
        explained: dict[tuple[int, ...], set[str]] = {}
        for order in itertools.permutations(range(4)):
            pairs = sorted([order[:2], order[2:]])
            after = list(before)
            for first, second in pairs:
                after[first], after[second] = before[first] + before[second], before[first] - before[second]
            explained.setdefault(tuple(after), set()).add(" ".join(f"{a},{b}" for a, b in pairs))
        for after in [*explained, *sequences(20, -3, 6)]:
            text = " ".join(map(str, after)) + f"\n#### {after[0]} + {after[1]} = {after[0] + after[1]}"
            found = SCORERS["pairing"].score(text, Reference(" ".join(map(str, before)), "", 1))
            assert found.correct == (after in explained)
            assert found.draws[0] in explained.get(after, {None})


def reachable(numbers: tuple[Fraction, ...]) -> bool:
    """Return whether natural numbers lead to 24 over natural numbers alone, by trying everything."""
    if len(numbers) == 1:
        return numbers[0] == 24
    for a, b in itertools.permutations(range(len(numbers)), 2):
        rest = tuple(n for i, n in enumerate(numbers) if i not in (a, b))
        x, y = numbers[a], numbers[b]
        values = [x + y, x - y, x * y, *([x / y] if y else [])]
        if any(v >= 0 and v.denominator == 1 and reachable((*rest, v)) for v in values):
            return True
    return False


def test_24_is_solved_where_trying_all_solves_it():
    hands = [tuple(sorted(hand)) for hand in sequences(60, 1, 13)]
    for hand in hands:
        solutions = synthetic.solutions(hand)
        assert bool(solutions) == reachable(tuple(map(Fraction, hand)))
        for path in solutions[:50]:
            found = walk(synthetic.written(path), hand)
            assert found is not None and found[1] == [24]
    assert 10 < sum(bool(synthetic.solutions(hand)) for hand in hands) < 60
