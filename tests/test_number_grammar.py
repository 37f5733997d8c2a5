"""The grammar of numbers, by examples and by printing values in every format of it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.number_grammar import CURRENCIES, MINUS, SEPARATORS, numbers, read, value_of
from benchmarks.scoring import SCORERS, Reference

GROUP_MARKS = (",", "{,}", r",\!", r"\,", "\u00a0", "\u2009", "\u202f", " ", "'", "\u2019", "~")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("- 18", ["-18"]),
        ("\N{MINUS SIGN}18", ["-18"]),
        ("-US$ 18", ["-18"]),
        ("\N{INDIAN RUPEE SIGN}\N{EN DASH}18", ["-18"]),
        ("5 - 3 = 2", ["5", "3", "2"]),
        ("5 - -3", ["5", "-3"]),
        ("$5-$10", ["5", "10"]),
        ("4, -5", ["4", "-5"]),
        ("x=-5", ["-5"]),
        ("COVID-19", ["19"]),
        ("Total - 18", ["18"]),
        ("Total --18", ["18"]),
        ("in 2 000 and 3 500", ["2000", "3500"]),
        ("In 2020 1,000 people", ["2020", "1000"]),
        ("1 2 3", ["1", "2", "3"]),
        ("1,234,56", ["1", "234", "56"]),
        ("12345,678", ["12345", "678"]),
        ("1.5 \N{MULTIPLICATION SIGN} 10^{-3}", ["1.5e-3"]),
        (r"-\frac{2}{5}", ["-2/5"]),
        ("2 1/2", ["2 1/2"]),
        ("$5/hour", ["5"]),
        ("5 m^2", ["5"]),
        ("10^5 and 3", ["10^5", "3"]),
        ("\N{ARABIC-INDIC DIGIT THREE}", ["3"]),
    ],
)
def test_numbers_of_a_text(text: str, found: list[str]) -> None:
    assert [number.text for number in numbers(text)] == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1,5",
        "1,2,3",
        "10^5",
        "5-3",
        "12/05/2020",
        "1/0",
        "2\u00bd",
        "10\u00b2",
        "3 5",
        "two",
        "1.2.3",
        "5 kg",
        "--5",
    ],
)
def test_what_is_not_one_number_is_not_read(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    "texts",
    [
        ("5", "5.0", "5.00", "+5", "10/2", "5.", "$5", "5%", "5 \N{EURO SIGN}"),
        ("1000", "1e3", "1000.0", "1,000", "1 000", "1E+3"),
        (".5", "0.5", "0.50", "1/2", r"\frac{1}{2}", "5e-1"),
        ("0", "-0", "0.0", "0e5"),
        ("2/6", "1/3"),
        ("2 1/2", "2.5"),
    ],
)
def test_equal_values_are_equal(texts: tuple[str, ...]) -> None:
    values = {value_of(text) for text in texts}
    assert len(values) == 1 and None not in values


def test_long_numbers_are_no_trouble() -> None:
    digits = "9" * 20_000
    for text in (digits, f"{digits}.{digits}", f"{digits}/7", f"7/{digits}", f"1e{digits}", f"{digits}^{digits}"):
        assert len(list(numbers(text))) == 1
    assert float(value_of("1e999999999")) == float("inf")  # type: ignore[arg-type]


def grouped(digits: str, mark: str) -> str:
    head = len(digits) % 3 or 3
    return mark.join([digits[:head], *(digits[at : at + 3] for at in range(head, len(digits), 3))])


@st.composite
def printed(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A number in a format of the grammar, and its value."""
    whole = draw(st.integers(0, 10**12))
    places = draw(st.text("0123456789", max_size=4))
    text = grouped(str(whole), draw(st.sampled_from(["", *GROUP_MARKS])))
    value = Fraction(f"{whole}.{places or '0'}")
    text += f".{places}" if places else ""
    if draw(st.booleans()):
        exponent = draw(st.integers(-9, 9))
        text, value = f"{text}{draw(st.sampled_from('eE'))}{exponent}", value * Fraction(10) ** exponent
    blank = draw(st.sampled_from(["", " ", "\u202f"]))
    currency = draw(st.sampled_from(["", r"\$", "US$", "EUR ", *CURRENCIES]))
    if draw(st.booleans()):
        sign = draw(st.sampled_from(MINUS))
        front = draw(st.booleans()) or not currency
        text = f"{sign}{blank}{currency}{text}" if front else f"{currency}{blank}{sign}{text}"
        return text, -value
    return f"{currency}{text}", value


def exact(text: str) -> Fraction:
    found = value_of(text)
    assert found is not None, text
    return Fraction(found)


@given(printed())
def test_a_printed_number_is_read_back(made: tuple[str, Fraction]) -> None:
    text, value = made
    assert exact(text) == value
    (found,) = numbers(f"#### {text}"[4:])
    assert exact(found.text) == value
    gold = str(value.numerator) if value.denominator == 1 else found.text
    assert SCORERS["number"].score(f"#### {text}", Reference("", gold)).correct


@given(st.integers(0, 999), st.integers(1, 999))
def test_a_fraction_is_read_back(top: int, bottom: int) -> None:
    for text in (f"{top}/{bottom}", f"{top} / {bottom}", rf"\frac{{{top}}}{{{bottom}}}"):
        assert exact(text) == Fraction(top, bottom)


def test_every_separator_is_tried() -> None:
    assert len(SEPARATORS) == 8 and all(value_of(f"1{mark}234") == value_of("1234") for mark in GROUP_MARKS)


PIECES = st.sampled_from(
    ["####", "Answer:", "-", "$", ",", ".", "/", "^", "\\frac{", "}", "e", "%", "1", "000", " ", "\n", "+", "="]
)
TEXTS = st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=20).map("".join))


@pytest.mark.parametrize("name", SCORERS)
@given(text=TEXTS, question=TEXTS, gold=TEXTS, steps=st.integers(0, 3))
def test_any_text_is_scored(name: str, text: str, question: str, gold: str, steps: int) -> None:
    scorer = SCORERS[name]
    asked = Reference(question, gold, steps)
    found = scorer.score(text, asked)
    assert found.correct or not found.strict
    assert len(found.draws) == len(scorer.choices(asked))
    if found.extracted is not None:
        hash(scorer.vote(found.extracted))
