"""The paper's claims about its numbers (``claims.yaml``), judged by its own tables or by our records."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import yaml
from pydantic import model_validator

from benchmarks.paper.numbers import paper_table
from benchmarks.records.statistics import TIMES_DIFFER
from benchmarks.studies.specs import Identifier, Strict

PATH = Path(__file__).with_name("claims.yaml")
PRINTED = 0.005 + 1e-9  # rounding error of a printed number: the paper prints at most two decimals
ROUNDED = 9  # decimals at which a number meets a bound: a difference of two numbers has a rounding error
FEW = 3  # number of comparisons that a reason names at most
ANALYSIS = "analysis"  # in place of a table's name if the number comes from an analysis of R
Measure = Literal["accuracy", "test", "train"]
Analysed = Literal["own_dimensions", "steering", "longer", "unmarked", "still_marked", "as_accurate"]
Verdict = Literal["held", "not held", "not comparable"]


class Cells(Strict):
    """Cells of the paper's tables: a row and the rows it is compared with, on some test sets (default: all)."""

    table: str
    block: str
    row: str
    against: tuple[str, ...] = ()
    against_table: str | None = None
    against_test: str | None = None
    tests: tuple[str, ...] | None = None

    @property
    def on(self) -> tuple[str, ...]:
        return self.tests or tuple(paper_table(self.table).tests)


class Claim(Strict):
    """One sentence of the paper in one reading. The fields are explained in ``claims.yaml``."""

    id: Identifier
    place: str
    says: str
    reading: str | None = None
    cells: tuple[Cells, ...] = ()
    measure: Measure = "accuracy"
    versus: Literal["each", "best"] = "each"
    judge: Literal["each", "most", "some", "largest"] = "each"
    above: float | None = None
    at_least: float | None = None
    equals: float | None = None
    within: float | None = None
    size: bool = False
    analysis: Analysed | None = None
    printed: float | None = None
    unprinted: tuple[str, ...] = ()
    without: str | None = None

    @model_validator(mode="after")
    def _can_be_judged(self) -> Claim:
        bounds = sum(bound is not None for bound in (self.above, self.at_least, self.equals, self.within))
        bases = bool(self.cells) + bool(self.analysis)
        needed = 1 if self.without is None else 0
        if bases != needed or bounds != needed or (self.printed is not None and not self.analysis):
            raise ValueError(
                f"claim {self.id!r} needs cells and one bound, or `analysis` and one, or `without`, which says why not"
            )
        return self

    @property
    def bound(self) -> float:
        """The ratio from which on the claim is supported."""
        return self.above or self.at_least or self.equals or 1.0

    @property
    def is_strict(self) -> bool:
        """Whether the claim asserts a difference, so that a tie refutes it. "Not worse" and "the same" allow a tie."""
        return self.within is None and (self.at_least is None or self.at_least > 0)

    def met(self, value: float, measured: bool) -> bool:
        """Return whether a number supports the claim.

        Our own measurement (``measured``) never equals a printed number exactly, so it only has to reach it.
        """
        value = round(value, ROUNDED)
        if self.equals is not None:
            return value >= self.equals - PRINTED if measured else abs(value - self.equals) < PRINTED
        if self.within is not None:
            return abs(value) <= self.within
        return value > self.above if self.above is not None else value >= (self.at_least or 0)


@dataclass(frozen=True)
class PaperCell:
    """A place in the paper's tables."""

    table: str
    block: str
    row: str
    test: str


class Source(ABC):
    """Numbers by cells of the paper's tables. ``measured``: the numbers are ours, not the paper's."""

    measured: ClassVar[bool]

    @abstractmethod
    def value(self, cell: PaperCell, measure: Measure) -> float | None:
        """Return the accuracy in percent or a time in seconds, or None if there is no number."""

    def separated(self, a: PaperCell, b: PaperCell) -> bool | None:
        """Return whether a paired test separates two accuracies, or their 95 % intervals if no such test is possible.

        Return None if this is unknown.
        """
        return None

    def unpaired(self, a: PaperCell, b: PaperCell) -> str | None:
        """Say why no paired test can compare two accuracies, and what else differs between them, or return None."""
        return None

    @abstractmethod
    def analysed(self, claim: Claim) -> tuple[float, str] | None:
        """Return the number of an analysis of R, in percent, and the run that was analysed, or None."""

    @abstractmethod
    def unanalysed(self, claim: Claim) -> str:
        """Say why no analysis of R has a number for a claim."""

    def test(self, cell: PaperCell) -> str:
        """Return the test set that a cell's number comes from."""
        return cell.test

    def incomparable(self, cell: PaperCell, against: PaperCell | None) -> str | None:
        """Say why a comparison, or an accuracy alone, is no evidence for or against a claim, or return None."""
        return None


@dataclass(frozen=True)
class Value:
    """One comparison: a difference in points (``signed``), a ratio, or a share.

    * ``sure``: see :meth:`Source.separated`. For a ratio of times, whether it is too far from the claim's bound to be
      noise.
    * ``test``: see :meth:`Source.test`. For an analysis, the run that was analysed.
    * ``unpaired``: see :meth:`Source.unpaired`.
    """

    cell: PaperCell
    against: PaperCell | None
    number: float
    sure: bool | None
    signed: bool
    test: str
    unpaired: str | None = None

    @property
    def stands_in(self) -> bool:
        """Whether the test set stands in for the paper's. A name such as copy_k16 contains the paper's: it does not."""
        return self.cell.table != ANALYSIS and self.cell.test not in (self.test, *self.test.split("_"))

    def place(self, measure: Measure) -> str:
        """Describe the compared cells for a reader. Training has no test set."""
        number = f"{self.number:+.2f}" if self.signed else f"{self.number:.2f}"
        if self.cell.table == ANALYSIS:
            return f"{self.test} ({number})"
        against = f" against {self.against.row}" if self.against else ""
        against += f" on {self.against.test}" if self.against and self.against.test != self.cell.test else ""
        test = "" if measure == "train" else f" {self.test}{f' (for {self.cell.test})' if self.stands_in else ''}"
        return f"{self.cell.block}{test} {self.cell.row}{against} ({number})"

    def doubt(self, measure: Measure) -> str:
        """Say what leaves it open which side is ahead."""
        tests = "95 % intervals" if self.unpaired else "paired tests"
        return f"{tests} do not separate" if measure == "accuracy" else "another measurement may turn round"


@dataclass(frozen=True)
class Finding:
    """The verdict of a source's numbers on a claim."""

    claim: Claim
    values: tuple[Value, ...]
    verdict: Verdict
    why: str


@cache
def load_claims() -> tuple[Claim, ...]:
    """Load all claims, and check that the paper's tables have their cells."""
    entries = yaml.safe_load(PATH.read_text(encoding="utf-8"))["claims"]
    return tuple(checked(Claim.model_validate(entry)) for entry in entries)


def checked(claim: Claim) -> Claim:
    """Return the claim if the paper's tables have its cells. Raise :class:`ValueError` otherwise."""
    for part in claim.cells:
        for table, row in ((part.table, part.row), *((part.against_table or part.table, r) for r in part.against)):
            known = row in paper_table(table).printed(part.block) or row in claim.unprinted
            if not known or set(part.on) - paper_table(table).tests.keys():
                raise ValueError(f"{PATH.name}: claim {claim.id!r} names cells that table {table!r} does not print")
    return claim


def judge(claim: Claim, source: Source, same_setting: bool = True) -> Finding:
    """Judge a claim by the numbers of a source.

    A size is comparable only in the paper's setting. A claim that asserts a difference (:attr:`Claim.is_strict`) is not
    supported by a difference that is not separated from zero, nor by a ratio of times that may be noise.
    """
    if claim.without:
        return Finding(claim, (), "not comparable", claim.without)
    values = tuple(value for part in claim.cells for value in _values(claim, part, source))
    if claim.analysis and (found := source.analysed(claim)) is not None:
        cell = PaperCell(ANALYSIS, "R", "marcos", claim.analysis)
        values = (Value(cell, None, found[0], None, claim.within is not None, found[1]),)
    wanted = sum(_comparisons(claim, part) for part in claim.cells)
    if not values:
        return Finding(claim, (), "not comparable", _nothing(claim, source))
    if claim.analysis and not source.measured:
        return Finding(claim, values, "not comparable", "stated in its text alone: nothing to recompute it from")
    if claim.size and not same_setting:
        return Finding(claim, values, "not comparable", "it names a size, and the setting is not the paper's")
    if claim.cells and (reason := next(filter(None, (source.incomparable(v.cell, v.against) for v in values)), None)):
        return Finding(claim, values, "not comparable", reason)
    reached = [claim.met(value.number, source.measured) for value in values]
    met = [ok and not (claim.is_strict and value.sure is False) for ok, value in zip(reached, values, strict=True)]
    largest = met[max(range(len(values)), key=lambda i: values[i].number)]
    held = {"each": all(met), "most": 2 * sum(met) > len(met), "some": any(met), "largest": largest}[claim.judge]
    return Finding(claim, values, "held" if held else "not held", _reason(claim, values, met, reached, wanted))


def _nothing(claim: Claim, source: Source) -> str:
    if claim.analysis:
        return source.unanalysed(claim)
    if not source.measured:
        return "its table has no such row"
    titles = dict.fromkeys(paper_table(part.table).tests[test] for part in claim.cells for test in part.tests or ())
    return f"{' and '.join(titles)}: not run with these rows" if titles else "no study at hand has these cells"


def _reason(claim: Claim, values: Sequence[Value], met: Sequence[bool], reached: Sequence[bool], wanted: int) -> str:
    """Say how many comparisons meet the claim, which ones do not if they are few, and how many are missing."""
    parts = []
    if claim.judge != "largest" and len(values) > 1:
        parts.append(f"{sum(met)} of {len(values)}")
    failed = [value for value, good in zip(values, met, strict=True) if not good]
    unsure = [value for value, good, ok in zip(values, met, reached, strict=True) if ok and not good]
    if claim.judge == "each" and len(failed) <= FEW:
        parts += [f"not {value.place(claim.measure)}" for value in failed if value not in unsure]
    for doubt in dict.fromkeys(value.doubt(claim.measure) for value in unsure):
        places = [value.place(claim.measure) for value in unsure if value.doubt(claim.measure) == doubt]
        more = f" and {len(places) - FEW} more" if len(places) > FEW else ""
        parts.append(f"{doubt} {', '.join(places[:FEW])}{more}")
    parts += dict.fromkeys(value.unpaired for value in values if value.unpaired)
    if len(values) < wanted:
        parts.append(f"{wanted - len(values)} of {wanted} comparisons lack a number")
    return "; ".join(parts)


def _comparisons(claim: Claim, part: Cells) -> int:
    rows = 1 if claim.versus == "best" else max(1, len(part.against))
    return rows * (1 if claim.measure == "train" else len(part.on))


def _values(claim: Claim, part: Cells, source: Source) -> Iterator[Value]:
    """Yield the comparisons of one group of cells for which the source has both sides."""
    for test in part.on[:1] if claim.measure == "train" else part.on:
        own = PaperCell(part.table, part.block, part.row, test)
        number = source.value(own, claim.measure)
        if number is None:
            continue
        if not part.against:
            yield Value(own, None, number, None, False, source.test(own))
        place = (part.against_table or part.table, part.block)
        others = [PaperCell(*place, row, part.against_test or test) for row in part.against]
        known = {cell: value for cell in others if (value := source.value(cell, claim.measure)) is not None}
        if claim.versus == "best" and known:
            known = dict([max(known.items(), key=lambda item: item[1])])
        for other, value in known.items():
            if claim.measure == "accuracy":
                tested = source.separated(own, other), True, source.test(own), source.unpaired(own, other)
                yield Value(own, other, number - value, *tested)
            elif number > 0:
                ratio = value / number
                clear = abs(math.log(ratio / claim.bound)) >= math.log(TIMES_DIFFER) if source.measured else None
                yield Value(own, other, ratio, clear, False, source.test(own))
