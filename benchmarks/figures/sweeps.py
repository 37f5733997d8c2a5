"""Accuracy against one option at a time; in the paper, the numbers of neurons T and S, and the length tau of R."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.drawing import Drawing, NothingToDraw, grid, legend_below
from benchmarks.figures.style import GREY, colour, marker
from benchmarks.studies.specs import Block, Row
from methods.registry import get_method


class SweepsFigure(Drawing):
    """One column of panels per option that alone distinguishes some rows from the study's first row.

    There is one row of panels per block. With a single block, the first test set is above and the others are below.
    """

    @property
    def title(self) -> str:
        return f"{self.study.title}: accuracy by setting"

    @cached_property
    def default(self) -> Row:
        return self.study.rows[0]

    def data(self) -> pd.DataFrame:
        """Return one line per option, value, block and test set. Accuracies are shares of 1.

        ``dead`` says whether R was dead at the end of a training.
        """
        lines = [
            {"option": option, "value": value, "default": row is self.default, "dead": line["dead_trainings"] > 0}
            | {key: line[key] for key in ("block", "row", "test", "n", "accuracy", "spread", "low", "high")}
            for block, option, value, row in self._points
            for test in self.study.evaluation.tests
            if (line := self.summary.line(block.id, row.id, "default", test)) and pd.notna(line["accuracy"])
        ]
        if not lines:
            raise NothingToDraw(
                f"no evaluated row of {self.study.name} differs from its first row, {self.default.id!r}, in one number "
                "among its options and nothing else: see workflows/config/sweeps.yaml"
            )
        return pd.DataFrame(lines).sort_values(["option", "value"], kind="stable").reset_index(drop=True)

    def _trained_alike(self, row: Row) -> bool:
        """Return whether a row is of the first row's method and has its training and backbone in each block."""
        runs = self.study.trainings
        pairs = [
            pair
            for block in self.study.blocks
            for pair in zip(runs(block.id, row.id), runs(block.id, self.default.id), strict=False)  # none if skipped
        ]
        return row.method == self.default.method and all(
            (own.training, own.backbone) == (first.training, first.backbone) for own, first in pairs
        )

    @cached_property
    def _points(self) -> list[tuple[Block, str, float, Row]]:
        """The blocks, each with an option, a value and the row that has it there."""
        return [(block, *point) for block in self.study.blocks for point in self._points_of(block)]

    def _points_of(self, block: Block) -> Iterator[tuple[str, float, Row]]:
        """Yield option, value and row. The first row is a point of every option in which another row differs."""
        base = self.study.options_of(block, self.default).model_dump()
        swept: dict[str, None] = {}
        for row in self.study.rows[1:]:
            own = self.study.options_of(block, row).model_dump()
            changed = {key: value for key, value in own.items() if value != base.get(key)}
            if not self._trained_alike(row) or len(changed) != 1:
                continue
            option, value = next(iter(changed.items()))
            if type(value) in (int, float):
                yield option, value, row
                swept[option] = None
        yield from ((option, base[option], self.default) for option in swept)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        options = list(dict.fromkeys(option for _, option, _, _ in self._points if option in set(data["option"])))
        parts = self._parts()
        panels = grid(canvas, len(parts), len(options), (2.3, 1.9), sharex="col", sharey="row")
        for across, (block, tests) in zip(panels, parts, strict=True):
            for axes, option in zip(across, options, strict=True):
                shown = data.loc[(data["option"] == option) & (data["block"] == block.id)]
                self._panel(axes, shown, tests)
            across[0].set_ylabel(f"{block.title}\nAccuracy (%)" if len(self.study.blocks) > 1 else "Accuracy (%)")
            across[0].set_ylim(bottom=0)
        for axes, option in zip(panels[-1], options, strict=True):
            axes.set_xlabel(get_method(self.default.method).Options.model_fields[option].title or option)
        legend_below(canvas, [axes for across in panels for axes in across])

    def _parts(self) -> list[tuple[Block, tuple[str, ...]]]:
        """Return the block and the test sets of each row of panels."""
        blocks, tests = self.study.blocks, self.study.evaluation.tests
        split = [tests] if len(blocks) > 1 or len(tests) == 1 else [tests[:1], tests[1:]]
        return [(block, part) for block in blocks for part in split]

    def _panel(self, axes: Axes, data: pd.DataFrame, tests: tuple[str, ...]) -> None:
        """Draw one panel. Values are evenly spaced, because they grow roughly like powers and may be 0."""
        values = sorted(set(data["value"]))
        for test in tests:
            line = data.loc[data["test"] == test].sort_values("value")
            index = self.study.evaluation.tests.index(test)
            bars = [100 * (line["accuracy"] - line["low"]), 100 * (line["high"] - line["accuracy"])]
            look: dict[str, Any] = {"color": colour(index), "marker": marker(index)}
            axes.errorbar(
                [values.index(value) for value in line["value"]],
                100 * line["accuracy"],
                yerr=bars,
                elinewidth=0.7,
                label=self.test_title(test),
                **look,
            )
            hollow = line.loc[line["dead"]]
            places = [values.index(value) for value in hollow["value"]]
            axes.plot(places, 100 * hollow["accuracy"], linestyle="none", markerfacecolor="white", zorder=3, **look)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        for value in set(data.loc[data["default"], "value"]):
            axes.axvline(values.index(value), color=GREY, linewidth=0.8, linestyle=":", zorder=0)

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        changed = ", ".join(dict.fromkeys(data["option"]))
        once = "" if self.and_trainings else "; they do not cover differences between trainings with other seeds"
        yield f"""Accuracy (default decoding, mean over decoding seeds{self.and_trainings}) with one option changed
        ({changed}) and all else as in the first row. Dotted: that row's value. Bars: 95 % interval over
        questions{self.and_trainings}{once}. Values are evenly spaced, and lines only guide the eye."""
        yield """Larger values of an option also mean more parameters or longer sequences, so a change need not be due
        to the option alone. The paper prints no numbers for its figure."""
        titles = self.study.row_titles
        points = data.loc[data["dead"]].drop_duplicates(["block", "row"]).to_dict("records")
        if hollow := [f"{titles[line['row']]} ({self.study.block(line['block']).title})" for line in points]:
            yield f"""Hollow: R was dead when training ended, so that the point shows a model without R:
            {", ".join(hollow)}."""
        drawn = set(data["row"])
        if absent := dict.fromkeys(titles[row.id] for *_, row in self._points if row.id not in drawn):
            yield f"Not drawn, as there is no accuracy: {', '.join(absent)}."
