"""The table of claims: what the paper says of its numbers, from its own cells and from the records at hand."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import pandas as pd

from benchmarks import claims
from benchmarks.analysis.measures import MEASURES
from benchmarks.analysis.reading import analyses
from benchmarks.claims import Claim, Finding, Measure
from benchmarks.markup import DASH, Column, Document, Grid, Line
from benchmarks.markup import Cell as Shown
from benchmarks.paper import paper_table
from benchmarks.results import load_collected
from benchmarks.scoring.copying import repeats
from benchmarks.specs import DecodingSpec
from benchmarks.statistics import ALPHA
from benchmarks.study import Study
from benchmarks.summary import Summary, answers
from benchmarks.tables.maker import Maker

COUNTERPARTS = {  # the paper's table that a table of a study has the rows of
    "main": "main_0.5b",
    "3b": "main_3b",
    "pretrained": "pretrained",
    "ablation": "ablation",
    "nar": "one_shot",
    "synthetic": "synthetic",
    "longrange": "long_range",
}
TASKS = ("synthetic", "long_range")  # whose test sets are no stand-ins: a name such as copy_k16 says which one it is
FREELY = 0.01  # share of steps that repeat an earlier one unasked, from which on copying is none of memory
TITLE = "What the paper says of its numbers"
COLUMNS = ("Stands in", "Cells", "Paper's numbers", "Verdict on them", "Ours", "Verdict on ours", "Why")


class Records:
    """Numbers of studies by the places of the paper's tables. Each row has the id of the paper's; test sets have the
    paper's names or, in tables of :data:`TASKS`, have them as a part; others stand in for the paper's in their order.
    """

    measured: ClassVar = True

    def __init__(self, studies: Iterable[tuple[Study, Summary]], results: Path | None = None) -> None:
        self.by_table: dict[str, list[tuple[Study, Summary]]] = {}
        self.results = results
        self.studies = [study for study, _ in studies]
        for study, summary in studies:
            names = [study.paper] if study.paper else [COUNTERPARTS[t] for t in study.tables if t in COUNTERPARTS]
            for name in names:
                self.by_table.setdefault(name, []).append((study, summary))

    def value(self, cell: claims.Cell, measure: Measure) -> float | None:
        line = self._line(cell) or {}
        column, scale = {
            "accuracy": ("accuracy", 100),
            "test": ("test_seconds_median", 1),
            "train": ("train_epoch_seconds", 1),
        }[measure]
        value = line.get(column)
        return None if pd.isna(value) else scale * float(value)  # type: ignore[arg-type]

    def separated(self, a: claims.Cell, b: claims.Cell) -> bool | None:
        found = self._place(a)
        if found is None or (a.table, a.test) != (b.table, b.test):
            return None
        _, summary, block, test = found
        pairs = summary.pairs.loc[(summary.pairs["block"] == block) & (summary.pairs["test"] == test)]
        for pair in pairs.to_dict("records"):
            if {pair["a"], pair["b"]} == {a.row, b.row}:
                return pair["p_holm"] < ALPHA
        return None

    def analysed(self, claim: Claim) -> float | None:
        found = self._analysis(claim)
        return None if found is None else 100 * found[1]

    def test(self, cell: claims.Cell) -> str:
        """The one that was run, and which of the paper's it stands in for."""
        _, _, _, own = self._place(cell) or (None, None, None, cell.test)
        return own if cell.test in (own, *own.split("_")) else f"{own} (for {cell.test})"

    def trivial(self, cell: claims.Cell) -> str | None:
        """Whoever says the same step again and again need not remember it to repeat it."""
        found = self._place(cell)
        if cell.table != "long_range" or found is None or self.results is None:
            return None
        study, _, block, _ = found
        own = answers(
            study, load_collected(study, self.results).runs, self.results, f"{block}/{cell.row}", "default", ("text",)
        )
        share = 0.0 if own is None else fmean(map(repeats, own["text"]))
        return f"{100 * share:.1f} % of the steps repeat an earlier one before any has to" if share > FREELY else None

    def _analysis(self, claim: Claim) -> tuple[Study, float] | None:
        """The first study whose analysis, where there is one that is up to date, has what the claim is about."""
        if self.results is None or claim.analysis is None:
            return None
        for study in self.studies:
            for analysis in analyses(study, self.results):
                if (number := MEASURES[str(claim.analysis)](analysis)) is not None:
                    return study, number
        return None

    def in_papers_setting(self, claim: Claim) -> bool:
        if claim.analysis:
            found = self._analysis(claim)
            return found is not None and found[0].paper is not None
        tables = {name for part in claim.cells for name in (part.table, part.against_table) if name}
        return all(study.paper == name for name in tables for study, _ in self.by_table.get(name, []))

    def _line(self, cell: claims.Cell) -> dict[str, Any] | None:
        found = self._place(cell)
        return found[1].line(found[2], cell.row, "default", found[3]) if found else None

    def _place(self, cell: claims.Cell) -> tuple[Study, Summary, str, str] | None:
        """The study that has a cell, and its block and test set there. A study that trains on each test set's own data
        has a block for each."""
        for study, summary in self.by_table.get(cell.table, []):
            if (test := counterparts(cell.table, study).get(cell.test)) is None:
                continue
            for block in study.blocks:
                if block.id == cell.block or block.tests == (test,):
                    return study, summary, block.id, test
        return None


class ClaimsTable(Maker):
    """A line for each claim in each reading; what ours gives comes from this study and those it names ``beside``."""

    reads_beside: ClassVar[bool] = True

    @classmethod
    def shows(cls, name: str, spec: DecodingSpec) -> bool:
        return name == "default"

    @property
    def title(self) -> str:
        return TITLE

    @cached_property
    def _records(self) -> Records:
        return Records([(self.study, self.summary), *self.beside], self.results)

    @cached_property
    def findings(self) -> list[tuple[Finding, Finding]]:
        """What the paper's own numbers say to each claim, and what ours do."""
        ours = self._records
        return [
            (claims.judge(claim, claims.Paper()), claims.judge(claim, ours, ours.in_papers_setting(claim)))
            for claim in claims.load_claims()
        ]

    def grids(self) -> list[Grid]:
        return [claims_grid(self.title, self.findings)]

    @property
    def frame(self) -> pd.DataFrame:
        return claims_frame(self.findings)

    @property
    def tests(self) -> pd.DataFrame:
        return self.summary.pairs

    def legend(self) -> Iterable[str]:
        yield from LEGEND
        pairs = [(table, study) for table, found in self._records.by_table.items() for study, _ in found]
        ours = [f"{table} from {study.name}{'' if study.paper else ' (another setting)'}" for table, study in pairs]
        yield f"Ours: {', '.join(ours) or 'no study with a table of the paper'}. {_stand_ins(pairs)}".strip()


LEGEND = (
    """Paper's numbers: recomputed from the cells of its tables, as benchmarks/paper.yaml has them: differences in
    percentage points, or how many times as long the other takes. Verdict on them: whether these numbers bear the
    sentence in this reading. They stand alone: the paper gives no test, and does not say what its spreads cover. A
    number that stands in its text alone is shown and not judged.""",
    f"""Verdict on ours: the same reading on our records. A row is better where a paired test separates the two
    (p < {ALPHA}, Holm's correction), and not worse without one. A size that the paper prints is reached if ours is at
    least as much. In a setting that is not the paper's, a sentence that names a size is not comparable, and any other
    is judged, for that setting.""",
)


def paper_alone() -> Document:
    """The claims against the paper's own numbers, for which no study has to have run."""
    findings = [(claims.judge(claim, claims.Paper()), None) for claim in claims.load_claims()]
    return Document(TITLE, (claims_grid(TITLE, findings),), (" ".join(LEGEND[0].split()),))


def counterparts(table: str, study: Study) -> dict[str, str]:
    """A study's test sets by those of the paper's table."""
    papers, own = tuple(paper_table(table).tests), study.evaluation.tests
    if table in TASKS:
        return {test: one for test in papers for one in own if test in one.split("_")}
    return {test: test for test in own} if set(own) & set(papers) else dict(zip(papers, own, strict=False))


def _stand_ins(studies: Iterable[tuple[str, Study]]) -> str:
    """Which test sets stand in for the paper's."""
    parts = dict.fromkeys(
        f"{own} for {paper_table(table).tests[test]}"
        for table, study in studies
        for test, own in counterparts(table, study).items()
        if test != own
    )
    return f"Stand-ins: {', '.join(parts)}." if parts else ""


def claims_grid(title: str, findings: Iterable[tuple[Finding, Finding | None]]) -> Grid:
    """One line per claim; without records of ours its columns have dashes."""
    lines = []
    for papers, ours in findings:
        claim = papers.claim
        sentence = claim.says + (f" ({claim.reading})" if claim.reading else "")
        texts = [claim.place, _cells(claim), shown(papers), papers.verdict]
        texts += [shown(ours), ours.verdict] if ours else [DASH, DASH]
        reasons = [
            f"{whose}: {finding.why}"
            for whose, finding in (("paper", papers), ("ours", ours))
            if finding and finding.why
        ]
        texts.append(claim.without or "; ".join(reasons) or DASH)
        lines.append(Line(Shown(sentence), tuple(Shown(text) for text in texts)))
    columns = tuple(Column(name, text=True) for name in COLUMNS)
    return Grid(title, columns, (("Claims, in the order of the paper", tuple(lines)),), head="Claim")


def claims_frame(findings: Iterable[tuple[Finding, Finding | None]]) -> pd.DataFrame:
    """One line per comparison of each claim, and one for each claim that has none."""
    lines = []
    for papers, ours in findings:
        claim = papers.claim
        shared = {"claim": claim.id, "place": claim.place, "says": claim.says, "reading": claim.reading}
        shared |= {"measure": claim.measure if claim.cells else claim.analysis, "verdict_paper": papers.verdict}
        shared |= {"verdict_ours": ours.verdict if ours else None}
        known = {(value.cell, value.against): value for value in ours.values} if ours else {}
        places = {(value.cell, value.against): value for value in papers.values}
        for key in dict.fromkeys([*places, *known]) or [None]:
            cell, against = key or (None, None)
            place = (
                {} if cell is None else {"table": cell.table, "block": cell.block, "row": cell.row, "test": cell.test}
            )
            numbers = {"paper": places.get(key), "ours": known.get(key)}  # type: ignore[arg-type]
            lines.append(
                shared
                | place
                | {"against": against.row if against else None}
                | {name: value.number if value else None for name, value in numbers.items()}
                | {"ours_separated": numbers["ours"].sure if numbers["ours"] else None}
            )
    return pd.DataFrame(lines)


def shown(finding: Finding) -> str:
    """The numbers of a finding: all where they are few, else how far they reach."""
    if not finding.values:
        return DASH
    numbers = [value.number for value in finding.values]
    few, form = len(numbers) <= claims.FEW, "{:.2f}"
    unit = {"accuracy": "", "test": " times", "train": " times"}[finding.claim.measure]
    if finding.claim.measure == "accuracy":
        form, unit = ("{:+.2f}", "") if finding.values[0].signed else (form, " %")
    texts = [form.format(number) for number in (numbers if few else (min(numbers), max(numbers)))]
    return (", ".join(texts) if few else f"{' to '.join(texts)}") + unit + ("" if few else f" ({len(numbers)})")


def _cells(claim: Claim) -> str:
    parts = ["the text; the analysis of R"] if claim.analysis else []
    for part in claim.cells:
        against = f" against {', '.join(part.against)}" if part.against else ""
        against += f" of {part.against_table}" if part.against_table else ""
        against += f" on {part.against_test}" if part.against_test else ""
        tests = "" if claim.measure == "train" else f" on {', '.join(part.tests)}" if part.tests else ""
        parts.append(f"{part.table} {part.block}: {part.row}{tests}{against}")
    return "; ".join(parts) or DASH
