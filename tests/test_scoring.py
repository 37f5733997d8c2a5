"""The answer extractor, case by case."""

import pytest

from benchmarks.scoring import SCORERS, Asked
from benchmarks.scoring.number import extract


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", "72"),
        ("72,", "72"),
        ("$1,234.50", "1234.50"),
        ("-3", "-3"),
        ("#### -$5", "-5"),
        ("3 5", "5"),
        ("#### 3 5", "3"),
        ("1/2", "2"),
        ("####72", "72"),
        ("### 72", "72"),
        ("5.", "5"),
        ("40%", "40"),
        ("so .5", ".5"),
        ("The answer is: 4 apples, not 5", "4"),
        ("Answer: 1\nAnswer: 2 3", "2"),
        ("12 #### 7 #### 8 9", "8"),
        ("<<48/2=24>>", "24"),
        ("20-5 #### 20-5", "20"),
        ("20-5", "-5"),  # a sign is a sign, whatever stands before it
        ("12 #### none", None),
        ("none", None),
        ("", None),
        ("inf nan", None),
    ],
)
def test_extract(text: str, number: str | None):
    assert extract(text) == number


@pytest.mark.parametrize(
    ("text", "gold", "correct", "strict"),
    [
        ("10", "10", True, True),
        ("10.0", "10", True, False),
        ("#### 1,000", "1000", True, True),
        ("1000", "1,000", True, True),
        ("0.3333", "0.3333333333333333", True, False),
        ("0.33", "0.3333333333333333", False, False),
        ("100004", "100000", True, False),
        ("100011", "100000", False, False),
        ("0.00009", "0", True, False),
        ("nothing", "3", False, False),
        ("9" * 400, "9" * 400, False, True),
        ("3", "inf", False, False),
        ("3", "three", False, False),
        ("-3", "3", False, False),
    ],
)
def test_score(text: str, gold: str, correct: bool, strict: bool):
    result = SCORERS["number"].score(text, Asked("How many?", gold))
    assert (result.correct, result.strict) == (correct, strict)
