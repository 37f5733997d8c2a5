"""The table of the long-range copy: accuracy by the number of steps, and which step was copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import pandas as pd

from benchmarks.records.results import StudyRecords
from benchmarks.records.statistics import FEWEST
from benchmarks.scoring.base import split_answer
from benchmarks.scoring.synthetic import bins, repeats
from benchmarks.studies.specs import Block, Row
from benchmarks.tables.base import cell, percent
from benchmarks.tables.markup import Cell, Column, Grid, Line
from benchmarks.tables.synthetic import Found, SyntheticTable

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
    share, before = fmean(map(repeats, texts)), fmean(len(split_answer(text)[0]) - 1 for text in texts)
    return Habit(share, min(1.0, 2 * share * before / (before - 1)) if before > 1 else share)


class LongRangeTable(SyntheticTable):
    """Every block is one value of K, the number of steps."""

    extra = ("Sampled strict (%)", "Greedy strict (%)", "Sampled repeats (%)", "Greedy repeats (%)")

    def grids(self) -> list[Grid]:
        return [self._scores(), self._copied(), self._detail()]

    def extra_cells(self, block: Block, row: Row) -> Iterator[Cell]:
        lines = [self.found(block, row, drawn) for drawn in (True, False)]
        yield from (Cell() if line is None else cell(line["strict"], percent) for line in lines)
        for line in lines:
            own = self._habit(line)
            yield Cell() if own is None else Cell(percent(own.repeats))

    def _habit(self, line: Found | None) -> Habit | None:
        """Return how often the answers of a line repeat their own steps, or None if there is no answer."""
        if line is None:
            return None
        place = line["block"], line["row"], line["decoding"]
        if place not in self._habits:
            self._habits[place] = habit_of(self.records, *place)
        return self._habits[place]

    @cached_property
    def _habits(self) -> dict[tuple[str, str, str], Habit | None]:
        """A cache of habits by block, row and decoding."""
        return {}

    def _by_habit(self, line: Found | None) -> str | None:
        """Say why the accuracy of a line is no evidence of memory, or return None."""
        own = self._habit(line)
        if line is None or own is None or pd.isna(line["accuracy"]) or not own.explains(line["accuracy"], line["low"]):
            return None
        return own.reason(line["accuracy"])

    def accuracy_note(self, line: Found) -> str:
        reason = self._by_habit(line)
        place = f"{self.study.block(line['block']).title}, {line['title']}"
        return self.note(reason and f"{place}, {'sampled' if line['stochastic'] else 'greedy'}: {reason}")

    def verdict_note(self, block: Block, rows: tuple[Row, Row]) -> str:
        """Name those of two compared rows whose accuracy is no evidence of memory."""
        titles = [self.study.row_title(row) for row in rows if self._by_habit(self.found(block, row, drawn=True))]
        return f"; no evidence of memory by {' and '.join(titles)}" if titles else ""

    def _copied(self) -> Grid:
        """Return the shares of the steps that right answers copied."""
        columns = tuple(Column(f"{self.study.row_title(row)} (%)") for row in self.study.rows)
        sections = tuple((block.title, tuple(self._bins(block))) for block in self.study.blocks)
        return Grid(
            "Which step was copied, among the answers that copied one", (*columns, Column("Uniform (%)")), sections
        )

    def _bins(self, block: Block) -> Iterator[Line]:
        counts = [self._counts(block, row) for row in self.study.rows]
        yield Line(Cell("answers (number)"), (*(Cell(f"{sum(own):,}") for own in counts), Cell()))
        choices = max((len(own) for own in counts), default=0)
        for part in bins(choices):
            copied = slice(part[0] - 1, part[-1])
            enough = [own if sum(own) >= FEWEST else [] for own in counts]
            cells = [Cell(percent(sum(own[copied]) / sum(own))) if own else Cell() for own in enough]
            name = f"step {part[0]}" if len(part) == 1 else f"steps {part[0]} to {part[-1]}"
            yield Line(Cell(name), (*cells, Cell(percent(len(part) / choices))))

    def _counts(self, block: Block, row: Row) -> list[int]:
        """Return how often each step was copied, over all questions, decoding seeds and training seeds."""
        draws = self.draws(block, row, drawn=True)
        if not draws:
            return []
        steps = range(1, draws[0][0].choices + 1)
        return [sum(seed.counts.get(str(step), 0) for seed in draws[0]) for step in steps]

    scoring = """Each of K - 1 steps says five random digits, and the last repeats those of one of them. Right: the five
        are those of an earlier step that was said. All methods say every step, and every step is scored. Repeats: of
        the steps before the last, the share that equals an earlier one, which random ones hardly ever do. Where it is
        large, the last step repeats one without having to remember it: a note marks accuracies that this habit
        explains."""
