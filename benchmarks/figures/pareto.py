"""Accuracy against costs (test time and training compute), with the Pareto front of the rows."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.base import GREY, Drawing, NothingToDraw, grid, legend_below, log_axis

COSTS = {"test_seconds_median": "Test (ms per question)", "training_flops": "Training (FLOPs)"}
FILLS = ("full", "none", "left", "right", "top", "bottom")  # one for each block


class ParetoFigure(Drawing):
    """One column of panels per test set, one row per cost."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: accuracy against cost"

    def data(self) -> pd.DataFrame:
        """Return one line per cost, test set, block and row. Accuracies are shares of 1."""
        lines = []
        for line in self.summary.lines.to_dict("records"):
            shared = {key: line[key] for key in ("test", "block", "row", "accuracy", "low", "high", "control")}
            for cost in COSTS:
                value = line[cost]
                if cost == "test_seconds_median":
                    value = 1000 * value / line["timed_n"] if pd.notna(value) else value
                lines.append({"cost": cost, **shared, "value": value})
        frame = pd.DataFrame(lines)
        drawn = frame.dropna(subset=["accuracy", "value"]) if len(frame) else frame
        if not len(drawn):
            raise NothingToDraw(f"no run of {self.study.name} has both an accuracy and a cost: evaluate and time one")
        ranked = drawn.loc[~drawn["control"].astype(bool)]
        front = [index for _, group in ranked.groupby(["cost", "test"]) for index in _front(group)]
        return drawn.assign(front=drawn.index.isin(front)).reset_index(drop=True)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        tests = self.study.evaluation.tests
        panels = grid(canvas, len(COSTS), len(tests), (2.5, 2.3), sharey="col")
        for across, (cost, label) in zip(panels, COSTS.items(), strict=True):
            for axes, test in zip(across, tests, strict=True):
                self._panel(axes, data.loc[(data["cost"] == cost) & (data["test"] == test)])
                log_axis(axes, label)
            across[0].set_ylabel("Accuracy (%)")
        for axes, test in zip(panels[0], tests, strict=True):
            axes.set_title(self.test_title(test))
            axes.set_ylim(bottom=0)  # also sets the panel below, which shares the axis
        for block, fill in zip(self.study.blocks, FILLS, strict=False):
            panels[0][0].plot([], [], "o", color=GREY, fillstyle=fill, label=block.title)
        legend_below(canvas, [axes for across in panels for axes in across])

    def _panel(self, axes: Axes, data: pd.DataFrame) -> None:
        rows = {row.id: row for row in self.study.rows}
        blocks = [block.id for block in self.study.blocks]
        front = data.loc[data["front"]].sort_values("value")
        axes.step(front["value"], 100 * front["accuracy"], where="post", color=GREY, linewidth=0.8, linestyle="--")
        for line in data.to_dict("records"):
            row, block = rows[line["row"]], blocks.index(line["block"])
            bars = [[100 * (line["accuracy"] - line["low"])], [100 * (line["high"] - line["accuracy"])]]
            axes.errorbar(
                line["value"],
                100 * line["accuracy"],
                yerr=bars,
                fillstyle=FILLS[block % len(FILLS)],
                linestyle="none",
                elinewidth=0.7,
                label=self.row_name(row),
                **self.look(row),
            )

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        batch = self.study.timing.batch_size if self.study.timing else "unknown size"
        yield f"""Accuracy (default decoding, mean over decoding seeds{self.and_trainings}) against what it costs:
        above, time to answer one question in batches of {batch} (where a method can leave its steps unsaid, it does),
        with no other job of the workflow beside it; below, floating-point operations of the whole training, warm starts
        included. Bars: 95 % interval over questions{self.and_trainings}. Dashed: the Pareto front over all rows of the
        panel; no row is both cheaper and more accurate than one on it. Crosses: controls, which are not on the front.
        The filling of a marker stands for the training data. A row at the lower right need not be a worse method: its
        training budget is the study's, and may be too short."""
        drawn = set(zip(data["block"], data["row"], strict=True))
        absent = [
            f"{self.row_name(row)} ({block.id})"
            for block in self.study.blocks
            for row in self.study.rows_of(block)
            if (block.id, row.id) not in drawn
        ]
        if absent:
            yield f"Not drawn, as an accuracy or a cost is missing: {', '.join(absent)}."


def _front(group: pd.DataFrame) -> list[int]:
    """Return the indices of the lines on the Pareto front, cheapest first: each is more accurate than all before it."""
    kept, best = [], -1.0
    ordered = group.sort_values(["value", "accuracy"], ascending=[True, False])
    for index, accuracy in zip(ordered.index.tolist(), ordered["accuracy"].tolist(), strict=True):
        if accuracy > best:
            kept.append(index)
            best = accuracy
    return kept
