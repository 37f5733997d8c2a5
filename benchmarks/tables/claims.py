"""The table of claims: the paper's statements about its numbers, what its own tables give, and what ours do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from benchmarks.paper.claims import Cells, Claim, Value, compared, held, load_claims, printed
from benchmarks.records.provenance import in_short
from benchmarks.records.statistics import TIMES_DIFFER
from benchmarks.tables import ours
from benchmarks.tables.base import TableBuilder
from benchmarks.tables.markup import DASH, Cell, Column, Document, Grid, Line

TITLE = "What the paper says of its numbers"
FEW = 3  # comparisons that are shown or named one by one, at most
LEGEND = f"""Paper's numbers: computed again from the cells of its tables (benchmarks/paper/numbers.yaml): differences
    in percentage points, or how many times as long the other takes. Verdict: whether they support the sentence in this
    reading. They are taken as they are: the paper gives no test, and does not say what its spreads cover. Ours: the
    same from our records, where studies of the paper's own setting have trained or, for times, where untrained models
    of its size were timed (marcos-bench measure). Training is compared in GPU time; times that are measured again may
    differ by a factor of {TIMES_DIFFER:g}. The tables of those studies test whether rows differ by more than chance."""
Found = tuple[Claim, list[Value], list[Value] | None]  # a claim, the paper's comparisons, and ours (None: not asked)


class ClaimsTable(TableBuilder):
    """One line per claim and reading, whatever study the table is made for."""

    @property
    def title(self) -> str:
        return TITLE

    @cached_property
    def found(self) -> list[Found]:
        """The claims. Ours are of the first source that has any: two sources are not compared with each other."""
        sources = [ours.trained(ours.collected(self.records)), *ours.timed(self.records.results)]
        found = []
        for claim in load_claims():
            own = (list(compared(claim, source)) for source in sources)
            found.append((claim, list(compared(claim, printed)), next(filter(None, own), [])))
        return found

    def document(self, footer: dict[str, str]) -> Document:
        own = footer if self.study.paper else {}  # the setting of another study is none of these numbers'
        found = ours.collected(self.records)
        return super().document(own | {f"Ours, {one.study.name}": in_short(one) for one in found})

    def grids(self) -> list[Grid]:
        return [claims_grid(self.found)]

    def legend(self) -> Iterator[str]:
        yield LEGEND

    @property
    def frame(self) -> pd.DataFrame:
        """One line per comparison of each claim, and one for a claim without comparisons."""
        lines = []
        for claim, papers, own in self.found:
            shared = claim.model_dump(include={"id", "place", "says", "reading", "measure"})
            shared |= {"holds": held(claim, papers) if papers else None}
            first: dict[Any, float] = {value[:2]: value.number for value in papers}
            second: dict[Any, float] = {value[:2]: value.number for value in own or ()}
            for key in dict.fromkeys([*first, *second]) or [((), None)]:
                line = shared | {"cell": " ".join(key[0]), "against": " ".join(key[1] or ())}
                lines.append(line | {"paper": first.get(key), "ours": second.get(key)})
        return pd.DataFrame(lines)

    @property
    def paired_tests(self) -> pd.DataFrame:
        return pd.DataFrame()


def papers_alone() -> Document:
    """Return the claims beside the paper's own tables alone, which needs no results of a study."""
    found = [(claim, list(compared(claim, printed)), None) for claim in load_claims()]
    return Document(TITLE, (claims_grid(found),))


def claims_grid(found: Sequence[Found]) -> Grid:
    """Return a grid with one line per claim."""
    columns = tuple(Column(name, text=True) for name in ("Where", "Cells", "Paper's numbers", "Verdict", "Ours"))
    lines = []
    for claim, papers, own in found:
        sentence = claim.says + (f" ({claim.reading})" if claim.reading else "")
        beside = "not run at this size" if own == [] and claim.cells else _shown(claim, own or ())
        cells = "; ".join(map(_cells, claim.cells)) or DASH
        texts = (claim.place, cells, _shown(claim, papers), _verdict(claim, papers), beside)
        lines.append(Line(Cell(sentence), tuple(map(Cell, texts))))
    return Grid(TITLE, columns, (("Claims, in the order of the paper", tuple(lines)),), head="Claim")


def _cells(part: Cells) -> str:
    tests = f" on {', '.join(part.tests)}" if part.tests else ""
    against = f" against {', '.join(part.against)}" if part.against else ""
    other = {" of ": part.against_table, " on ": part.against_test}
    against += "".join(word + name for word, name in other.items() if name)
    return f"{part.table} {part.block}: {part.row}{tests}{against}"


def _shown(claim: Claim, values: Sequence[Value]) -> str:
    """Format comparisons: all of them if they are few, else their range and how many there are."""
    if not values:
        return DASH
    compares = values[0].against is not None
    form, unit = (".2f", " times") if claim.measure != "accuracy" else ("+.2f", "") if compares else (".2f", " %")
    numbers = [value.number for value in values]
    if len(numbers) <= FEW:
        return ", ".join(format(number, form) for number in numbers) + unit
    return f"{min(numbers):{form}} to {max(numbers):{form}}{unit} ({len(numbers)})"


def _verdict(claim: Claim, papers: list[Value]) -> str:
    """Say whether the paper's numbers support a claim, in how many comparisons and, if they are few, where not."""
    if not papers:
        return claim.without or "its table has no such row"
    failed = [value for value in papers if not claim.met(value.number)]
    count = f" ({len(papers) - len(failed)} of {len(papers)})" if len(papers) > 1 and claim.judge != "largest" else ""
    where = ", ".join(f"{one.place.block} {one.place.test} ({_shown(claim, [one])})" for one in failed)
    named = f": not {where}" if claim.judge == "each" and 0 < len(failed) <= FEW else ""
    return ("held" if held(claim, papers) else "not held") + count + named
