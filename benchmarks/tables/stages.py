"""The table of curricula: a row's accuracy with the weights that each of its stages ended with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import pandas as pd

from benchmarks.records import statistics
from benchmarks.records.summary import index_by
from benchmarks.studies.runs import row_of
from benchmarks.studies.specs import Block, Row
from benchmarks.tables.base import TableBuilder, cell, difference, percent
from benchmarks.tables.markup import Cell, Column, Grid, Line

COLUMNS = {
    **dict.fromkeys(("block", "row"), "string"),
    "moment": "Int64",  # index within the row
    "weights": "string",  # the moment's title
    "epochs": "Float64",
    "test": "string",
    **dict.fromkeys(("n", "training_seeds"), "Int64"),
    **dict.fromkeys(("accuracy", "spread", "difference", "p_value", "p_holm"), "Float64"),
    "kind": "string",  # of the test
}
OF_TEST = ("Acc (%)", "Δ", "p")


@dataclass(frozen=True)
class Moment:
    """A point in a row's curriculum: the weights whose answers are scored."""

    title: str
    row: str  # that the weights belong to: the row itself, or the one that it starts from
    answered: str  # the name of their answers in the records
    epochs: float | None = None


class StagesTable(TableBuilder):
    """Every stage of a row against its warm start, or against the row's first stage if it has no warm start."""

    topic = "by stage of the curriculum"

    @cached_property
    def frame(self) -> pd.DataFrame:
        lines = [line for place in self._curricula for line in self._lines(*place)]
        return pd.DataFrame(lines, columns=[*COLUMNS]).astype(COLUMNS)

    @property
    def paired_tests(self) -> pd.DataFrame:
        """Tests of each stage minus the first line of its row, corrected for the row's lines on the test set."""
        return self.frame.dropna(subset="kind").drop(columns=["training_seeds", "accuracy", "spread"])

    @cached_property
    def _curricula(self) -> list[tuple[Block, Row]]:
        """The rows that keep the weights of their stages."""
        return [
            (block, row)
            for block in self.study.blocks
            for row in self.all_rows(block)
            if any(run.training.keep_stages for run in self.study.trainings(block.id, row.id))
        ]

    def _moments(self, block: Block, row: Row) -> Iterator[Moment]:
        """Yield a row's warm start, if any, and the ends of its stages (one moment if the row has not run)."""
        run, records = self.study.trainings(block.id, row.id)[0], self.records.evaluations(block.id, row.id)
        if run.starts_from:
            start = row_of(run.starts_from)
            yield Moment(f"{self.study.row_titles.get(start, start)} (its start)", start, "default")
        for name, (stage, _) in records[0].by_stage.items() if records else ():
            yield Moment(stage.name, row.id, name, stage.epochs)
        if not records:
            yield Moment(self.study.row_titles[row.id], row.id, "default")

    def _lines(self, block: Block, row: Row) -> Iterator[dict[str, Any]]:
        """Yield a line for each test set and moment, with the paired test against the first moment."""
        moments = list(self._moments(block, row))
        correct = [self.records.correctness(block.id, moment.row, moment.answered) for moment in moments]
        for test in self.study.tests_of(block):
            against = _against_first([by_test.get(test) for by_test in correct])
            for number, (moment, tested) in enumerate(zip(moments, against, strict=True)):
                place = {"block": block.id, "row": row.id, "moment": number, "test": test}
                at = {"weights": moment.title, "epochs": moment.epochs}
                yield self._scores(block, moment, test) | tested | place | at

    def _scores(self, block: Block, moment: Moment, test: str) -> dict[str, Any]:
        """Return the accuracy of a moment, over the trainings that were evaluated."""
        records = self.records.evaluations(block.id, moment.row)
        scores = [record.decodings[moment.answered].tests[test] for record in records]
        if not scores:
            return {"training_seeds": 0}
        means = [fmean(one.accuracy) for one in scores]
        counts = {"n": scores[0].n, "training_seeds": len(scores)}
        return {**counts, "accuracy": fmean(means), "spread": statistics.sample_std(means)}

    def grids(self) -> list[Grid]:
        columns = (Column("Epochs"), *(Column(name, self.test_title(t)) for t in self.test_names for name in OF_TEST))
        sections = []
        for block, row in self._curricula:
            title = self.study.row_titles[row.id] + self.dead_r_suffix(self.line(block, row))
            sections.append((f"{block.title} · {title}", [*self._shown(block, row)]))
        return [Grid(self.title, columns, sections, head="Weights after")]

    def _shown(self, block: Block, row: Row) -> Iterator[Line]:
        lines = index_by(self.frame, "block", "row", "moment", "test")
        for number, moment in enumerate(self._moments(block, row)):
            cells: list[Cell] = []
            for test in self.test_names:
                cells += self._of_test(block, moment, lines.get((block.id, row.id, number, test)))
            warned = self.line(block, row)["warning"] if moment.row == row.id and moment.answered == "default" else None
            yield Line(Cell(moment.title, mark=self.note(warned)), (cell(moment.epochs, "{:.2f}".format), *cells))

    def _of_test(self, block: Block, moment: Moment, line: Mapping[str, Any] | None) -> tuple[Cell, ...]:
        if line is None:  # this block is not evaluated on the test set
            return (Cell(),) * len(OF_TEST)
        missing = self.note(self._missing(block, moment.row))
        accuracy = Cell("not run", mark=missing)
        if line["training_seeds"]:
            accuracy = replace(cell(line["accuracy"], percent, spread=line["spread"]), mark=missing)
        return accuracy, *difference(line)

    def _missing(self, block: Block, row: str) -> str:
        """Say which trainings of a row have no answers, and why."""
        runs = {run.id: self.records.runs[run.id] for run in self.study.trainings(block.id, row)}
        return "; ".join(f"{id}: {run.problems.get('evaluate')}" for id, run in runs.items() if not run.evaluate)

    def legend(self) -> Iterator[str]:
        if not self._curricula:
            yield "No row keeps the weights of its stages: set `keep_stages: true` in its `training`."
            return
        over = " ± is the standard deviation over training seeds." if len(self.study.seeds) > 1 else ""
        yield f"""Acc: accuracy of the default decoding by the weights that a stage ended with, which answer as they
        were trained to: steps that are not internalised yet are written.{over} Epochs: of the row's own training, until
        then. Δ: minus the first line of the section, in percentage points. p: paired test of that difference over the
        same questions, Holm's correction for the lines of the section. {self.generalisation}"""
        yield """Early stages are also at a disadvantage: where a schedule lowers the learning rate, they end at a
        higher one, and where an optimizer starts anew, they have fewer steps to recover. No weights were chosen by
        these test sets."""


def _against_first(correct: Sequence[pd.DataFrame | None]) -> list[dict[str, Any]]:
    """Return the paired test of each moment against the first, corrected for all of them; an empty dict for the first
    and for moments whose answers are missing."""
    first, *others = correct
    pairs = {
        number: (other, first) for number, other in enumerate(others, 1) if other is not None and first is not None
    }
    tests = dict(zip(pairs, statistics.family([*pairs.values()]), strict=True))
    return [tests.get(number, {}) for number in range(len(correct))]
