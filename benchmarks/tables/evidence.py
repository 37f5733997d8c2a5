"""Evidence on the paper's claims: the paper's tables and our records, both looked up by cells of the paper's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pandas as pd

from benchmarks.analysis.measures import FAINT, MEASURES, inert
from benchmarks.analysis.reading import Analysis, analyses
from benchmarks.analysis.steering import clique_effects
from benchmarks.paper.claims import Analysed, Claim, Finding, Measure, PaperCell, Source
from benchmarks.paper.numbers import paper_table
from benchmarks.records import gpu_time
from benchmarks.records.provenance import backbone
from benchmarks.records.statistics import ALPHA, FEWEST_TRAININGS, testable
from benchmarks.records.study_records import StudyRecords
from benchmarks.records.summary import Summary
from benchmarks.studies.rendered import Table
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study
from benchmarks.studies.trained import TrainingSpec
from benchmarks.tables import COUNTERPARTS
from benchmarks.tables.repeating import habit_of
from methods.base import ANSWER_MARKER

# Tables whose test sets are the paper's own tasks, not stand-ins: a name such as copy_k16 contains the task's name
TASKS = (COUNTERPARTS[Table.synthetic], COUNTERPARTS[Table.longrange])
MARKS = ("unmarked", "still_marked")  # measures of a clique that count answers with or without the marker
CLIQUES = (*MARKS, "longer", "as_accurate")  # all measures of a clique
Place = tuple[StudyRecords, Summary, str, str]  # a study, its summary, and the ids of a block and a test set of it


class Paper(Source):
    """The paper's own numbers. They cannot be tested for significance."""

    measured: ClassVar = False

    def value(self, cell: PaperCell, measure: Measure) -> float | None:
        table = paper_table(cell.table)
        row = table.printed(cell.block).get(cell.row)
        if row is None:
            return None
        if measure == "train":
            return 3600 * row.train_hours.mean if row.train_hours else None
        score = row.tests[cell.test]
        if measure == "test":
            return score.seconds.mean if score.seconds else None
        return score.accuracy.mean * (100 if table.unit == "share" else 1)

    def analysed(self, claim: Claim) -> tuple[float, str] | None:
        return None if claim.printed is None else (claim.printed, "")

    def unanalysed(self, claim: Claim) -> str:
        return "shown in a figure only; no number is printed"


class Records(Source):
    """Numbers of our studies, looked up by cells of the paper's tables.

    Rows have the same ids as the paper's rows. Test sets have the paper's names or, in tables of :data:`TASKS`, names
    that contain them. If a study has none of the paper's test sets, its own stand in for them, in order.
    """

    measured: ClassVar = True

    def __init__(self, studies: Sequence[tuple[StudyRecords, Summary]]) -> None:
        self.by_table: dict[str, list[tuple[StudyRecords, Summary]]] = {}
        self.studies = [records for records, _ in studies]
        for records, summary in studies:
            paper, tables = records.study.paper, records.study.tables
            for name in [paper] if paper else [COUNTERPARTS[t] for t in tables if t in COUNTERPARTS]:
                self.by_table.setdefault(name, []).append((records, summary))

    def value(self, cell: PaperCell, measure: Measure) -> float | None:
        found, line = self._place(cell), self._line(cell)
        if found is None or line is None:
            return None
        if measure == "train":  # our rows may differ in GPUs, the paper's do not
            return gpu_time.of_an_epoch(found[0], found[2], cell.row)
        column, scale = {"accuracy": ("accuracy", 100), "test": ("test_seconds_median", 1)}[measure]
        return None if pd.isna(line[column]) else scale * float(line[column])

    def separated(self, a: PaperCell, b: PaperCell) -> bool | None:
        found, one, other = self._place(a), self._line(a), self._line(b)
        if found is None or one is None or other is None:
            return None
        if not testable(one["training_seeds"], other["training_seeds"]):
            return False
        if self.unpaired(a, b):
            return one["low"] > other["high"] or other["low"] > one["high"]
        _, summary, block, test = found
        pairs = summary.pairs.loc[(summary.pairs["block"] == block) & (summary.pairs["test"] == test)]
        for pair in pairs.to_dict("records"):
            if {pair["a"], pair["b"]} == {a.row, b.row}:
                return pair["p_holm"] < ALPHA
        return None

    def unpaired(self, a: PaperCell, b: PaperCell) -> str | None:
        """Say why no paired test can compare two cells, or return None.

        Two rows on one test set may differ in every other respect, since that is what is compared. Between two test
        sets nothing else should differ, so the reason names the differences of the runs.
        """
        if across := self._across(a, b):
            return "; ".join(["different test sets, so no paired test", *_set_apart(*across)])
        if (one := self._line(a)) and (other := self._line(b)):
            fewer, more = sorted((one["training_seeds"], other["training_seeds"]))
            if not testable(fewer, more):
                return f"{fewer} and {more} trainings, of which at least {FEWEST_TRAININGS} are needed for a test"
        studies = {place[0].study.name for cell in (a, b) if (place := self._place(cell))}
        return "different studies, so no paired test" if len(studies) > 1 else None

    def analysed(self, claim: Claim) -> tuple[float, str] | None:
        found = self._analysis(claim)
        return None if found is None else (100 * found[2], run_of(found[1]))

    def unanalysed(self, claim: Claim) -> str:
        every = {run_of(analysis): analysis for _, analysis in self._analyses()}  # once if studies share a run
        if claim.analysis in CLIQUES and every:
            return "; ".join(f"{run}: {_without_clique(one, claim.analysis)}" for run, one in every.items())
        return "no run that was analysed shows it"

    def test(self, cell: PaperCell) -> str:
        """Return the test set that was run for a cell."""
        return found[3] if (found := self._place(cell)) else cell.test

    def incomparable(self, cell: PaperCell, against: PaperCell | None) -> str | None:
        """Say why a comparison, or an accuracy alone, is no evidence, or return None.

        A difference between two test sets says more about the models than about the tasks if the backbones differ.
        """
        if against and (across := self._across(cell, against)) and across[0].backbone != across[1].backbone:
            return self.unpaired(cell, against)
        return self._trivial(cell)

    def _trivial(self, cell: PaperCell) -> str | None:
        """Say why the accuracy of a long-range copy is no evidence of memory, or return None.

        A model that keeps repeating its steps need not remember one to repeat it at the end.
        """
        found, line = self._place(cell), self._line(cell)
        if cell.table != COUNTERPARTS[Table.longrange] or found is None or line is None:
            return None
        records, _, block, _ = found
        known, hits = habit_of(records, block, cell.row, "default"), line["accuracy"]
        return known.reason(hits) if known and known.explains(hits, line["low"]) else None

    def without_r(self, finding: Finding) -> str | None:
        """Name the compared rows whose R was dead after training: their results are those of a row without R."""
        cells = dict.fromkeys(cell for value in finding.values for cell in (value.cell, value.against) if cell)
        rows: dict[str, None] = {}
        for cell in cells:
            line = self._line(cell)
            if line and line["dead_trainings"]:
                rows[f"{cell.block} {cell.row}"] = None
        return f"R is dead in {', '.join(rows)}" if rows else None

    def _analyses(self) -> Iterator[tuple[Study, Analysis]]:
        """Yield the up-to-date analyses of all studies."""
        for records in self.studies:
            for analysis in analyses(records.study, records.results):
                yield records.study, analysis

    def _analysis(self, claim: Claim) -> tuple[Study, Analysis, float] | None:
        """Return the first analysis that has a number for the claim, with its study and the number."""
        if claim.analysis is not None:
            for study, analysis in self._analyses():
                if (number := MEASURES[claim.analysis](analysis)) is not None:
                    return study, analysis, number
        return None

    def in_papers_setting(self, claim: Claim) -> bool:
        if claim.analysis:
            found = self._analysis(claim)
            return found is not None and found[0].paper is not None
        tables = {name for part in claim.cells for name in (part.table, part.against_table) if name}
        return all(records.study.paper == name for name in tables for records, _ in self.by_table.get(name, []))

    def _across(self, a: PaperCell, b: PaperCell) -> tuple[RunSpec, RunSpec] | None:
        """Return the runs of two cells on different test sets, or None if these are the same or a run is missing."""
        here, there = self._place(a), self._place(b)
        if here is None or there is None or here[3] == there[3]:
            return None
        return _run(here, a), _run(there, b)

    def _line(self, cell: PaperCell) -> dict[str, Any] | None:
        found = self._place(cell)
        return found[1].line(found[2], cell.row, "default", found[3]) if found else None

    def _place(self, cell: PaperCell) -> Place | None:
        """Return the study that has a cell, its summary, and the cell's block and test set in it.

        A study that trains on each test set's own data has one block per test set.
        """
        for records, summary in self.by_table.get(cell.table, []):
            if (test := counterparts(cell.table, records.study).get(cell.test)) is None:
                continue
            for block in records.study.blocks:
                if block.id == cell.block or block.tests == (test,):
                    return records, summary, block.id, test
        return None


def counterparts(table: str, study: Study) -> dict[str, str]:
    """Map the test sets of the paper's table to those of a study."""
    papers, own = tuple(paper_table(table).tests), study.evaluation.tests
    if table in TASKS:
        return {test: one for test in papers for one in own if test in one.split("_")}
    return {test: test for test in own} if set(own) & set(papers) else dict(zip(papers, own, strict=False))


def _run(place: Place, cell: PaperCell) -> RunSpec:
    """Return the first training of a cell's row. Those with other seeds have the same settings."""
    records, _, block, _ = place
    return records.study.trainings(block, cell.row)[0]


def _set_apart(one: RunSpec, other: RunSpec) -> Iterator[str]:
    """Yield how two runs differ in their backbones and training budgets."""
    if one.backbone != other.backbone:
        yield f"models of {backbone(one.backbone)} and of {backbone(other.backbone)}"
    if (ours := _budget(one.training)) != (theirs := _budget(other.training)):
        yield f"trained for {ours} and for {theirs}"


def _budget(training: TrainingSpec) -> str:
    return f"{training.tokens:,.0f} tokens" if training.epochs is None else f"{training.epochs:g} epochs"


def run_of(analysis: Analysis) -> str:
    """Return the id of the run that was analysed, with its study."""
    return f"{analysis.spec.study}:{analysis.spec.id}"


def _without_clique(analysis: Analysis, measure: Analysed) -> str:
    """Say why an analysis has no number on a clique, and what it has instead."""
    clique, marks = analysis.record.clique, measure in MARKS
    if not clique:
        return "no dimension of R is ever active"
    plain, *others = clique_effects(analysis).to_dict("records")
    if len(clique) > 1:
        if marks and plain["marked"] in (0, 1):
            return f"{'all' if plain['marked'] else 'no'} answers have {ANSWER_MARKER}, so no dimension need say so"
        if measure == "as_accurate" and inert(analysis):
            unchanged = f"changes length and {ANSWER_MARKER} by less than {100 * FAINT:g} %"
            return f"setting its clique {unchanged}, so nothing is shown"
        return "its clique was not set to the values that the paper names"
    single = len(analysis.record.frequent) == 1
    why = "one dimension alone is active" if single else "no two dimensions correlate enough"
    shares = ", ".join(f"{100 * line['marked']:.1f} % at {line['value']:g}" for line in others)
    as_it_is = f"{100 * plain['marked']:.1f} %"
    told = f"; dimension {clique[0]} set by itself gives {ANSWER_MARKER} in {shares} (as it is: {as_it_is})"
    return f"no clique, as {why}{told if marks else ''}"
