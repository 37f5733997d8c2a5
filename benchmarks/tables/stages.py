"""The table of curricula: how a row answers by the weights that each of its stages ended with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import pandas as pd

from benchmarks.records import statistics
from benchmarks.records.schema import EvaluateRecord
from benchmarks.records.summary import answers
from benchmarks.studies.runs import RunSpec, row_of, run_id
from benchmarks.studies.specs import Block, Row
from benchmarks.tables.cells import cell, p_value, percent, points
from benchmarks.tables.maker import Maker
from benchmarks.tables.markup import Cell, Column, Grid, Line

PLACE = ["block", "row", "weights", "epochs"]
COLUMNS = [*PLACE, "test", "n", "training_seeds", "accuracy", "spread", "difference", "p_value", "p_holm", "kind"]
OF_TEST = ("Acc (%)", "Δ", "p")


@dataclass(frozen=True)
class Moment:
    """What a row answers by at one time: the weights of a ``row`` of the records, perhaps the one that it starts from,
    and the name of what was answered by them there."""

    title: str
    row: str
    decoding: str
    epochs: float | None = None


class StagesTable(Maker):
    """Every stage against what its row starts from, or against the row's first stage where that is nothing."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: by stage of the curriculum"

    @cached_property
    def frame(self) -> pd.DataFrame:
        tests = ((*place, test) for place in self._curricula for test in self.study.tests_of(place[0]))
        return pd.DataFrame([line for place in tests for line in self._lines(*place)], columns=COLUMNS)

    @cached_property
    def _curricula(self) -> list[tuple[Block, Row]]:
        """The rows that keep the weights of their stages."""
        found = [(block, row) for block in self.study.blocks for row in self.all_rows(block)]
        return [place for place in found if (run := self._run(*place)) and run.training.keep_stages]

    def _run(self, block: Block, row: Row) -> RunSpec | None:
        """A row's first training; None where the row is skipped."""
        return self.study.runs.get(run_id(block.id, row.id, self.study.seeds[0]))

    def _records(self, block: Block, row: str) -> list[EvaluateRecord]:
        """Those of a row's trainings that are there."""
        runs = [self.runs.get(run_id(block.id, row, seed)) for seed in self.study.seeds]
        return [run.evaluate for run in runs if run and run.evaluate]

    def _moments(self, block: Block, row: Row) -> Iterator[Moment]:
        """What a row starts from, and the ends of its stages."""
        records = self._records(block, row.id)
        if not records:
            return
        run = self._run(block, row)
        start = row_of(run.starts_from) if run and run.starts_from else None
        if start and self._records(block, start):
            titles = {other.id: self.study.row_title(other) for other in self.study.rows}
            yield Moment(f"{titles.get(start, start)} (its start)", start, "default")
        for name, (stage, _) in records[0].by_stage.items():
            yield Moment(stage.name, row.id, name, stage.epochs)

    def _lines(self, block: Block, row: Row, test: str) -> Iterator[dict[str, Any]]:
        """The moments of a row on one test set; p-values are corrected for these."""
        moments = list(self._moments(block, row))
        correct = [self._correct(block, moment, test) for moment in moments]
        tests = [statistics.paired_test(other, correct[0]) for other in correct[1:]]
        adjusted = statistics.holm([found.p_value for found in tests])
        against = [vars(found) | {"p_holm": p} for found, p in zip(tests, adjusted, strict=True)]
        for moment, found in zip(moments, [{}, *against], strict=False):
            scores = [record.decodings[moment.decoding].tests[test] for record in self._records(block, moment.row)]
            means = [fmean(one.accuracy) for one in scores]
            place = dict(zip(PLACE, (block.id, row.id, moment.title, moment.epochs), strict=True))
            yield {
                **found,
                **place,
                "test": test,
                "n": scores[0].n,
                "training_seeds": len(scores),
                "accuracy": fmean(means),
                "spread": statistics.spread(means),
            }

    def _correct(self, block: Block, moment: Moment, test: str) -> pd.DataFrame:
        columns = ("test", "id", "same_as", "correct")
        place = block.id, moment.row, moment.decoding
        found = answers(self.study, self.runs, self.results, *place, columns)
        assert found is not None  # a row has moments where it has answered
        return statistics.correctness(found.loc[found["test"] == test])

    def grids(self) -> list[Grid]:
        columns = (Column("Epochs"), *(Column(name, self.test_title(t)) for t in self.test_names for name in OF_TEST))
        sections = tuple(
            (f"{block.title} · {self._title(block, row)}", tuple(self._shown(block, row)))
            for block, row in self._curricula
        )
        return [Grid(self.title, columns, sections, head="Weights after")]

    def _title(self, block: Block, row: Row) -> str:
        return self.study.row_title(row) + self.without_r(self.line(block, row))

    def _shown(self, block: Block, row: Row) -> Iterator[Line]:
        own = self.frame.loc[(self.frame["block"] == block.id) & (self.frame["row"] == row.id)]
        if own.empty:
            line, dashes = self.line(block, row), [Cell()] * len(OF_TEST) * len(self.test_names)
            yield Line(self.row_title(line), (self.absent(line), *dashes))
        for (title, epochs), lines in own.groupby(["weights", "epochs"], sort=False, dropna=False):
            by_test = {line["test"]: line for line in lines.to_dict("records")}
            cells = [cell for test in self.test_names for cell in self._of_test(by_test.get(test))]
            yield Line(Cell(str(title)), (cell(epochs, "{:.2f}".format), *cells))

    def _of_test(self, line: Mapping[str, Any] | None) -> tuple[Cell, ...]:
        if line is None:  # no test of this block
            return tuple(Cell() for _ in OF_TEST)
        lacking = line["training_seeds"] < len(self.study.seeds)
        note = self.note(f"{line['training_seeds']} of {len(self.study.seeds)} trainings" * lacking)
        accuracy = cell(line["accuracy"], percent, spread=line["spread"])
        return (
            Cell(accuracy.text, accuracy.tail, mark=note),
            cell(line["difference"], points),
            cell(line["p_holm"], p_value),
        )

    def legend(self) -> Iterator[str]:
        if not self._curricula:
            yield "No row keeps the weights of its stages: set `keep_stages: true` in its `training`."
            return
        over = " ± is the standard deviation over training seeds." if len(self.study.seeds) > 1 else ""
        yield f"""Acc: accuracy of the default decoding by the weights that a stage ended with, which answer as they
        were trained to: steps that are not internalised yet are written.{over} Epochs: of the row's own training, until
        then. Δ: minus the first line of the section, in percentage points. p: paired test of that difference over the
        same questions, Holm's correction for the lines of the section. {self.speaks}"""
        yield """Early stages end at a higher learning rate than the last one, where a schedule lowers it, and soon
        after a new optimizer, where a stage begins with one: both cost accuracy too. No weights were chosen by these
        test sets."""
