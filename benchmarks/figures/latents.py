"""The base class of the figures of latents, with the analyses that they are drawn from."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from benchmarks.analysis.reading import Analysis, analysed, read_analysis, record_path
from benchmarks.figures.base import Drawing, NothingToDraw
from benchmarks.studies.study import Study


class LatentsFigure(Drawing):
    """One row of panels per block with latents that can be set by hand."""

    @classmethod
    def needs(cls, study: Study, results: Path) -> list[Path]:
        return [record_path(results, spec) for _, _, spec in analysed(study)]

    @cached_property
    def analyses(self) -> list[Analysis]:
        found = [read_analysis(block, row, spec, self.records.results) for block, row, spec in analysed(self.study)]
        if not found:
            raise NothingToDraw(f"no row of {self.study.name} has latents that can be set by hand")
        return found

    @property
    def asked(self) -> str:
        """A description of the questions that were asked."""
        return f"up to {self.study.analysis.questions} questions of each test set, spread evenly over it"

    @property
    def samples(self) -> str:
        """A description of where the latents' values come from."""
        if {analysis.record.source for analysis in self.analyses} == {"encoded"}:
            return "as training encodes the written steps of validation questions, empty steps included"
        return f"as drawn for {self.asked}"

    def block_title(self, analysis: Analysis) -> str:
        return f"{self.row_name(analysis.row)}, {analysis.block.title.lower()}"
