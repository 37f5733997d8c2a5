"""How often a model repeats its own steps although the task does not ask for it.

Hits in the long-range copy that this habit explains are no evidence of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.records.study_records import StudyRecords
from benchmarks.scoring.base import said
from benchmarks.scoring.copying import repeats

FREELY = 0.01  # a share of repeated steps up to this is too small to explain anything


@dataclass(frozen=True)
class Habit:
    """How often a model repeats steps.

    * ``repeats``: the share of the steps before the last that equal an earlier one, although none has to.
    * ``last``: the share of last steps that would equal an earlier one at the same rate. About twice as many steps
      precede the last step as precede a step on average.
    """

    repeats: float
    last: float

    def explains(self, hits: float, low: float) -> bool:
        """Return whether the habit alone explains an accuracy, so that it is not clearly higher.

        ``hits`` is the accuracy (a share of 1), ``low`` the lower bound of its interval over questions.
        """
        return self.repeats > FREELY and hits > 0 and low <= self.last

    def reason(self, hits: float) -> str:
        """Say why hits that the habit explains are no evidence of memory."""
        return (
            f"{100 * self.repeats:.1f} % of the steps before the last repeat an earlier step, though nothing asks for "
            f"it; at this rate {100 * self.last:.1f} % of the last steps, which have more steps before them, would "
            f"repeat one by chance, and {100 * hits:.1f} % do: no evidence of memory"
        )


def habit_of(records: StudyRecords, block: str, row: str, decoding: str) -> Habit | None:
    """Return the habit that a row's answers under a decoding show, or None if there is no answer."""
    own = records.answers(block, row, decoding, ("text",))
    return None if own is None else habit(own["text"].tolist())


def habit(texts: Sequence[str]) -> Habit:
    """Return the habit that a row's answers to one test set show. Each text has one line per step."""
    share, before = fmean(map(repeats, texts)), fmean(len(said(text)[0]) - 1 for text in texts)
    return Habit(share, min(1.0, 2 * share * before / (before - 1)) if before > 1 else share)
