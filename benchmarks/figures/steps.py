"""Accuracy by the number of steps that a question's written solution has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.base import Drawing, grid, legend_below
from benchmarks.records import statistics
from benchmarks.records.statistics import FEWEST
from benchmarks.studies.specs import Block, Row

COLUMNS = ("test", "id", "same_as", "seed", "correct", "n_steps")


class StepsFigure(Drawing):
    """One column of panels per test set with written solutions, one row per block."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: accuracy by number of steps"

    def data(self) -> pd.DataFrame:
        """Return one line per test set, block, row and number of steps. Accuracies are shares of 1."""
        return self.by_row(self._lines, f"no test set of {self.study.name} says how many steps its solutions have")

    def _lines(self, block: Block, row: Row) -> Iterator[dict[str, Any]]:
        found = self.records.answers(block.id, row.id, "default", COLUMNS)
        if found is None:
            return
        known = found.dropna(subset="n_steps")
        for key, group in known.groupby(["test", "n_steps"]):
            test, steps = key  # type: ignore[misc]
            correct = statistics.correctness(group)
            if len(correct) < FEWEST:
                continue
            low, high = statistics.interval(correct)
            shared = {"test": test, "block": block.id, "row": row.id, "steps": int(steps), "n": len(correct)}
            yield {**shared, "accuracy": statistics.accuracy(correct), "low": low, "high": high}

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        tests = [test for test in self.study.evaluation.tests if test in set(data["test"])]
        blocks = self.study.blocks
        panels = grid(canvas, len(blocks), len(tests), (2.4, 2.1), sharex="col", sharey="row")
        for across, block in zip(panels, blocks, strict=True):
            for axes, test in zip(across, tests, strict=True):
                shown = data.loc[(data["block"] == block.id) & (data["test"] == test)]
                for row in self.study.rows_of(block):
                    line = shown.loc[shown["row"] == row.id].sort_values("steps")
                    axes.plot(line["steps"], 100 * line["accuracy"], label=self.row_name(row), **self.look(row))
                    bounds = (100 * line["low"], 100 * line["high"])
                    axes.fill_between(line["steps"], *bounds, color=self.look(row)["color"], alpha=0.1, linewidth=0)
                axes.set_xticks(sorted(set(data.loc[data["test"] == test, "steps"])))
                if block is blocks[0]:
                    axes.set_title(self.test_title(test))
                if block is blocks[-1]:
                    axes.set_xlabel("Steps of the written solution")
            across[0].set_ylabel(f"{block.title}\nAccuracy (%)")
            across[0].set_ylim(bottom=0)
        legend_below(canvas, [axes for across in panels for axes in across])

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Accuracy (default decoding, mean over decoding and training seeds) by the number of steps of the
        question's written solution. Bands: 95 % interval over questions{self.and_trainings}. Every mark stands for at
        least {FEWEST} questions; the CSV file says for how many. Lines between marks only guide the eye."""
        unknown = [self.test_title(test) for test in self.study.evaluation.tests if test not in set(data["test"])]
        if unknown:
            yield f"Not drawn, because the data do not give the number of steps: {', '.join(unknown)}."
