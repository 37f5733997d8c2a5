r"""How a number is written: the one grammar by which gold answers, generated answers and votes are read.

    number    = [sign] [currency] amount [percent]  |  currency sign amount [percent]
    amount    = decimal [exponent]  |  fraction
    decimal   = integer ["." digits]  |  "." digits
    integer   = digits  |  groups of thousands
    exponent  = ("e" | "E") [sign] digits  |  ("*" | "x" | times sign) "10^" [sign] digits
    fraction  = [integer blank] integer "/" integer  |  "\frac{" digits "}{" digits "}"

* Sign: ``+``, a hyphen, or any minus sign or dash of Unicode, before or behind the currency, with or without blanks. It
  is one only where no operand precedes it: in ``5 - 3``, ``10-8`` and ``50% - 3`` it is an operator, in ``COVID-19`` a
  hyphen, in ``Total --5`` a dash. Behind a word it is a sign if it touches its number and not the word (``is -5``); the
  minus sign proper (U+2212) may have blanks on both sides.
* Currency: any currency symbol of Unicode, also escaped (``\$``) or behind the letters of a country (``US$``), or a
  code such as ``EUR``. It does not count, and neither does a percent sign, which is a unit: ``40%`` is 40.
* Groups of thousands: one to three digits, the first of them not 0, and then groups of exactly three digits, all behind
  the same separator (:data:`SEPARATORS`), with no further digits beside them: ``9{,}500`` is 9500. Otherwise it is a
  list: ``1,2,3``, ``1,5``, ``1,234,56``. An ordinary blank separates groups too, so ``1 000`` is 1000; a list whose
  numbers all look like groups (``12 345 678``) cannot be told from one number and is read as one.
* A point is always a decimal point: ``1.000`` is 1. It may end a number that stands alone: ``36.``
* A number that is raised to a power, divided again, or has a superscript or a fraction sign behind it (``10^5``,
  ``12/05/2020``, ``2½``) is part of an expression. That has no value, and is not the number that it begins with. The
  parts of sums, differences and products are numbers, each for itself.

Nothing here fails or takes long for any text: exponents are never expanded.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

PROPER = "\u2212\ufe63\uff0d"  # minus signs that are never a dash
MINUS = f"-\u2010\u2011\u2012\u2013\u2014{PROPER}"
PLUS = "+\uff0b"
BLANKS = " \t\u00a0\u2007\u2009\u202f"
# Patterns of what separates groups of thousands; LaTeX writes `{,}`, `,\!` or `\,`
SEPARATORS = (",", r"\{,\}", r",\\!", r"\\,", "[\u00a0\u2007\u2009\u202f]", "[ ]", "['\u2019]", "~")
CURRENCIES = "".join(chr(code) for code in range(0x10000) if unicodedata.category(chr(code)) == "Sc")
LONGEST_EXPONENT = 17  # digits; a number with a longer exponent, which `Decimal` may refuse, has no value
LONGEST_PART = 300  # digits of a numerator or denominator, whose quotient is then within the range of floats
BEFORE = 40  # characters before a sign that decide what it is

Value = Decimal | Fraction  # both are exact, and equal values of either are equal and hash alike
_SIGN = f"[{re.escape(PLUS + MINUS)}]"
_BLANK = f"[{BLANKS}]"
_CURRENCY = rf"(?:(?:US|CA|AU|NZ|HK|[ACSR])?\\?[{CURRENCIES}]|(?:USD|EUR|GBP|JPY|INR|CNY|CHF)(?![A-Za-z]))"
_GROUPED = "|".join(rf"(?<!\d{mark})(?!0)\d{{1,3}}(?:{mark}\d{{3}})++(?!{mark}?\d)" for mark in SEPARATORS)
_INTEGER = rf"(?:{_GROUPED}|\d++)"
_NUMBER = rf"""
(?:
  (?P<sign>{_SIGN}){_BLANK}{{0,3}}(?:{_CURRENCY}{_BLANK}{{0,3}})?
  |{_CURRENCY}{_BLANK}{{0,3}}(?:(?P<late>{_SIGN}){_BLANK}{{0,3}})?
)?
(?P<amount>
  \\[dt]?frac\{{(?P<top>\d++)\}}\{{(?P<bottom>\d++)\}}
  |(?:(?P<whole>{_INTEGER}){_BLANK}(?!0))?(?P<over>{_INTEGER}){_BLANK}?/{_BLANK}?(?P<under>{_INTEGER})(?!\.\d)
  |(?P<decimal>{_INTEGER}(?:\.\d++)?|\.\d++)
   (?:
     [eE](?P<power>{_SIGN}?\d++)
     |{_BLANK}?(?:[*x\u00d7\u00b7]|\\times|\\cdot){_BLANK}?10(?:\^|\*\*)(?:\{{(?P<braced>{_SIGN}?\d++)\}}|(?P<raised>{_SIGN}?\d++))
   )?
)
(?P<more>(?:
  (?:{_BLANK}?\^{_BLANK}?|\*\*(?=[\d({{])|{_BLANK}?/{_BLANK}?(?=[\d(]|\.\d))[({{]*{_SIGN}?\d*+(?:\.\d++)?[)}}]*
  |[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]
)*+)
(?:{_BLANK}?\\?[%\uff05])?
"""
NUMBER = re.compile(_NUMBER, re.VERBOSE)
ALONE = re.compile(rf"(?:{_NUMBER})\.?(?:{_BLANK}?{_CURRENCY})?", re.VERBOSE)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as written, without its currency, separators and percent sign, with ASCII digits and a hyphen as its
    minus sign; and its value. The value of an expression is None, and then ``text`` is the expression as it stands."""

    text: str
    value: Value | None


def numbers(text: str) -> Iterator[Number]:
    """Yield the numbers and expressions of a text in order. Exponents of letters (``m^2``) are left out."""
    for match in NUMBER.finditer(text):
        before = text[max(0, match.start() - BEFORE) : match.start()]
        if not before.endswith(("^", "^{")):
            yield _number(match, before)


@lru_cache(1 << 16)  # answers repeat: over draws, decodings and methods
def read(text: str) -> Number | None:
    """Return the number that a whole text is, or None if it is anything else. A point or a currency may end it."""
    match = ALONE.fullmatch(text.strip())
    found = _number(match, "") if match else None
    return found if found and found.value is not None else None


def value_of(text: str) -> Value | None:
    """Return the value of a text that is one number, or None."""
    found = read(text)
    return found.value if found else None


def _number(match: re.Match[str], before: str) -> Number:
    mark = match["sign"] or match["late"] or ""
    loose = match["sign"] is not None and match.string[match.end("sign")] in BLANKS
    minus = "-" if mark and mark in MINUS and _is_sign(mark, loose, before) else ""
    if match["decimal"]:
        text, value = _decimal(match, minus)
    else:
        text, value = _fraction(match, minus)
    if match["more"] or value is None:
        return Number(minus + match["amount"] + match["more"], None)
    return Number(text, value)


def _is_sign(mark: str, loose: bool, before: str) -> bool:
    """Return whether a mark before a number is its sign, from the text before it.
    ``loose``: whether a blank follows the mark."""
    line = before.rpartition("\n")[2]
    kept = line.rstrip(BLANKS)
    apart = len(kept) < len(line)
    last = kept[-1:]
    if last.isnumeric() or last in tuple("%\uff05\u00b0"):
        return False
    if last in tuple(MINUS):
        return apart
    if last.isalpha() or last in tuple(")]}"):
        return apart and (not loose or mark in PROPER)
    return True


def _decimal(match: re.Match[str], minus: str) -> tuple[str, Value | None]:
    digits = _ascii(match["decimal"])
    power = match["power"] or match["braced"] or match["raised"] or ""
    if not power:
        return minus + digits, Decimal(minus + digits)
    sign = "-" if power[0] in MINUS else "+" if power[0] in PLUS else ""
    exponent = _ascii(power)
    mark = "E" if "E" in match["amount"] else "e"
    text = f"{minus}{digits}{mark}{sign}{exponent}"
    if len(exponent) > LONGEST_EXPONENT:
        return text, None
    return text, Decimal(f"{minus}{digits}e{sign}{exponent}")


def _fraction(match: re.Match[str], minus: str) -> tuple[str, Value | None]:
    whole, over, under = (
        _ascii(match[a] or match[b] or "") for a, b in (("whole", "whole"), ("over", "top"), ("under", "bottom"))
    )
    text = f"{minus}{whole} {over}/{under}" if whole else f"{minus}{over}/{under}"
    if max(map(len, (whole, over, under))) > LONGEST_PART:
        return text, None
    top, bottom = int(over), int(under)
    if bottom == 0 or (whole and top >= bottom):
        return text, None
    value = Fraction(top + int(whole or 0) * bottom, bottom)
    return text, -value if minus else value


def _ascii(text: str) -> str:
    """Return the digits and the point of a number in ASCII, without anything else."""
    return "".join(
        "." if mark == "." else str(unicodedata.decimal(mark)) for mark in text if mark == "." or mark.isdecimal()
    )
