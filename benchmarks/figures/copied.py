"""The steps that answers to the long-range copy repeat (the paper's figure on selected source steps)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.base import GREY, PAGE, FigureBuilder, bars, grid, legend_below
from benchmarks.records.statistics import FEWEST
from benchmarks.scoring.scorers import scorer_of
from benchmarks.scoring.synthetic import WIDTH, Copying, bins, repeats
from benchmarks.studies.specs import Block, Row

COLUMNS = ("test", "text", "draws", "choices")


def is_copy(test: str) -> bool:
    return isinstance(scorer_of(test), Copying)


class CopiedFigure(FigureBuilder):
    """One panel per test set: for each step, its share of the answers that copy a step."""

    topic = "the copied step"

    def data(self) -> pd.DataFrame:
        """Return one line per test set, row and bin of steps.

        * ``share``: the bin's share of the answers that copy a step; ``uniform``: that of a uniform draw.
        * ``repeats``: the share of the steps before the last that equal an earlier one.
        """
        nothing = f"no answer of {self.study.name} copies a step, or no test set is the long-range copy"
        return self.by_row(self._lines, nothing)

    def _lines(self, block: Block, row: Row) -> Iterator[dict[str, Any]]:
        if not any(map(is_copy, self.study.tests_of(block))):
            return
        every = self.records.answers(block.id, row.id, "default", COLUMNS)
        if every is None:
            return
        for test, group in every.loc[every["test"].map(is_copy)].groupby("test", sort=False):
            shared = {"repeats": fmean(map(repeats, group["text"]))}
            choices = int(group["choices"].iloc[0][-1])
            steps = pd.Series([draws[-1] for draws in group["draws"]]).dropna().astype(int)
            for part in bins(choices):
                share = float(steps.isin(part).mean()) if len(steps) >= FEWEST else None
                place = {"test": test, "block": block.id, "row": row.id, "first": part[0], "last": part[-1]}
                counts = {"uniform": len(part) / choices, "copies": len(steps), "n": len(group)}
                yield place | {"share": share} | counts | shared

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        sets = list(dict.fromkeys(zip(data["block"], data["test"], strict=True)))
        (panels,) = grid(canvas, 1, len(sets), (PAGE / len(sets), 2.2))
        rows = [row for row in self.study.rows if row.id in set(data["row"])]
        for axes, (block, test) in zip(panels, sets, strict=True):
            panel_data = data.loc[(data["block"] == block) & (data["test"] == test)]
            bins = panel_data.drop_duplicates("first")
            for at, row in enumerate(rows):
                line = panel_data.loc[panel_data["row"] == row.id].set_index("first").reindex(bins["first"])
                shares, look = 100 * line["share"].astype(float), {"color": self.look(row)["color"]}
                bars(axes, range(len(bins)), shares, at, len(rows), label=self.row_name(row), **look)
            axes.step(
                [-0.5, *(place + 0.5 for place in range(len(bins)))],
                [100 * share for share in (*bins["uniform"], bins["uniform"].iloc[-1])],
                where="post",
                color=GREY,
                linestyle="--",
                linewidth=0.8,
                label="uniform",
            )
            names = [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(bins["first"], bins["last"], strict=True)]
            axes.set_xticks(range(len(bins)), names, rotation=90 if len(bins) > 8 else 0)
            axes.set_title(self.set_title(str(block), str(test)))
            axes.set_xlabel("Copied step")
        panels[0].set_ylabel("Answers that\ncopy a step (%)")
        legend_below(canvas)

    def set_title(self, block: str, test: str) -> str:
        """Return a test set's title, with the block's if several blocks are evaluated on it."""
        several = len(self.study.blocks) > 1 and self.study.block(block).tests is None
        return self.test_title(test) + (f", {self.study.block(block).title.lower()}" if several else "")

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Which earlier step the last one repeats, in shares of the answers that repeat one (default decoding,
        all decoding and training seeds); where there are many steps, in the paper's bins of {WIDTH}. Dashed: a uniform
        draw, as in training."""
        titles = {row.id: self.row_name(row) for row in self.study.rows}
        lines = data.drop_duplicates(["block", "test", "row"]).to_dict("records")
        parts = [
            f"{self.set_title(line['block'], line['test'])}, {titles[line['row']]}: "
            f"{line['copies']:,} of {line['n']:,} ({100 * line['repeats']:.1f} %)"
            for line in lines
        ]
        yield f"""Answers that copy a step: {"; ".join(parts)}. In brackets, the share of the steps before the last that
        equal an earlier one, though nothing asks for it. The last step has twice as many steps before it as they have
        on average, or more (K = 4: three times as many): only copies that are more frequent than such a habit makes
        them are evidence of memory. Shares of fewer than {FEWEST} are not shown. Of equal steps the first counts as the
        one that is copied."""
