"""Multiplication: true rows in the published format, and products that no two corpora share."""

from pathlib import Path

import pytest

from benchmarks.data import get_dataset, load_records, make_tokenizer
from benchmarks.data.records import DataError, Raw, digest
from benchmarks.data.sets import multiplication
from benchmarks.data.sets.multiplication import DIGITS, generate, multiply
from benchmarks.data.sources import icot_lines
from benchmarks.scoring import Reference
from benchmarks.scoring.scorers import scorer_of
from benchmarks.studies.specs import TokenizerSpec
from test_data_sources import real

QUICK = DIGITS[:2]  # training rows of more digits take seconds to generate


def factors(row: Raw) -> tuple[int, ...]:
    return tuple(int(number[::-1]) for number in row.question.split("*"))


@pytest.mark.parametrize("digits", DIGITS)
def test_answers_are_products_and_steps_add_up_to_them(digits: int):
    for row in generate(digits, "test"):
        first, second = factors(row)
        assert int(row.answer[::-1]) == first * second and len(row.answer) == 2 * digits
        partials = [step.strip("+)").split("(") for step in row.solution.splitlines()]
        total = 0
        for partial, *running in partials:
            total += int(partial[::-1])
            assert all(int(sum[::-1]) == total for sum in running)
        assert len(partials) == digits and total == first * second


@real
@pytest.mark.parametrize("digits", [4, 5])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_published_rows_are_those_of_the_generator(digits: int, split: str):
    rows = get_dataset(f"multiplication_{digits}x{digits}_published").rows(split)
    assert len(rows) == 1000
    for row in rows:
        own = multiply(*factors(row))
        assert (row.question, row.solution, row.answer) == (own.question, own.solution, own.answer)


def test_the_format_is_the_published_one_without_blanks(tmp_path: Path):
    line = "6 5 * 7 4||2 9 3 + 0 4 2 2 #### 2 3 6 2\n"
    ((_, row),) = icot_lines(line, tmp_path / "file")
    assert multiplication.convert(row) == multiply(56, 47)
    with pytest.raises(DataError, match=r"line 1: not of the form .*; fetch the file again"):
        list(icot_lines(line.replace("||", " "), tmp_path / "file"))


def test_an_answer_is_right_if_all_of_its_digits_are():
    scorer = scorer_of("multiplication_2x2")
    asked = Reference("65*74", "2362", 2)
    assert scorer.score("293\n+0422\n#### 2362", asked).strict and scorer.score("2362", asked).correct
    assert not scorer.score("#### 236", asked).correct and not scorer.score("#### 02362", asked).correct


def test_a_digit_is_a_token():
    records = load_records("multiplication_2x2", "lines", "train")[:200]
    tokenizer = make_tokenizer(TokenizerSpec(trained=2048), records)
    assert all(len(tokenizer.tokenize(record.answer)) == 4 for record in records)
    assert tokenizer.tokenize("65*74") == [*"65*74"]


@pytest.mark.parametrize("digits", DIGITS)
def test_the_rows_are_those_of_the_cards(digits: int):
    name = f"multiplication_{digits}x{digits}"
    card, validation = get_dataset(name).card, get_dataset(f"{name}_validation").card
    assert digest(generate(digits, "test")) == card.records["test"]
    assert digest(generate(digits, "validation")) == validation.records["test"]
    if digits in QUICK:
        assert digest(generate(digits, "train")) == card.records["train"]
