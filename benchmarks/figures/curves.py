"""Accuracy on held-out questions while a run trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.drawing import Drawing, grid, legend_below
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import Block, Row


class CurvesFigure(Drawing):
    """One panel per block, one line per run."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: accuracy while training"

    def data(self) -> pd.DataFrame:
        """Return one line per validation of a run. Accuracies are shares of 1."""
        nothing = (
            f"no run of {self.study.name} answered questions while it trained: set `validation_questions` in the "
            "`training` of its study, and train it"
        )
        return self.by_row(self._lines, nothing)

    def _lines(self, block: Block, row: Row) -> Iterator[dict[str, Any]]:
        for run in self.study.trainings(block.id, row.id):
            for entry in self._validations(run):
                shared = {"block": block.id, "row": row.id, "training_seed": run.seed, "stage": entry["stage"]}
                yield {**shared, "epoch": entry["epoch"], "accuracy": entry["accuracy"]}

    def _validations(self, run: RunSpec) -> list[dict[str, Any]]:
        """Return what a run logged at validations at which it answered questions."""
        path = self.records.paths(run.id).log
        if self.records.runs[run.id].train is None or not path.is_file():
            return []
        entries = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [entry for entry in entries if "accuracy" in entry]

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        (panels,) = grid(canvas, 1, len(self.study.blocks), (3.2, 2.4), sharey=True)
        for axes, block in zip(panels, self.study.blocks, strict=True):
            own = data.loc[data["block"] == block.id]
            for row in self.study.rows_of(block):
                for _, line in own.loc[own["row"] == row.id].groupby("training_seed"):
                    axes.plot(line["epoch"], 100 * line["accuracy"], label=self.row_name(row), **self.look(row))
            axes.set_title(block.title)
            axes.set_xlabel("Epochs")
        panels[0].set_ylabel("Held-out accuracy (%)")
        panels[0].set_ylim(bottom=0)
        legend_below(canvas, panels)

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        trainings = [run.training for run in self.study.sources.values()]
        asked = {training.validation_questions for training in trainings} - {0}
        chosen = " or ".join(sorted({f"their {training.select_by}" for training in trainings}, reverse=True))
        rows = min(block.data.validation for block in self.study.blocks)
        fewest = min(*asked, rows)
        yield f"""Share of held-out questions, split off the training data, that a run answered right at each of its
        validations, greedily and as the stage at hand trains it to answer. Epochs are those of the run itself, without
        those of the run that it starts from; in stages without marks, a method cannot answer yet. A line is one
        training. Each mark stands for {fewest} questions or more, of which chance alone moves a share of 50 % by
        {98 / sqrt(fewest):.0f} points (95 %); weights are selected by {chosen}, and tests are other questions."""
        known = set(zip(data["block"], data["row"], strict=True))
        places = ((block.id, row) for block in self.study.blocks for row in self.study.rows_of(block))
        if absent := [f"{self.row_name(row)} ({block})" for block, row in places if (block, row.id) not in known]:
            yield f"Not drawn, as they answered nothing while they trained: {', '.join(absent)}."
