"""The scorer of answers that are words: a sentence, yes or no, the letter of a choice."""

from __future__ import annotations

from benchmarks.scoring.base import Asked, Score, Scorer, behind_marker
from methods.base import ANSWER_MARKER

FINAL = ".,;:!?"  # marks at the end of an answer that do not count


class Text(Scorer):
    """An answer is correct if it is the gold answer, whatever the letter case, the white space and the marks at its
    end. ``extracted`` is what is compared, so answers that count as the same are the same there."""

    name = "text"
    reads_steps = False
    strict_means = "right, and written exactly as the gold answer; without a marker the last line counts"

    def score(self, text: str, asked: Asked) -> Score:
        """Judge a generated text. If it says nothing, or nothing behind its marker, it is wrong."""
        said = answer_line(text)
        if said is None:
            return Score(None, correct=False, strict=False)
        gold = asked.answer.strip()
        return Score(folded(said), correct=folded(said) == folded(gold), strict=said == gold)


def answer_line(text: str) -> str | None:
    """Return the first line that says something after the last ``####``, or without one after the last of the other
    markers; the last line if there is no marker: those before are the chain. None if there is no such line."""
    tail, marked = text.rpartition(ANSWER_MARKER)[2], True
    if ANSWER_MARKER not in text:  # what other markers there are may be a part of the answer
        tail, marked = behind_marker(text)
    lines = [line.strip() for line in tail.split("\n") if line.strip()]
    return lines[0 if marked else -1] if lines else None


def folded(line: str) -> str:
    """Return a line in small letters, with single blanks and no mark at its end, unless it is nothing but marks."""
    plain = " ".join(line.casefold().split())
    return plain.rstrip(f"{FINAL} ") or plain


SCORERS = (Text(),)
