"""Steps, answers, and the normalisation that decides whether two questions are the same."""

from __future__ import annotations

import os
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data.loading import overlap_flags, split_validation, to_records, unscorable_rows
from benchmarks.data.records import (
    MARK,
    DataError,
    Raw,
    Record,
    equations,
    normalise,
    number_text,
    question_hash,
    sentences,
)
from benchmarks.data.sets import DATASETS
from benchmarks.data.sources import DATA_VARIABLE


def test_equation_steps_keep_their_marks():
    assert equations("She has 48/2 = <<48/2=24>>24 clips.\n<<24+.5=24.5>>") == ("<<48/2=24>>", "<<24+.5=24.5>>")


@pytest.mark.parametrize(
    ("solution", "steps"),
    [
        ("He pays 0.5 of it. Then 3.25 more.", ("He pays 0.5 of it.", "Then 3.25 more.")),
        ("12/60 = $<<12/60=0.2>>0.2 a minute\nSo 50*0.2=10.", ("12/60 = $0.2 a minute", "So 50*0.2=10.")),
        ("It costs $5.\n\n", ("It costs $5.",)),
        ("", ()),
    ],
)
def test_a_period_ends_a_sentence_and_a_decimal_point_does_not(solution: str, steps: tuple[str, ...]):
    assert sentences(solution) == steps


@pytest.mark.parametrize(
    "sentence",
    [
        "Mr. Smith and Mrs. Jones see Dr. Who in St. Ives.",
        "He has 3 lbs. of flour, 2 ft. 5 in. of rope and 160 sq. ft. of floor.",
        "The wall is 8 ft. * 20 ft. = 160 sq. ft. (without doors)",
        "It blinks after 2, 4, 6... seconds.",
        "J. K. Rowling and John F. Kennedy meet Mr. T. Smith.",
        "1. Tonya sold 11.5 lbs. at $2.50.",
        "She takes No. 5, e.g. Bus 5.",
        "The P.E. class has 5.",
    ],
)
def test_a_period_of_an_abbreviation_ends_no_sentence(sentence: str):
    assert sentences(sentence) == (sentence,)
    assert sentences(f"{sentence}\nThat is all.") == (sentence, "That is all.")


@pytest.mark.parametrize(
    "solution",
    [
        "It is 60 mins. So it is late.",
        "It is 9 a.m. She gets up.",
        "Call it T. She has 5.",
        "We look for G. $0.25G is 5.",
        "He said no. Then he went.",
        "If they count ... The rest is 5.",
        "she has 5. he has 3.",
        "This is plan B. The first failed.",
    ],
)
def test_a_sentence_may_end_with_an_abbreviation(solution: str):
    assert len(sentences(solution)) == 2 and " ".join(sentences(solution)) == solution


@pytest.mark.skipif(DATA_VARIABLE not in os.environ, reason=f"{DATA_VARIABLE} names no folder")
def test_all_solutions_of_gsm8k_are_cut_at_ends_of_sentences() -> None:
    """Nothing is lost, no step is a title, and none ends in mid-sentence."""
    rows = [row for split in ("train", "test") for row in DATASETS["gsm8k"].rows(split)]
    assert len(rows) == 8792
    short = re.compile(
        r"(?:^|[\s\d(])(Mr|Mrs|Ms|Dr|lbs?|oz|ft|in|yds?|hrs?|mins?|secs?|sq|cu|gal|[ap]\.m|i\.e|\.\.)\.$"
    )
    changed = 0
    for row in rows:
        plain, steps = MARK.sub("", row.solution), sentences(row.solution)
        assert " ".join(" ".join(steps).split()) == " ".join(plain.split())
        for line in plain.split("\n"):
            parts = sentences(line)
            assert not any(re.fullmatch(r"(Mr|Mrs|Ms|Dr|\d+)\.", part) for part in parts)
            assert not any(short.search(one) and not other[0].isupper() for one, other in pairwise(parts))
        changed += steps != tuple(part.strip() for part in re.split(r"(?<=\.)\s+|\n+", plain) if part.strip())
    assert changed == 133  # of which the card gives an account


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("51.0", "51"),
        (" 1,234 ", "1234"),
        ("0.50", "0.50"),
        ("100", "100"),
        ("-3.0", "-3"),
        ("2/5", "2/5"),
        ("36.", "36"),
        (".45", ".45"),
        ("- $1{,}200", "-1200"),
        ("1,5", "1,5"),  # left for the card to refuse
        (190, "190"),
        (-2.0, "-2"),
    ],
)
def test_integral_answers_lose_their_point(text: str | float, number: str):
    assert number_text(text) == number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Bill 's dog ate 5 bones .", "bill's dog ate 5.0 bones."),
        ("It costs $ 1,200 in total", "It costs $1200 in total?"),
        ("He did n't go", "He didn't go."),
        ("a 5 - year - old", "A 5-year-old"),
        ("COVID-19 and/or flu - again", "COVID 19 and or flu again"),
        ("3 \N{MULTIPLICATION SIGN} 5 = ?", "3*5=?"),
        ("10 \N{MINUS SIGN} 8", "10-8"),
        ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"),
    ],
)
def test_spelling_does_not_make_another_question(one: str, other: str):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 5", "35"),
        ("0.5 kg", "5 kg"),
        ("2 cats", "3 cats"),
        ("3 + 5 = ?", "3 * 5 = ?"),
        ("3 + 5 = ?", "3 - 5 = ?"),
        ("3 * 5 = ?", "3 - 5 = ?"),
        ("3 / 5 = ?", "3 - 5 = ?"),
        ("(3 + 5) * 2", "3 + 5 * 2"),
        ("(3 + 5) * 2", "3 + (5 * 2)"),
        ("Is 3 < 5?", "Is 3 > 5?"),
        ("What is -5 + 3?", "What is 5 + 3?"),
        ("Take 5% of 80", "Take 5 of 80"),
        ("It costs $5", "It costs \N{EURO SIGN}5"),
    ],
)
def test_other_numbers_make_another_question(one: str, other: str):
    assert normalise(one) != normalise(other)


def records(count: int) -> list[Record]:
    return [Record(str(i), f"What is {i} and 1?", (f"<<{i}+1={i + 1}>>",), str(i + 1)) for i in range(count)]


def test_validation_rows_do_not_depend_on_the_order():
    rows = records(50)
    train, validation = split_validation(rows, 10)
    assert len(train) == 40
    assert len(validation) == 10
    again = split_validation(rows[::-1], 10)[1]
    assert {row.id for row in again} == {row.id for row in validation}


def test_copies_of_a_question_stay_on_one_side():
    rows = records(30)
    copies = [Record(f"copy{row.id}", row.question.upper(), row.steps, row.answer) for row in rows]
    train, validation = split_validation(rows + copies, 7)
    assert not any(overlap_flags(validation, {normalise(row.question) for row in train}))
    assert len(validation) == 8  # the seven smallest hashes would split a pair, which goes over as a whole


def test_questions_that_differ_in_operators_alone_are_split_and_not_shared():
    rows = [
        Record(f"{a}{sign}{b}", f"{a} {sign} {b} = ?", ("",), "0") for a in range(9) for b in range(9) for sign in "+*"
    ]
    train, validation = split_validation(rows, 41)
    assert (len(train), len(validation)) == (121, 41)
    tests = [Record(f"{a}-{b}", f"{a} - {b} = ?", ("",), "0") for a in range(9) for b in range(9)]
    assert not any(overlap_flags(tests, {normalise(row.question) for row in rows}))


@given(st.text(alphabet="ab 0123456789.,-+*/()=<%$^\n\N{MINUS SIGN}\N{COMBINING ACUTE ACCENT}e\u00e9", max_size=30))
def test_the_same_question_has_the_same_hash(text: str):
    """Otherwise, one copy could be validation data and the other training data."""
    assert question_hash(normalise(text)) == question_hash(text)


def test_too_large_a_validation_split_is_refused():
    with pytest.raises(DataError, match="ask fewer"):
        split_validation(records(5), 5)


def test_training_rows_without_steps_are_left_out_and_test_rows_are_not():
    rows = [Raw("0", "q", "<<1+1=2>>", "2"), Raw("1", "r", "two", "2"), Raw("2", "s", "<<2/5=0.4>>", "2/5")]
    assert [row.id for row in to_records("gsm8k", "equation", "train", rows)] == ["gsm8k-train-0", "gsm8k-train-2"]
    assert [row.id for row in to_records("gsm8k", "text", "train", rows)] == ["gsm8k-train-1"]
    assert len(to_records("gsm8k", "equation", "test", rows)) == 3


def test_training_answers_that_cannot_be_read_are_listed():
    answers = ("1,000", "2/5", "36.", "1,5", "two")
    rows = [Raw(str(n), "q", "<<1+1=2>>", answer, f"/data/a.txt, line {n + 1}") for n, answer in enumerate(answers)]
    assert [row.answer for row in to_records("gsm8k", "equation", "train", rows)] == ["1,000", "2/5", "36."]
    assert unscorable_rows("gsm8k", rows) == [
        {"place": "a.txt, line 4", "answer": "1,5", "why": "cannot be read as one number without guessing"},
        {"place": "a.txt, line 5", "answer": "two", "why": "is no number"},
    ]
