"""The scorer of answers that are words: a sentence, yes or no, the letter of a choice."""

from __future__ import annotations

import unicodedata

from benchmarks.scoring.base import Reference, Score, Scorer, behind_marker
from methods.base import ANSWER_MARKER

# Punctuation of Unicode's category Po that ends no sentence or clause, in its compatible forms (NFKC)
WITHIN = frozenset(
    "\"#%&'*/@\\\u00a1\u00a7\u00b6\u00b7\u00bf\u2020\u2021\u2022\u2030\u2031\u2032\u2035\u203b\u2042\u066a"
)


class Text(Scorer):
    """An answer is correct if it is the gold answer, whatever the letter case, the white space, the marks at its end
    (of any script) and the way in which Unicode composes its letters. ``extracted`` is what is compared, so answers
    that count as the same are the same there."""

    name = "text"
    version = "2"
    reads_steps = False
    strict_means = "right, and written exactly as the gold answer; without a marker the last line counts"

    def score(self, text: str, asked: Reference) -> Score:
        """Judge a generated text. If it says nothing, or nothing behind its marker, it is wrong."""
        written = answer_line(text)
        if written is None:
            return Score(None, correct=False, strict=False)
        gold = asked.answer.strip()
        same = unicodedata.normalize("NFC", written) == unicodedata.normalize("NFC", gold)
        return Score(folded(written), correct=folded(written) == folded(gold), strict=same)


def answer_line(text: str) -> str | None:
    """Return the first line that says something after the last ``####``, or without one after the last of the other
    markers; the last line if there is no marker: those before are the chain. None if there is no such line."""
    tail, marked = text.rpartition(ANSWER_MARKER)[2], True
    if ANSWER_MARKER not in text:  # what other markers there are may be a part of the answer
        tail, marked = behind_marker(text)
    lines = [line.strip() for line in tail.split("\n") if line.strip()]
    return lines[0 if marked else -1] if lines else None


def folded(line: str) -> str:
    """Return a line in small letters and in Unicode's composed form, with single blanks and no mark at its end, unless
    it is nothing but marks."""
    small = unicodedata.normalize("NFC", line).casefold()
    plain = " ".join(unicodedata.normalize("NFC", small).split())
    end = len(plain)
    while end and (plain[end - 1] == " " or ends(plain[end - 1])):
        end -= 1
    return plain[:end] or plain


def ends(mark: str) -> bool:
    """Return whether a character is punctuation that ends a sentence or a clause, in any script."""
    compatible = unicodedata.normalize("NFKC", mark)[:1]
    return unicodedata.category(mark) == "Po" and mark not in WITHIN and compatible not in WITHIN


SCORERS = (Text(),)
