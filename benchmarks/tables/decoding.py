"""The table of decodings: accuracy and its spread over decoding seeds, greedy and sampled; and the table of controls:
accuracy when questions are answered with latents that are not their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from benchmarks.studies.specs import Block, DecodingSpec, Row
from benchmarks.tables.base import TableBuilder, cell, decoding_heading, described, difference, percent
from benchmarks.tables.markup import Cell, Column, Grid, Line

MEANINGS = {
    "exchanged": "each question is answered with the latents of another question of its batch",
    "mean": "each question is answered with the mean of its batch's latents",
}
EARLIER = """Answered by release 0.2, as are means beside it: latents were exchanged while they were computed, so that
later ones are of no question; MarCos spoke another question's last neurons"""


class DecodingTable(TableBuilder):
    """All decodings in which each question keeps its own latents."""

    topic = "decodings"

    @classmethod
    def shows(cls, spec: DecodingSpec) -> bool:
        return spec.thoughts == "own"

    def grids(self) -> list[Grid]:
        columns = [Column(f"{decoding_heading(name)} (%)") for name in self.decoding_names]
        return [Grid(self.title, columns, self.by_test(self._lines)), self.questions()]

    def _lines(self, block: Block, row: Row, test: str) -> Iterator[Line]:
        cells = [self._accuracy(block, row, decoding, test) for decoding in self.decoding_names]
        yield Line(self.row_title(self.line(block, row, test)), cells, row.indent)

    def _accuracy(self, block: Block, row: Row, decoding: str, test: str) -> Cell:
        line = self.summary.line(block.id, row.id, decoding, test)
        if line is None:
            return Cell()
        return self.score(line, line["decoding_spread"], " (1 seed)" if line["stochastic"] is True else " (det.)")

    def legend(self) -> Iterator[str]:
        if len(self.decoding_names) == 1:
            yield "This study has one decoding only; further ones named in `evaluation.decodings` appear here."
        for name in self.decoding_names:
            yield described(name, self.study.evaluation.decodings[name])
        yield from self.about_own_decodings()
        seeds = len(self.study.seeds)
        over = f", averaged over the {seeds} training seeds" if seeds > 1 else " of one trained model"
        yield f"""± is the standard deviation over decoding seeds{over}. (det.): nothing is drawn, so there is no
        spread; where such a row is published with one, its tokens were sampled or several models were trained. A dash:
        the decoding does not apply to the row."""
        yield self.about_questions()


class ControlsTable(TableBuilder):
    """The default decoding, and beside it the same decoding with other latents."""

    topic = "do the latents carry anything?"

    @classmethod
    def shows(cls, spec: DecodingSpec) -> bool:
        return spec.thoughts != "own"

    @property
    def frame(self) -> pd.DataFrame:
        return self.summary.tested

    @property
    def paired_tests(self) -> pd.DataFrame:
        return self.summary.swaps

    def grids(self) -> list[Grid]:
        columns = [Column("Default (%)")]
        for name, spec in self.decodings().items():
            group = decoding_heading(name)
            columns += [Column("(%)", group), Column("lost", group), Column("p", group)]
            if spec.thoughts == "exchanged":
                columns.append(Column("other's (%)", group))
        return [Grid(self.title, columns, self.by_test(self._lines)), self.questions()]

    def _lines(self, block: Block, row: Row, test: str) -> Iterator[Line]:
        default = self.line(block, row, test)
        score = self.score(default)
        swaps = (cell for name, spec in self.decodings().items() for cell in self._swap(block, row, name, spec, test))
        yield Line(self.row_title(default), (score, *swaps), row.indent)

    def _swap(self, block: Block, row: Row, decoding: str, spec: DecodingSpec, test: str) -> tuple[Cell, ...]:
        width = 4 if spec.thoughts == "exchanged" else 3
        thoughts = self.line(block, row, test)["latent_steps"]
        if pd.notna(thoughts) and not thoughts:
            return Cell(mark=self.note("The row has no latents")), *(Cell() for _ in range(width - 1))
        line = self.summary.line(block.id, row.id, decoding, test)
        if line is None or pd.isna(line["accuracy"]):
            return (Cell(),) * width
        others = (cell(line["follows"], percent),) if width == 4 else ()
        mark = self.note(EARLIER) if width == 4 and pd.isna(line["follows"]) else ""
        return replace(cell(line["accuracy"], percent), mark=mark), *difference(line), *others

    def legend(self) -> Iterator[str]:
        if not self.decodings():
            yield "This study has no control of latents: add a decoding with `thoughts: exchanged` or `thoughts: mean`."
            return
        yield "Default: accuracy of the default decoding, in which every question is answered with its own latents."
        for name, spec in self.decodings().items():
            yield f"{decoding_heading(name)}: {MEANINGS[spec.thoughts]}; the text of the question stays its own."
        yield f"""lost: default minus control, in percentage points. p: paired test over the same questions, Holm's
        correction for all tests of a block's test set. Where nothing is lost, answers do not depend on what the latents
        carry of the question. Other's: answers that are what the other question is answered with these latents, its
        own; 100 % if the latents alone decide, and above 0 % by chance, as two questions may be answered alike with their
        own latents, too. MarCos's last thinking step, whose neurons are spoken, is the question's
        own. Batches hold {self.study.evaluation.batch_size} questions of similar length.
        {self.about_untested(self.paired_tests)}"""
        yield self.about_questions()
