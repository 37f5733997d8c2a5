"""The table of controls: a method's accuracy when questions are answered with latents that are not their own."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from benchmarks.studies.specs import Block, DecodingSpec, Row
from benchmarks.tables.cells import cell, difference, percent
from benchmarks.tables.maker import Maker, heading
from benchmarks.tables.markup import Cell, Column, Grid, Line
from methods.registry import get_method

MEANINGS = {
    "exchanged": "after every latent step, each question continues with the latents of another question of its batch",
    "mean": "after every latent step, each question continues with the mean of its batch's latents",
}


class ControlsTable(Maker):
    """The default decoding, and beside it the same decoding with other latents."""

    @classmethod
    def shows(cls, spec: DecodingSpec) -> bool:
        return spec.thoughts != "own"

    @property
    def title(self) -> str:
        return f"{self.study.title}: do the latents carry anything?"

    @property
    def frame(self) -> pd.DataFrame:
        return self.summary.tested

    @property
    def paired_tests(self) -> pd.DataFrame:
        return self.summary.swaps

    def grids(self) -> list[Grid]:
        columns = [Column("Own (%)")]
        for name in self.decodings():
            group = heading(name)
            columns += [Column("(%)", group), Column("lost", group), Column("p", group)]
        return [Grid(self.title, tuple(columns), self.by_test(self._lines)), self.questions()]

    def _lines(self, block: Block, row: Row, test: str) -> Iterator[Line]:
        own = self.line(block, row, test)
        score = self.absent(own) if pd.isna(own["accuracy"]) else Cell(percent(own["accuracy"]), mark=self.lacking(own))
        swaps = (cell for name in self.decodings() for cell in self._swap(block, row, name, test))
        yield Line(self.row_title(own), (score, *swaps), row.indent)

    def _swap(self, block: Block, row: Row, decoding: str, test: str) -> tuple[Cell, ...]:
        method = get_method(row.method)
        if not method.has_latents:
            return (Cell(mark=self.note(f"{method.title} has no latents")), Cell(), Cell())
        line = self.summary.line(block.id, row.id, decoding, test)
        if line is None or pd.isna(line["accuracy"]):
            return (Cell(),) * 3
        return cell(line["accuracy"], percent), *difference(line)

    def legend(self) -> Iterator[str]:
        if not self.decodings():
            yield "This study has no control of latents: add a decoding with `thoughts: exchanged` or `thoughts: mean`."
            return
        yield "Own: accuracy of the default decoding, in which every question is answered with its own latents."
        for name, spec in self.decodings().items():
            yield f"{heading(name)}: {MEANINGS[spec.thoughts]}; the text of the question stays its own."
        yield f"""lost: own minus control, in percentage points. p: paired test over the same questions, Holm's
        correction for all tests of a block's test set. Where nothing is lost, answers do not depend on what the latents
        carry of the question. Batches hold {self.study.evaluation.batch_size} questions of similar length.
        {self.untested(self.paired_tests)}"""
        yield self.about_questions()
