"""Rows and records of data sets (questions, reasoning steps and answers), and the rules that make texts comparable."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.number_grammar import CURRENCIES, MINUS, PLUS, read
from methods.errors import InputError

MARK = re.compile(r"<<[^<>]*>>")  # the calculator marks of GSM8K, as in <<48/2=24>>
# One way to write each operator
OPERATORS = str.maketrans(
    dict.fromkeys(MINUS, "-") | dict.fromkeys(PLUS, "+") | dict.fromkeys("\u00d7\u2217\u22c5", "*")
)
OPERATORS |= str.maketrans("\u00f7\u2215\u2044\uff05", "///%")
SYMBOLS = "".join(chr(code) for code in range(0x10000) if unicodedata.category(chr(code)) == "Sm")  # mathematics
DEPENDS = re.compile(r"[-*/()]")  # operators and brackets, or punctuation: their neighbours decide
DROPPED = re.compile(rf"[^\w.%^*/()\-{re.escape(CURRENCIES + SYMBOLS)}]|\.(?!\d)")
GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # the comma of a group of thousands
INTEGRAL = re.compile(r"(\d)\.0+(?!\d)")  # a number that is written with a needless point
WORDLESS = re.compile(r"[^\w.]|\.(?!\d)")
OPENS = tuple(f".({CURRENCIES}")  # what, besides a digit, an operand may begin with


def _words(text: str) -> set[str]:
    return set(text.split())


# Abbreviations, whose period need not end a sentence. Splitters in libraries (pysbd, sentencex) know titles, but few of
# the units that word problems are full of. Titles and the like are always followed by something:
TITLES = _words("Mr Mrs Ms Mx Dr St Mt Prof Rev Gen Lt Col Capt Sgt Messrs vs approx e.g i.e")
NUMBERED = _words("No no Nos nos Nr nr Fig fig Eq eq")  # a number follows, or they are words
UNITS = _words(
    "lb lbs oz ft in yd yds mi sq cu gal gals qt qts pt pts tsp tbsp doz pkg pkgs hr hrs min mins sec secs wk wks mo "
    "mos yr yrs km cm mm kg mg ml mph ave avg jr sr inc co etc max temp misc"
)
OPENERS = _words(  # they begin sentences, so what stands before them is no initial
    "The This That These Those There Then Thus Therefore Hence Next First Now I You He She It We They His Her Its Our "
    "Their A An Each And But So Since If In On At For To Let When After As With Initially"
)


class DataError(InputError):
    """Raised when input cannot be used. The message names the file, the line and what to do."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One row as published, before a form of steps is chosen. ``solution`` is the reasoning without the answer."""

    key: str
    question: str
    solution: str
    answer: str
    place: str = ""  # file and line, for error messages


@dataclass(frozen=True, slots=True)
class Record:
    """One problem: its question, its reasoning steps (empty if the source has none) and its answer."""

    id: str
    question: str
    steps: tuple[str, ...]
    answer: str


def equations(solution: str) -> tuple[str, ...]:
    """Return the calculator marks of a solution, each as one step."""
    return tuple(MARK.findall(solution))


def sentences(solution: str) -> tuple[str, ...]:
    """Return the sentences of a solution, without its calculator marks. A step ends at a line break, or at a period
    before a blank that ends a sentence: not behind a title (Mr.), an initial (J. K. Rowling), the number of a list
    entry, or in mid-sentence behind a unit (3 lbs. of coffee), a time (7 a.m. to 9 a.m.) or an ellipsis. Joined by
    blanks, the steps are the text again."""
    steps: list[str] = []
    for line in map(str.strip, MARK.sub("", solution).split("\n")):
        start = 0
        for gap in re.finditer(r"(?<=\.)\s+", line):
            if _ends_sentence(line[start : gap.start()], line[gap.end() :]):
                steps.append(line[start : gap.start()])
                start = gap.end()
        steps.append(line[start:])
    return tuple(filter(None, steps))


def _ends_sentence(before: str, after: str) -> bool:
    """Return whether the period at the end of ``before`` ends a sentence. ``after``: the rest of the line. A period is
    taken to end one unless it is known to belong to the word before it: not every sentence begins with a capital."""
    *others, word = before.split()
    capital = after[0].isupper()
    if not others and re.fullmatch(r"\(?(\d{1,2}|[a-z])\.", word):  # the number of a list entry, as in "1. He pays"
        return False
    if word.endswith(".."):
        return capital
    name = re.sub(r"^[\W\d]+", "", word).removesuffix(".")  # "ft" of "8ft.", "Mr" of "(Mr."
    if name in TITLES:
        return False
    if name in NUMBERED:
        return not after[0].isdigit()
    last = name.rpartition(".")[2]  # "ft" of "sq.ft."
    if last.lower() in UNITS and (last != "in" or last != word[:-1] or _measures(others)):
        return capital and re.match(r"(Ft|In|Yd|Mi|Cm)\b", after) is None
    if re.fullmatch(r"([A-Za-z]\.)+[A-Za-z]", name):  # a.m., P.E.
        return capital
    if re.fullmatch(r"[A-Z]", name) and capital:  # an initial, or an unknown, as in "Call it T. She has 5"
        in_name = bool(others) and others[-1][0].isupper() and others[-1] not in OPENERS
        return not (re.match(r"[A-Z]\.\s", after) or (in_name and re.split(r"\W", after)[0] not in OPENERS))
    return True


def _measures(words: Sequence[str]) -> bool:
    """Return whether "in." behind these words is a unit: behind a number, or behind "sq." and the like."""
    return bool(words) and re.search(r"\d\W*$|^(sq|cu)\.?$", words[-1]) is not None


def lines(solution: str) -> tuple[str, ...]:
    """Return the lines of a solution that are not empty, each as one step."""
    return tuple(filter(None, map(str.rstrip, solution.splitlines())))


def number_text(number: str | float) -> str:
    """Return a number in the form that answers have: without currency, separators of thousands and percent sign, and
    without ``.0`` behind an integral value. A text that is no number is returned as it is, for its card to refuse."""
    text = str(number)
    found = read(text)
    return re.sub(r"\.0+$", "", found.text) if found else text.strip()


def normalise(question: str) -> str:
    """Reduce a question to what makes two questions the same.

    Letter case, punctuation, thousands separators, the ``.0`` of integral numbers and blanks (tokenised text writes
    "did n't") are dropped. Blanks between numbers stay, and so does what tells one calculation from another: signs,
    operators, comparisons, percent signs, currencies, and brackets beside an operator. Hyphens and strokes between
    words are punctuation.
    """
    text = " ".join(_composed(question).translate(OPERATORS).split())
    text = DEPENDS.sub(lambda found: found[0] if _calculates(found) else " ", text)
    text = GROUPED.sub("", text)
    return _squeezed(DROPPED, text)


def first_alike(ids: Sequence[str], questions: Sequence[str]) -> list[str]:
    """Return for each question the id of the first one that is the same: usually its own."""
    first: dict[str, str] = {}
    return [first.setdefault(normalise(text), id) for id, text in zip(ids, questions, strict=True)]


def question_hash(question: str) -> str:
    """Return the SHA-256 of a question's words and numbers. It decides what is validation data, whatever the order of
    the rows, and which of the generated questions are for tests.

    Symbols that :func:`normalise` keeps do not count here: with them, every question with a price would have another
    hash, and recorded runs other validation data. Questions that are the same have the same hash.
    """
    text = GROUPED.sub("", _composed(question))
    return hashlib.sha256(_squeezed(WORDLESS, text).encode()).hexdigest()


def _composed(text: str) -> str:
    """Return a text in small letters and in Unicode's composed form (NFC)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _squeezed(dropped: re.Pattern[str], text: str) -> str:
    """Return a text without the ``.0`` of integral numbers, what is to be dropped, and blanks other than those between
    numbers."""
    text = INTEGRAL.sub(r"\1", text)
    text = re.sub(r"(?<!\d) | (?!\d)", "", " ".join(dropped.sub(" ", text).split()))
    return INTEGRAL.sub(r"\1", text)  # what was dropped may have been within a number, as in `5..0`


def _calculates(found: re.Match[str]) -> bool:
    """Return whether an operator or a bracket in a question (with single blanks) is one, and not punctuation."""
    text, mark = found.string, found[0]
    before, after = text[max(0, found.start() - 3) : found.start()], text[found.end() : found.end() + 2]
    apart, loose = before.endswith(" "), after.startswith(" ")  # whether a blank is before it, and behind it
    before, last, first = before.rstrip(), before.rstrip()[-1:], after.lstrip()[:1]
    if mark == "(":
        return last in tuple("+-*/^=<>") or (last.isdigit() and not apart)
    if mark == ")":
        return first in tuple("+-*/^=<>")
    opens = first.isdigit() or first in OPENS
    closes = last.isdigit() or last in tuple(")%")
    if mark == "/":
        return opens or closes
    if mark == "*":
        return (opens or first.isalpha()) and (closes or last.isalpha())
    if last.isalpha():  # a sign touches its number; a single letter may be a variable
        return opens and ((apart and not loose) or not before[-2:-1].isalnum())
    return opens and (apart or last != "-")


def digest(rows: Iterable[Raw]) -> str:
    """Return the SHA-256 of questions, solutions and answers in order.
    It is the same for the same rows from another source."""
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps([row.question, row.solution, row.answer], ensure_ascii=False).encode() + b"\n")
    return total.hexdigest()
