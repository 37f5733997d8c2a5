"""The table of claims: the paper's statements about its numbers, checked against its tables and against our records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import pandas as pd

from benchmarks.paper import claims
from benchmarks.paper.claims import Claim, Finding
from benchmarks.paper.numbers import paper_table
from benchmarks.records.provenance import in_short
from benchmarks.records.results import load_collected
from benchmarks.records.statistics import ALPHA, TIMES_DIFFER
from benchmarks.records.study_records import StudyRecords
from benchmarks.records.summary import summarise
from benchmarks.studies.paths import COLLECTED
from benchmarks.studies.study import Study, load_study
from benchmarks.tables.base import Maker
from benchmarks.tables.evidence import Paper, Records, counterparts
from benchmarks.tables.markup import DASH, Cell, Column, Document, Grid, Line

TITLE = "What the paper says of its numbers"
COLUMNS = ("Stands in", "Cells", "Paper's numbers", "Verdict on them", "Ours", "Verdict on ours", "Why")


class ClaimsTable(Maker):
    """One line per claim and reading. Our numbers come from this study and from those that it names as ``beside``."""

    @property
    def title(self) -> str:
        return TITLE

    @cached_property
    def _beside(self) -> list[StudyRecords]:
        """The studies that this one names as `beside` and whose records are collected."""
        results, others = self.records.results, map(load_study, self.study.beside)
        return [load_collected(other, results) for other in others if (results / other.name / COLLECTED).is_file()]

    @cached_property
    def _evidence(self) -> Records:
        beside = [(other, summarise(other, ["default"])) for other in self._beside]
        return Records([(self.records, self.summary), *beside])

    @cached_property
    def findings(self) -> list[tuple[Finding, Finding]]:
        """For each claim, the finding from the paper's own numbers and the finding from ours."""
        return [(claims.judge(claim, Paper()), self._ours(claim)) for claim in claims.load_claims()]

    def _ours(self, claim: Claim) -> Finding:
        finding = claims.judge(claim, self._evidence, self._evidence.in_papers_setting(claim))
        reasons = (finding.why, self._evidence.without_r(finding))
        return replace(finding, why="; ".join(reason for reason in reasons if reason))

    def document(self, footer: dict[str, str]) -> Document:
        return super().document(footer | {f"Beside, {other.study.name}": in_short(other) for other in self._beside})

    def grids(self) -> list[Grid]:
        return [claims_grid(self.title, self.findings)]

    @property
    def frame(self) -> pd.DataFrame:
        return claims_frame(self.findings)

    def legend(self) -> Iterable[str]:
        yield from LEGEND
        yield self.speaks
        pairs = [(table, own.study) for table, found in self._evidence.by_table.items() for own, _ in found]
        ours = [f"{table} from {study.name}{'' if study.paper else ' (another setting)'}" for table, study in pairs]
        yield f"Ours: {', '.join(ours) or 'no study has a table of the paper'}. {_stand_ins(pairs)}".strip()


LEGEND = (
    """Paper's numbers: recomputed from the cells of its tables, as in benchmarks/paper/numbers.yaml: differences in
    percentage points, or how many times as long the other takes. Verdict on them: whether these numbers support the
    sentence in this reading. They are taken as they are: the paper gives no test, and does not say what its spreads
    cover. A number that is in its text alone is shown and not judged.""",
    f"""Verdict on ours: the same reading on our records. One row is better than another only where a paired test
    separates the two (p < {ALPHA}, Holm's correction); where there can be none, as test sets or studies differ,
    only where their 95 % intervals lie apart. Over different test sets, models that are not built alike are not
    comparable. Training is compared in GPU time. A ratio of times counts only where it is {TIMES_DIFFER:g} times beyond
    what the sentence asks: measured again, times may differ by as much; "not worse" asks for no test. A size that
    the paper prints is reached if ours is at least as large. In a setting that is not the paper's, a sentence that
    names a size is not comparable; any other is judged, for that setting. Numbers from an analysis of R have their run
    in brackets.""",
)


def paper_alone() -> Document:
    """Return the claims judged by the paper's own numbers alone, which needs no results of a study."""
    findings = [(claims.judge(claim, Paper()), None) for claim in claims.load_claims()]
    return Document(TITLE, (claims_grid(TITLE, findings),), (" ".join(LEGEND[0].split()),))


def _stand_ins(studies: Sequence[tuple[str, Study]]) -> str:
    """Say which test sets stand in for the paper's, and what the paper's are."""
    parts = dict.fromkeys(
        f"{own} for {paper_table(table).tests[test]}"
        for table, study in studies
        for test, own in counterparts(table, study).items()
        if test != own
    )
    about = dict.fromkeys(paper_table(table).about_tests for table, _ in studies)
    return f"Stand-ins: {', '.join(parts)}. {' '.join(about)}".rstrip() if parts else ""


def claims_grid(title: str, findings: Iterable[tuple[Finding, Finding | None]]) -> Grid:
    """Return a grid with one line per claim. Without records of ours, the columns for them have dashes."""
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
        lines.append(Line(Cell(sentence), tuple(Cell(text) for text in texts)))
    columns = tuple(Column(name, text=True) for name in COLUMNS)
    return Grid(title, columns, (("Claims, in the order of the paper", tuple(lines)),), head="Claim")


def claims_frame(findings: Iterable[tuple[Finding, Finding | None]]) -> pd.DataFrame:
    """Return a frame with one line per comparison of each claim, and one for a claim without comparisons."""
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
                | {"ours_test": numbers["ours"].test if numbers["ours"] and claim.measure != "train" else None}
            )
    return pd.DataFrame(lines)


def shown(finding: Finding) -> str:
    """Format the numbers of a finding: all of them if they are few, else their range and how many there are.

    The number of an analysis is followed by its run. Test sets that stand in for the paper's are named.
    """
    if not finding.values:
        return DASH
    numbers = [value.number for value in finding.values]
    few, form = len(numbers) <= claims.FEW, "{:.2f}"
    unit = {"accuracy": "", "test": " times", "train": " times"}[finding.claim.measure]
    if finding.claim.measure == "accuracy":
        form, unit = ("{:+.2f}", "") if finding.values[0].signed else (form, " %")
    texts = [form.format(number) for number in (numbers if few else (min(numbers), max(numbers)))]
    text = (", ".join(texts) if few else f"{' to '.join(texts)}") + unit + ("" if few else f" ({len(numbers)})")
    run = finding.values[0].test if finding.values[0].cell.table == claims.ANALYSIS else ""
    own = dict.fromkeys(value.test for value in finding.values if value.stands_in and finding.claim.measure != "train")
    return text + (f" ({run})" if run else "") + (f" on {', '.join(own)}" if own else "")


def _cells(claim: Claim) -> str:
    parts = ["its text; our analysis of R"] if claim.analysis else []
    for part in claim.cells:
        against = f" against {', '.join(part.against)}" if part.against else ""
        against += f" of {part.against_table}" if part.against_table else ""
        against += f" on {part.against_test}" if part.against_test else ""
        tests = "" if claim.measure == "train" else f" on {', '.join(part.tests)}" if part.tests else ""
        parts.append(f"{part.table} {part.block}: {part.row}{tests}{against}")
    return "; ".join(parts) or DASH
