"""What gold texts of validation rows cost, for all tables that show it; and the table of nats, which also has the
accuracy with the latents that encode them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.records import statistics
from benchmarks.records.results import StudyRecords
from benchmarks.records.summary import index_by
from benchmarks.studies.specs import Block, DecodingSpec, Row
from benchmarks.tables.base import cell, interval_cell
from benchmarks.tables.decoding import DecodingTable
from benchmarks.tables.markup import Cell, Column, Grid, Line

COLUMNS = {
    **dict.fromkeys(("block", "row", "quantity"), "string"),
    "part": "Int64",  # of the text, or step of the latents, from 1; 0: the whole
    **dict.fromkeys(("n", "training_seeds"), "Int64"),
    **dict.fromkeys(("mean", "spread", "low", "high"), "Float64"),
}
SHOWN = {
    "text": Column("Text", "Gold steps and answer"),
    "latents": Column("KL", "Gold steps and answer"),
    "sum": Column("Sum", "Gold steps and answer"),
    "given": Column("after gold steps", "Answer"),
    "answer": Column("by itself", "Answer"),
}
BY_STEP = {"text": "text", "latents": "KL"}


@dataclass(frozen=True, eq=False)
class GoldNats:
    """The nats of each row of a study: means over validation rows and trainings."""

    records: StudyRecords

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One line per block, row, quantity and part (:data:`COLUMNS`); empty if the study scores none."""
        study = self.records.study
        lines: list[dict[str, Any]] = []
        for block in study.blocks:
            for row in sorted(study.rows_of(block), key=lambda row: row.control):
                if (nats := self.records.nats(block.id, row.id)) is not None:
                    lines += ({"block": block.id, "row": row.id, **line} for line in _aggregated(nats))
        return pd.DataFrame(lines, columns=list(COLUMNS)).astype(COLUMNS)

    @cached_property
    def _found(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        return index_by(self.frame, "block", "row", "quantity", "part")

    def line(self, block: Block, row: Row, quantity: str, part: int = 0) -> dict[str, Any] | None:
        return self._found.get((block.id, row.id, quantity, part))

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The numbers for a table's JSON, if there are any."""
        return {} if self.frame.empty else {"nats": self.frame}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in the details of other tables, if there are any numbers."""
        named = (replace(column, group=f"Nats, {column.group.lower()}") for column in SHOWN.values())
        return () if self.frame.empty else tuple(named)

    def cells(self, block: Block, row: Row) -> tuple[Cell, ...]:
        """Return what a row has in :attr:`columns`."""
        return tuple(_mean_cell(self.line(block, row, quantity)) for quantity in SHOWN) if self.columns else ()

    def about_columns(self) -> Iterator[str]:
        """Yield paragraphs of a legend on :attr:`columns`."""
        if self.columns:
            whole, answer = self.legend(f"{self.frame['n'].max():,}")
            yield f"{whole} They are those of a row's training, whatever the test set and the decoding."
            yield answer

    def legend(self, rows: str) -> tuple[str, str]:
        """Return paragraphs of a legend. ``rows``: the number of validation rows, or the column that has it."""
        over = " ± is the standard deviation over training seeds." if len(self.records.study.seeds) > 1 else ""
        whole = f"""Nats (negative natural log likelihood) of the gold texts of {rows} validation rows, mean per
        question.{over} Text: steps and answer, each after the gold ones before it, and with the latents that
        encode the gold steps if there are such (MarCos's reconstruction). KL: of these latents from what the method
        predicts. Sum: minus the evidence lower bound, and so an upper bound (no bound with `posterior: deterministic`,
        where Text has none of the noise that KL assumes); for methods without such latents, Text is exact."""
        answer = """Answer, after gold steps: the last part of Text. By itself: after the latents that the method has
        without gold text (MarCos: the means of its predictor). A dash: the method does not write it. Markers in the
        texts of methods differ, and weights were selected on validation rows."""
        return whole, answer


class NatsTable(DecodingTable):
    """Nats of each row, in all and by step, and beside the default decoding's accuracy that with encoded latents."""

    topic = "nats of gold texts"

    @classmethod
    def shows(cls, spec: DecodingSpec) -> bool:
        return spec.latents == "encoded"

    @cached_property
    def _nats(self) -> GoldNats:
        return GoldNats(self.records)

    @property
    def frame(self) -> pd.DataFrame:
        return self._nats.frame

    @property
    def extra_frames(self) -> dict[str, pd.DataFrame]:
        return {"accuracy": self.summary.lines}

    def grids(self) -> list[Grid]:
        whole = (*SHOWN.values(), Column("Sum, 95 % interval"), Column("n"))
        steps = (*(Column(f"Step {step}") for step in range(1, self._parts)), Column("Answer"))
        # A section for each block: nats are of its validation rows, whatever its test sets
        grids = [Grid(self.title, whole, self.by_block(self._whole))]
        grids.append(Grid("By step", steps, self.by_block(self._by_step)))
        if self.decodings():
            accuracy, questions = super().grids()
            grids += [replace(accuracy, caption="Accuracy with encoded latents"), questions]
        return grids

    def _whole(self, block: Block, row: Row) -> Iterator[Line]:
        line = self.line(block, row)
        found = {name: self._nats.line(block, row, name) for name in SHOWN}
        some = next(filter(None, found.values()), None)
        n = self.missing_cell(line) if pd.isna(line["accuracy"]) else Cell()
        if some:
            n = Cell(f"{some['n']:,}", mark=self.missing_seeds(line))
        interval = interval_cell(found["sum"], _form) if found["sum"] else Cell()
        yield Line(self.row_title(line), (*map(_mean_cell, found.values()), interval, n), row.indent)

    @cached_property
    def _parts(self) -> int:
        return max(self.frame["part"], default=0)

    def _by_step(self, block: Block, row: Row) -> Iterator[Line]:
        """Yield a line for the text and one for the latents, as far as there are any. The last part is the answer."""
        for quantity, name in BY_STEP.items():
            at = (self._nats.line(block, row, quantity, part) for part in range(1, self._parts + 1))
            if cells := [_mean_cell(line) for line in at if line]:
                gap = [Cell()] * (self._parts - len(cells))
                title = f"{self.study.row_titles[row.id]}{self.dead_r_suffix(self.line(block, row))}: {name}"
                yield Line(Cell(title), (*cells[:-1], *gap, cells[-1]), row.indent)

    def legend(self) -> Iterator[str]:
        if not self.study.evaluation.nats:
            yield "This study scores no validation rows: set `nats: 200` in its `evaluation`."
            return
        whole, answer = self._nats.legend("n")
        yield f"""{whole} Interval: of the sum, a bootstrap over questions or, with several training seeds, that of the
        t distribution over both; the CSV file has those of all numbers."""
        yield answer
        yield "By step: steps without text cost 0. A chain that a method writes as one text is step 1."
        if self.decodings():
            yield from super().legend()


def _aggregated(nats: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the mean over questions and trainings of each quantity and part that the method has."""
    for (quantity, part), values in _quantities(nats).items():
        of_each = nats[["id", "training_seed"]].assign(value=values).pivot(index="id", columns="training_seed")
        low, high = statistics.mean_interval(of_each)
        means = of_each.mean().tolist()
        line = {"quantity": quantity, "part": part, "n": len(of_each), "training_seeds": len(means)}
        yield {**line, "mean": float(np.mean(means)), "spread": statistics.sample_std(means), "low": low, "high": high}


def _quantities(nats: pd.DataFrame) -> dict[tuple[str, int], np.ndarray]:
    """Return the nats of each line by quantity and part, as far as the method has them."""
    values = {name: np.stack(nats[name].tolist()) for name in BY_STEP if not nats[name].isna().to_numpy().any()}
    found = {(name, 0): parts.sum(1) for name, parts in values.items()}
    if "text" in values:
        found |= {("sum", 0): sum(found.values()), ("given", 0): values["text"][:, -1]}
    if not nats["answer"].isna().to_numpy().any():
        found["answer", 0] = nats["answer"].to_numpy(float)
    return found | {(name, step): part for name, parts in values.items() for step, part in enumerate(parts.T, 1)}


def _form(value: float) -> str:
    return f"{value:z.2f}"  # z: no -0.00


def _mean_cell(line: Mapping[str, Any] | None) -> Cell:
    return Cell() if line is None else cell(line["mean"], _form, spread=line["spread"])
