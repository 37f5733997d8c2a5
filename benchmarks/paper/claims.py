"""The paper's claims about its numbers (``claims.yaml``), and what its tables give when they are computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from benchmarks.paper.numbers import paper_table
from benchmarks.studies.specs import Strict

PATH = Path(__file__).with_name("claims.yaml")
PRINTED = 0.005 + 1e-9  # rounding error of a printed number: the paper prints at most two decimals
Measure = Literal["accuracy", "test", "train"]


class Cells(Strict):
    """Cells of the paper's tables: a row and the rows it is compared with, on some test sets (default: all)."""

    table: str
    block: str
    row: str
    against: tuple[str, ...] = ()
    against_table: str | None = None
    against_test: str | None = None
    tests: tuple[str, ...] | None = None


class Claim(Strict):
    """One sentence of the paper in one reading. The fields are explained in ``claims.yaml``."""

    id: str
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
    without: str | None = None

    def met(self, value: float) -> bool:
        """Return whether a number supports the claim."""
        value = round(value, 9)  # a difference of two numbers has a rounding error
        if self.equals is not None:
            return abs(value - self.equals) < PRINTED
        if self.within is not None:
            return abs(value) <= self.within
        return value > self.above if self.above is not None else value >= (self.at_least or 0)


class Place(NamedTuple):
    """A cell of the paper's tables."""

    table: str
    block: str
    row: str
    test: str


class Value(NamedTuple):
    """One comparison: a difference in points or a ratio of times. Without ``against``, the accuracy itself."""

    place: Place
    against: Place | None
    number: float


Numbers = Callable[[Place, Measure], float | None]  # an accuracy in percent or a time in seconds, if there is one


@cache
def load_claims() -> tuple[Claim, ...]:
    return tuple(map(Claim.model_validate, yaml.safe_load(PATH.read_text(encoding="utf-8"))["claims"]))


def printed(place: Place, measure: Measure) -> float | None:
    """Return the paper's number."""
    table = paper_table(place.table)
    if (row := table.printed(place.block).get(place.row)) is None:
        return None
    score = row.tests[place.test]
    hours, seconds = row.train_hours, score.seconds
    accuracy = score.accuracy.mean * (100 if table.unit == "share" else 1)
    return {"accuracy": accuracy, "test": seconds and seconds.mean, "train": hours and 3600 * hours.mean}[measure]


def compared(claim: Claim, numbers: Numbers) -> Iterator[Value]:
    """Yield the claim's comparisons, as far as both of their numbers are there."""
    for part in claim.cells:
        tests = part.tests or tuple(paper_table(part.table).tests)
        for test in tests[:1] if claim.measure == "train" else tests:  # training has no test set
            own = Place(part.table, part.block, part.row, test)
            if (number := numbers(own, claim.measure)) is None:
                continue
            if not part.against:
                yield Value(own, None, number)
            table, where = part.against_table or part.table, part.against_test or test
            others = [Place(table, part.block, row, where) for row in part.against]
            known = {place: value for place in others if (value := numbers(place, claim.measure)) is not None}
            best = max(known, key=lambda place: known[place], default=None)
            for other, value in known.items():
                if claim.versus == "each" or other == best:
                    yield Value(own, other, number - value if claim.measure == "accuracy" else value / number)


def held(claim: Claim, values: list[Value]) -> bool:
    """Return whether comparisons, of which there is at least one, support the claim."""
    met = [claim.met(value.number) for value in values]
    best = met[max(range(len(met)), key=lambda place: values[place].number)]
    return {"each": all(met), "most": 2 * sum(met) > len(met), "some": any(met), "largest": best}[claim.judge]
