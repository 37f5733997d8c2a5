"""The scorer of the long-range copy task: the five numbers of the answer must be those of one earlier step."""

from __future__ import annotations

from benchmarks.scoring.base import MARKED, Asked, Score, Scorer, integers, said, states

COUNT = 5
WIDTH = 4  # steps per bin in the paper's figure


class Copying(Scorer):
    """The draw is the number of the step that was copied, counted from 1;
    if several steps are equal, the first of them."""

    name = "copy"
    reads_steps = True
    strict_means = MARKED

    def score(self, text: str, asked: Asked) -> Score:
        lines, marked = said(text)
        steps = states(asked, lines)[1:]
        answer = integers(lines[-1])
        complete = len(lines) == len(steps) + 1 and all(step is not None and len(step) == COUNT for step in steps)
        copied = steps.index(answer) + 1 if complete and answer in steps else None
        correct = copied is not None
        return Score(lines[-1] or None, correct, correct and marked, (str(copied) if correct else None,))

    def choices(self, asked: Asked) -> tuple[int, ...]:
        return (asked.steps or 1,)


def bins(choices: int) -> list[range]:
    """Return ranges of steps that are counted together: as wide as in the paper if that
    fills four bins, else one step each."""
    width = WIDTH if choices + 1 >= 4 * WIDTH else 1
    return [range(first, min(first + width, choices + 1)) for first in range(1, choices + 1, width)]


def repeats(text: str) -> float:
    """Return the share of an answer's steps (all lines but the last) that repeat an earlier one."""
    steps = said(text)[0][:-1]
    return 1 - len(set(steps)) / len(steps) if steps else 0.0


SCORERS = (Copying(),)
