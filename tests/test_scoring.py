"""The answer extractor, case by case."""

import pytest

from benchmarks.scoring import SCORERS, Reference
from benchmarks.scoring.numeric import Number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", "72"),
        ("$1,234.50", "1234.50"),
        ("\N{MINUS SIGN}1,200", "-1200"),
        ("#### \N{EN DASH}$5", "-5"),
        ("#### 2.5E-3 kg", "2.5E-3"),
        ("5e", "5"),
        ("3 5", "5"),
        ("#### 3 5", "3"),
        ("####72", "72"),
        ("### 72", "72"),
        ("so .5", ".5"),
        ("The answer is: 4 apples, not 5", "4"),
        ("Answer: 1\nAnswer: 2 3", "2"),
        ("12 #### 7 #### 8 9", "8"),
        ("<<48/2=24>>", "24"),
        ("20-5 #### 20-5", "20"),
        ("20-5", "5"),  # an operator
        ("#### 10-8", "10"),
        (r"\boxed{9{,}500}", "9500"),
        ("#### 9{,}500", "9500"),
        ("#### 1,2,3", "1"),  # a list
        ("1,2,3", "3"),
        ("#### 10^5", "10^5"),  # an expression, which no number equals
        ("12 #### none", None),
        ("none", None),
        ("", None),
        ("inf nan", None),
    ],
)
def test_extract(text: str, number: str | None):
    assert Number().score(text, Reference("", "0")).extracted == number


@pytest.mark.parametrize(
    ("text", "gold", "correct", "strict"),
    [
        ("10", "10", True, True),
        ("10.0", "10", True, False),
        ("#### 1,000", "1000", True, True),
        ("1000", "1,000", True, True),
        ("0.3333", "0.3333333333333333", True, False),
        ("0.33", "0.3333333333333333", False, False),
        ("1e5", "100000", True, False),
        ("2.5E-3", "0.0025", True, False),
        ("\N{MINUS SIGN}5", "-5", True, True),
        ("1e999999999", "3", False, False),
        ("1000.04", "1000.1", True, False),
        ("1000.3", "1000.1", False, False),
        ("nothing", "3", False, False),
        ("9" * 400, "9" * 400, True, True),
        ("3", "inf", False, False),
        ("3", "three", False, False),
        ("-3", "3", False, False),
        ("#### -\N{EURO SIGN}18", "18", False, False),
        ("#### -\N{EURO SIGN}18", "-18", True, True),
        ("#### 1/2", "1", False, False),
        ("#### 1/2", "0.5", True, False),
        ("#### 2/5", "2/5", True, True),
        ("#### 10^5", "10", False, False),
        ("#### 10 apples", "10", True, False),  # more than the number
        ("#### 10.\nIndeed.", "10", True, True),
        ("3 + 7 = 10", "10", True, False),
        ("3 + 7 =\n10", "10", True, True),
        ("9" * 50_000 + ".5", "9" * 50_000 + ".5", True, True),
        ("1e" + "9" * 5_000, "3", False, False),
    ],
)
def test_score(text: str, gold: str, correct: bool, strict: bool):
    result = SCORERS["number"].score(text, Reference("How many?", gold))
    assert (result.correct, result.strict) == (correct, strict)
