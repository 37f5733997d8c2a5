"""Tables of accuracy alone, every row against the first row, beside the paper's number for it: of further ablations, of
non-autoregressive decoding, and of methods that start from published checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import pandas as pd

from benchmarks.paper.numbers import Printed, paper_table
from benchmarks.records import statistics
from benchmarks.records.summary import index_by
from benchmarks.studies.specs import Block, Row
from benchmarks.tables.base import NOT_THE_PAPERS, PASSES, RANKS, TIE, TableBuilder, cell, difference, printed_cell
from benchmarks.tables.markup import Cell, Column, Grid, Line, Section


class AccuracyTable(TableBuilder):
    """Accuracy of each row, and its difference from the first row of its section."""

    references: ClassVar[tuple[str, ...]]  # the paper's tables: a row's numbers come from the first that has it

    def grids(self) -> list[Grid]:
        own = [column for test in self.test_names for column in self._columns(test)]
        grids = [Grid(self.title, own, self._sections(self._line))]
        if self.study.paper is None and self._has_reference:
            columns = [
                Column(name, group)
                for group in paper_table(self.references[0]).tests.values()
                for name in ("Acc (%)", "Δ")
            ]
            caption = "For reference: the paper's numbers, in the paper's setting, not this study's"
            grids.append(Grid(caption, columns, self._sections(self._paper_line)))
        return [*grids, self.questions()]

    @cached_property
    def _has_reference(self) -> bool:
        """Whether the paper has a number of any row."""
        tests = paper_table(self.references[0]).tests
        rows = ((block, row) for block in self.study.blocks for row in self.all_rows(block))
        return any(self._printed(block, row, test) for block, row in rows for test in tests)

    def _columns(self, test: str) -> Iterator[Column]:
        group = self.test_title(test)
        yield from (Column(name, group) for name in ("Acc (%)", "Δ", "p"))
        if self.study.paper:
            yield from (Column(name, group) for name in ("Paper (%)", "Paper Δ"))

    def _sections(self, line: Callable[[Block, Row, Row], Line]) -> list[Section]:
        """Return sections of a block's rows, each row beside the first of its section."""
        return [
            (heading, [line(block, row, rows[0]) for row in rows])
            for block in self.study.blocks
            for heading, rows in self.rows(block)
        ]

    def _line(self, block: Block, row: Row, first: Row) -> Line:
        title, cells = self.row_title(self.line(block, row)), []
        for test in self.test_names:
            line = self.summary.line(block.id, row.id, "default", test)
            if line is None:  # this block is not evaluated on the test set
                cells += [Cell() for _ in self._columns(test)]
                continue
            cells += [self.accuracy(line), *difference(self._against_first.get((block.id, row.id, test)))]
            if self.study.paper:
                cells += self._paper(block, row, first, test)
        return Line(title, cells, row.indent)

    def _paper_line(self, block: Block, row: Row, first: Row) -> Line:
        tests = paper_table(self.references[0]).tests
        cells = [cell for test in tests for cell in self._paper(block, row, first, test)]
        return Line(Cell(self.study.row_titles[row.id]), cells, row.indent)

    def _paper(self, block: Block, row: Row, first: Row, test: str) -> tuple[Cell, Cell]:
        """Return the paper's number and its difference from the first row's, or dashes if the paper has none."""
        printed, base = (self._printed(block, of, test) for of in (row, first))
        if printed is None:
            return Cell(), Cell()
        digits = paper_table(self.references[0]).decimals
        shown = printed_cell(printed, f"{{:.{digits}f}}".format)
        return shown, Cell() if base is None or row is first else Cell(f"{printed.mean - base.mean:+.{digits}f}")

    def _printed(self, block: Block, row: Row, test: str) -> Printed | None:
        for name in self.references:
            printed = paper_table(name).rows(block.id)
            if row.id in printed and test in printed[row.id].tests:
                return printed[row.id].tests[test].accuracy
        return None

    @cached_property
    def paired_tests(self) -> pd.DataFrame:
        """Tests of each row minus the first of its block, with p-values corrected within a block and test set."""
        lines = []
        for block in self.study.blocks:
            first = self.all_rows(block)[0].id
            for test in self.test_names:
                family = list(_pairs_with(first, self.summary.pairs, block.id, test))
                adjusted = statistics.holm([line["p_value"] for line in family])
                lines += [line | {"p_holm": p} for line, p in zip(family, adjusted, strict=True)]
        columns = ["block", "row", "against", "test", "n", "difference", "p_value", "p_holm", "kind"]
        return pd.DataFrame(lines, columns=columns)

    @cached_property
    def _against_first(self) -> dict[tuple[str, ...], dict[str, Any]]:
        return index_by(self.paired_tests, "block", "row", "test")

    def legend(self) -> Iterable[str]:
        over = "training seeds" if len(self.study.seeds) > 1 else "decoding seeds of one trained model"
        yield f"""Acc: accuracy of the default decoding, mean over seeds; ± is the standard deviation over the {over};
        (det.): nothing is drawn. Δ: the row minus the first of its section, in percentage points. p: paired test of
        that difference over the same questions, Holm's correction for the rows of the section."""
        yield self.about_questions()
        family = self.separation if self.study.comparisons else "The marks are corrected for all pairs of rows."
        yield f"""{RANKS} {family} p is corrected for the comparisons with the first row alone, so a row can have p <
        {statistics.ALPHA} and {TIE} too. {self.generalisation}"""
        papers = [paper_table(name) for name in self.references]
        places, about = "; ".join(paper.place for paper in papers), papers[0].about_tests
        if self.study.paper:
            yield f"Paper: {places}. A dash: the paper gives no number."
        elif not self._has_reference:
            yield NOT_THE_PAPERS
        else:
            yield f"""This study's setting is not the paper's: only the sign of a difference can be compared with the
            paper's, not its size. Paper: {places}. {about} A dash: the paper gives no number."""


class AblationTable(AccuracyTable):
    """The table of the paper's appendix "Additional Ablation Studies". Its default row is that of the main table."""

    references = ("ablation",)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        if self.study.paper or self._has_reference:
            yield """The paper says that initialisation makes a marginal difference, and prints no number for it. For a
            sparsity weight of 0 its LaTeX source has a row that is commented out, with accuracies of about 1 %."""


class NarTable(AccuracyTable):
    """Non-autoregressive decoding. The paper's table has only such rows; its main table has those of all other rows."""

    references = ("one_shot", "main_0.5b")

    def grids(self) -> list[Grid]:
        columns = (Column("Passes/question"), Column("Tokens/question"))
        *others, last = super().grids()
        return [*others, Grid("What an answer takes", columns, self.by_test(self._cost_lines)), last]

    def _cost_lines(self, block: Block, row: Row, test: str) -> Iterator[Line]:
        line = self.line(block, row, test)
        costs = (cell(line["forward_passes"], "{:.2f}".format), cell(line["tokens_per_question"], "{:.1f}".format))
        yield Line(self.row_title(line), costs, row.indent)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield f"{PASSES} Rows that speak at once were trained to do so."


class PretrainedTable(AccuracyTable):
    """Methods that start from published checkpoints, with one block per checkpoint as in the paper."""

    references = ("pretrained",)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        for block in self.study.blocks:
            runs = [run for run in self.study.runs.values() if run.block == block.id]
            starts = dict.fromkeys(run.backbone.pretrained or f"{run.backbone.name} from scratch" for run in runs)
            yield f"{block.title}: from {' and '.join(starts)}."


def _pairs_with(first: str, pairs: pd.DataFrame, block: str, test: str) -> Iterator[dict[str, Any]]:
    """Yield the pairs of a block and test set that include the ``first`` row, as the other row minus the first."""
    for pair in pairs.loc[(pairs["block"] == block) & (pairs["test"] == test)].to_dict("records"):
        if first in (pair["a"], pair["b"]):
            other, sign = (pair["b"], -1.0) if pair["a"] == first else (pair["a"], 1.0)
            shared = {name: pair[name] for name in ("block", "test", "n", "p_value", "kind")}
            yield {**shared, "row": other, "against": first, "difference": sign * pair["difference"] + 0.0}  # no -0
