"""The figures of accuracy: against costs, by the number of written steps, both at a glance, during training, and
against one option, or the number of latents, at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import sqrt
from typing import Any, Literal, cast

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from benchmarks.data.loading import validation_rows
from benchmarks.figures.base import (
    GREY,
    FigureBuilder,
    NothingToDraw,
    accuracy_and_interval,
    error_bars,
    grid,
    legend_below,
    log_axis,
    look_of,
)
from benchmarks.records import statistics
from benchmarks.records.statistics import FEWEST
from benchmarks.studies.specs import Block, Row
from methods.registry import get_method

COSTS = {"test_seconds_median": "Test (ms per question)", "training_flops": "Training (FLOPs)"}
FILLS = ("full", "none", "left", "right", "top", "bottom")  # one for each block
COLUMNS = ("test", "id", "same_as", "seed", "correct", "n_steps")


class ParetoFigure(FigureBuilder):
    """One column of panels per test set, one row per cost."""

    topic = "accuracy against cost"

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
                self.panel(axes, data.loc[(data["cost"] == cost) & (data["test"] == test)])
                log_axis(axes, label)
            across[0].set_ylabel("Accuracy (%)")
        for axes, test in zip(panels[0], tests, strict=True):
            axes.set_title(self.test_title(test))
            axes.set_ylim(bottom=0)  # also sets the panel below, which shares the axis
        for block, fill in zip(self.study.blocks, FILLS, strict=False):
            panels[0][0].plot([], [], "o", color=GREY, fillstyle=fill, label=block.title)
        legend_below(canvas)

    def panel(self, axes: Axes, data: pd.DataFrame, fills: Sequence[str] = FILLS) -> None:
        """Draw lines of one cost and test set. ``fills``: how markers are filled, for each block."""
        rows = {row.id: row for row in self.study.rows}
        blocks = [block.id for block in self.study.blocks]
        front = data.loc[data["front"]].sort_values("value")
        axes.step(front["value"], 100 * front["accuracy"], where="post", color=GREY, linewidth=0.8, linestyle="--")
        for line in data.to_dict("records"):
            row, block = rows[line["row"]], blocks.index(line["block"])
            axes.errorbar(
                line["value"],
                100 * line["accuracy"],
                yerr=[[reach] for reach in error_bars(line)],
                fillstyle=fills[block % len(fills)],
                linestyle="none",
                elinewidth=0.7,
                label=self.row_name(row),
                **self.look(row),
            )

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Accuracy (default decoding, mean over decoding seeds{self.and_trainings}) against what it costs:
        above, time to answer one question in batches of {self.timed_batch} (where a method can leave out its steps, it
        does), with no other job of the workflow beside it; below, floating-point operations of the whole training, warm
        starts included. Bars: 95 % interval over questions{self.and_trainings}. Dashed: the Pareto front over all rows
        of the panel; no row is both cheaper and more accurate than one on it. Crosses: controls, which are not on the
        front. The filling of a marker stands for the training data. A row at the lower right need not be a worse
        method: its training budget is the study's, and may be too short."""
        if absent := self.undrawn(data):
            yield f"Not drawn, as an accuracy or a cost is missing: {', '.join(absent)}."


def _front(group: pd.DataFrame) -> list[int]:
    """Return the indices of the lines on the Pareto front, cheapest first: each is more accurate than all before it."""
    ordered = group.sort_values(["value", "accuracy"], ascending=[True, False])
    better = ordered["accuracy"] > ordered["accuracy"].cummax().shift(fill_value=-1.0)
    return ordered.index[better.to_numpy()].tolist()


class ByTestAndBlock(FigureBuilder):
    """One column of panels per test set, one row per block."""

    def panels(
        self, canvas: Canvas, data: pd.DataFrame, xlabel: str, sharex: Literal["col"] | bool
    ) -> Iterator[tuple[Axes, str, pd.DataFrame]]:
        """Yield each panel, its test set and its lines, and label it."""
        tests = [test for test in self.study.evaluation.tests if test in set(data["test"])]
        blocks = [block for block in self.study.blocks if block.id in set(data["block"])]
        panels = grid(canvas, len(blocks), len(tests), (2.5, 2.2), sharex=sharex, sharey="row")
        for across, block in zip(panels, blocks, strict=True):
            for axes, test in zip(across, tests, strict=True):
                yield axes, test, data.loc[(data["block"] == block.id) & (data["test"] == test)]
                if block is blocks[0]:
                    axes.set_title(self.test_title(test))
                if block is blocks[-1]:
                    axes.set_xlabel(xlabel)
            across[0].set_ylabel(f"{block.title}\nAccuracy (%)" if len(blocks) > 1 else "Accuracy (%)")
            across[0].set_ylim(bottom=0)


class StepsFigure(ByTestAndBlock):
    """One column of panels per test set with written solutions, one row per block."""

    topic = "accuracy by number of steps"

    def data(self) -> pd.DataFrame:
        """Return one line per test set, block, row and number of steps. Accuracies are shares of 1."""
        return self.by_row(self._lines, f"no test set of {self.study.name} says how many steps its solutions have")

    def _lines(self, block: Block, row: Row) -> Iterator[dict[str, Any]]:
        answers = self.records.answers(block.id, row.id, "default", COLUMNS)
        if answers is None:
            return
        for key, group in answers.dropna(subset="n_steps").groupby(["test", "n_steps"]):
            test, steps = key  # type: ignore[misc]
            correct = statistics.correctness(group)
            if len(correct) < FEWEST:
                continue
            place = {"test": test, "block": block.id, "row": row.id, "steps": int(steps), "n": len(correct)}
            yield place | accuracy_and_interval(correct)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        for axes, test, shown in self.panels(canvas, data, "Steps of the written solution", sharex="col"):
            self.panel(axes, shown)
            axes.set_xticks(sorted(set(data.loc[data["test"] == test, "steps"])))
        legend_below(canvas)

    def panel(self, axes: Axes, data: pd.DataFrame) -> None:
        for row in self.study.rows:
            line = data.loc[data["row"] == row.id].sort_values("steps")
            if len(line):
                banded(axes, line["steps"], line, label=self.row_name(row), **self.look(row))

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Accuracy (default decoding, mean over decoding and training seeds) by the number of steps of the
        question's written solution. Bands: 95 % interval over questions{self.and_trainings}. Every mark stands for at
        least {FEWEST} questions; the CSV file says for how many. Lines between marks only guide the eye."""
        unknown = [self.test_title(test) for test in self.study.evaluation.tests if test not in set(data["test"])]
        if unknown:
            yield f"Not drawn, because the data do not give the number of steps: {', '.join(unknown)}."


def banded(axes: Axes, x: pd.Series, line: pd.DataFrame, **look: Any) -> None:
    """Draw accuracies at x, with the band between ``low`` and ``high``."""
    axes.plot(x, 100 * line["accuracy"], **look)
    axes.fill_between(x, 100 * line["low"], 100 * line["high"], color=look["color"], alpha=0.1, linewidth=0)


class OverviewFigure(FigureBuilder):
    """Two panels for each block, on the first of its test sets whose solutions have a known number of steps: accuracy
    by that number, and against the time of an answer."""

    topic = "accuracy by steps, and against time"

    def data(self) -> pd.DataFrame:
        """Return the lines of :class:`StepsFigure`, and those of :class:`ParetoFigure` that give a time (``value``, in
        milliseconds), on the test sets that are drawn."""
        steps, costs = StepsFigure(self.records).data(), ParetoFigure(self.records).data()
        shown: dict[str, str | None] = {}
        for block in self.study.blocks:
            known = steps.loc[steps["block"] == block.id, "test"]
            shown[block.id] = next((test for test in self.study.tests_of(block) if test in set(known)), None)
        times = costs.loc[costs["cost"] == "test_seconds_median"].drop(columns=["cost", "front", "control"])
        lines = pd.concat([steps.assign(panel="steps"), times.assign(panel="time")], ignore_index=True)
        return lines.loc[lines["test"] == [shown[block] for block in lines["block"]]].reset_index(drop=True)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        blocks = [block for block in self.study.blocks if block.id in set(data["block"])]
        with rc_context({"axes.labelsize": 9, "axes.titlesize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8}):
            panels = grid(canvas, len(blocks), 2, (3.5, 2.6), sharey="row", sharex="col")
            for (left, right), block in zip(panels, blocks, strict=True):
                own = data.loc[data["block"] == block.id]
                steps, times = (own.loc[own["panel"] == panel] for panel in ("steps", "time"))
                StepsFigure(self.records).panel(left, steps)
                ParetoFigure(self.records).panel(right, times.assign(front=False), fills=("full",))
                left.set_title(f"{block.title}: {self.test_title(steps['test'].iloc[0])}", loc="left")
                left.set_ylabel("Accuracy (%)")
                left.set_ylim(0, 102)
            left, right = panels[-1]
            left.set_xticks(sorted(set(data["steps"].dropna().astype(int))))
            left.set_xlabel("Steps of the question's written solution")
            log_axis(right, "Time of an answer (ms)")
        with rc_context({"legend.fontsize": 8.5}):
            legend_below(canvas)

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Accuracy (default decoding, mean over decoding seeds{self.and_trainings}) on the first test set that
        gives the number of steps. Left: by that number, in marks of at least {FEWEST} questions. Right: on all
        questions, against the time to answer one in batches of {self.timed_batch}. Bands and bars: 95 % interval over
        questions{self.and_trainings}. Crosses: controls. The figures `steps` and `pareto` have the other test sets."""


class LatentsCurveFigure(ByTestAndBlock):
    topic = "accuracy by number of latents"

    def data(self) -> pd.DataFrame:
        """Return one line per test set, block, row and decoding that differs from ``default`` at most in options and
        seeds. Accuracies are shares of 1; ``latents`` is the mean number per question. Rows whose number never changes
        have their default decoding alone, and only if they are controls."""
        frame = self.by_row(self._lines, f"no run of {self.study.name} is evaluated")
        varied = cast(pd.Series, frame.groupby(["test", "block", "row"])["latents"].transform("nunique")) > 1
        if not varied.any():
            raise NothingToDraw(
                f"no row of {self.study.name} answers with several numbers of latents: add decodings such as "
                "`{options: {num_latents: 2}, only: [codi]}` to its `evaluation`"
            )
        level = frame["row"].isin([row.id for row in self.study.rows if row.control]) & (frame["decoding"] == "default")
        kept = frame.loc[(varied | level) & frame["block"].isin(frame.loc[varied, "block"])]
        return kept.assign(varied=varied).sort_values("latents", kind="stable").reset_index(drop=True)

    def _lines(self, block: Block, row: Row) -> Iterator[dict[str, Any]]:
        for decoding in self._decodings(block, row):
            answers = self.records.answers(block.id, row.id, decoding, (*COLUMNS, "latent_steps"))
            if answers is None:
                continue
            for test, group in answers.groupby("test", sort=False):
                correct = statistics.correctness(group)
                place = {"test": test, "block": block.id, "row": row.id, "decoding": decoding}
                counts = {"latents": float(group["latent_steps"].to_numpy().mean()), "n": len(correct)}
                yield place | counts | accuracy_and_interval(correct)

    def _decodings(self, block: Block, row: Row) -> Iterator[str]:
        """Yield the default decoding of a row, and those that answer by other options and are equal otherwise."""
        for run in self.study.trainings(block.id, row.id)[:1]:  # all have the same
            apart = {"options", "seeds", "only"}
            default = run.evaluation.decodings["default"].model_dump(exclude=apart)
            for name, spec in run.evaluation.decodings.items():
                if spec.model_dump(exclude=apart) == default and (spec.options or name == "default"):
                    yield name

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        for axes, _, shown in self.panels(canvas, data, "Latents per question", sharex=True):
            self._panel(axes, shown)
        canvas.axes[0].plot([], [], "o", color=GREY, label="as trained")
        legend_below(canvas)

    def _panel(self, axes: Axes, data: pd.DataFrame) -> None:
        for row in self.study.rows:
            line, look = data.loc[data["row"] == row.id], self.look(row)
            if len(line) and not line["varied"].any():
                level = 100 * line["accuracy"].iloc[0]
                axes.axhline(level, color=look["color"], linewidth=0.8, linestyle="--", label=self.row_name(row))
            elif len(line):
                banded(axes, line["latents"], line, label=self.row_name(row), **look, markerfacecolor="white")
                trained = line.loc[line["decoding"] == "default"]
                axes.plot(trained["latents"], 100 * trained["accuracy"], linestyle="none", zorder=3, **look)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Accuracy (default decoding but for the options that set how much a trained model thinks, mean over
        decoding seeds{self.and_trainings}) against the latents that the answer to a question took on average. Filled:
        as many as in training; hollow: fewer or more, with the same weights. Bands: 95 % interval over
        questions{self.and_trainings}. Dashed: controls whose latents are always as many. A line that stays level says
        that a row's answers do not need its latents, or not that many."""
        drawn = set(data.loc[data["varied"], "row"])
        absent = [self.row_name(row) for row in self.study.rows if row.id not in drawn and not row.control]
        if absent:
            yield f"Not drawn, as they are only decoded with one number of latents, or none: {', '.join(absent)}."


class CurvesFigure(FigureBuilder):
    """One panel per block, one line per run."""

    topic = "accuracy while training"

    def data(self) -> pd.DataFrame:
        """Return one line per validation of a run. Accuracies are shares of 1."""
        return self.by_row(
            self._lines,
            f"no run of {self.study.name} answered questions while it trained: set `validation_questions` in the "
            "`training` of its study, and train it",
        )

    def _lines(self, block: Block, row: Row) -> Iterator[dict[str, Any]]:
        for run in self.study.trainings(block.id, row.id):
            if self.records.runs[run.id].train is None:
                continue
            place = {"block": block.id, "row": row.id, "training_seed": run.seed}
            for entry in self.records.log(run.id):
                if "accuracy" in entry:  # a validation at which the run answered questions
                    yield place | {name: entry[name] for name in ("stage", "epoch", "accuracy")}

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        (panels,) = grid(canvas, 1, len(self.study.blocks), (3.2, 2.4), sharey=True)
        for axes, block in zip(panels, self.study.blocks, strict=True):
            block_data = data.loc[data["block"] == block.id]
            for row in self.study.rows_of(block):
                for _, line in block_data.loc[block_data["row"] == row.id].groupby("training_seed"):
                    axes.plot(line["epoch"], 100 * line["accuracy"], label=self.row_name(row), **self.look(row))
            axes.set_title(block.title)
            axes.set_xlabel("Epochs")
        panels[0].set_ylabel("Held-out accuracy (%)")
        panels[0].set_ylim(bottom=0)
        legend_below(canvas)

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        trainings = [run.training for run in self.study.sources.values()]
        asked = {training.validation_questions for training in trainings} - {0}
        chosen = " or ".join(sorted({f"their {training.select_by}" for training in trainings}, reverse=True))
        rows = min(validation_rows(block.data) for block in self.study.blocks)
        fewest = min(*asked, rows)
        yield f"""Share of held-out questions, none of them of a test set, that a run answered right at each of its
        validations, greedily and as the stage at hand trains it to answer. Epochs are those of the run itself, without
        those of the run that it starts from; in stages without marks, a method cannot answer yet. A line is one
        training. Each mark stands for {fewest} questions or more, of which chance alone moves a share of 50 % by
        {98 / sqrt(fewest):.0f} points (95 %); weights are selected by {chosen}, and tests are other questions."""
        if absent := self.undrawn(data):
            yield f"Not drawn, as they answered nothing while they trained: {', '.join(absent)}."


class SweepsFigure(FigureBuilder):
    """One column of panels per option that alone distinguishes some rows from the study's first row, and one row per
    block. With a single block, the first test set is above and the others are below."""

    topic = "accuracy by setting"

    @cached_property
    def default(self) -> Row:
        return self.study.rows[0]

    def data(self) -> pd.DataFrame:
        """Return one line per option, value, block and test set. Accuracies are shares of 1; ``dead``: whether R was
        dead at the end of a training."""
        lines = []
        for block, option, value, row in self._points:
            for test in self.study.evaluation.tests:
                line = self.summary.line(block.id, row.id, "default", test)
                if line is None or pd.isna(line["accuracy"]):
                    continue
                point = {"option": option, "value": value, "default": row is self.default}
                point["dead"] = line["dead_trainings"] > 0
                scores = {key: line[key] for key in ("block", "row", "test", "n", "accuracy", "spread", "low", "high")}
                lines.append(point | scores)
        if not lines:
            raise NothingToDraw(
                f"no evaluated row of {self.study.name} differs from its first row, {self.default.id!r}, in one number "
                "among its options and nothing else: see workflows/config/sweeps.yaml"
            )
        return pd.DataFrame(lines).sort_values(["option", "value"], kind="stable").reset_index(drop=True)

    @cached_property
    def _points(self) -> list[tuple[Block, str, float, Row]]:
        """The blocks, each with an option, a value and the row that has it there."""
        return [(block, *point) for block in self.study.blocks for point in self.study.swept(block)]

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        options = list(dict.fromkeys(option for _, option, _, _ in self._points if option in set(data["option"])))
        blocks, tests = self.study.blocks, self.study.evaluation.tests
        split = [tests] if len(blocks) > 1 or len(tests) == 1 else [tests[:1], tests[1:]]
        parts = [(block, part) for block in blocks for part in split]  # of each row of panels
        panels = grid(canvas, len(parts), len(options), (2.3, 1.9), sharex="col", sharey="row")
        for across, (block, part) in zip(panels, parts, strict=True):
            for axes, option in zip(across, options, strict=True):
                own = data.loc[data["option"] == option]
                values = sorted(set(own["value"]))  # of all blocks: the panels of a column share an axis
                self._panel(axes, own.loc[own["block"] == block.id], part, values)
            across[0].set_ylabel(f"{block.title}\nAccuracy (%)" if len(blocks) > 1 else "Accuracy (%)")
            across[0].set_ylim(bottom=0)
        for axes, option in zip(panels[-1], options, strict=True):
            axes.set_xlabel(get_method(self.default.method).Options.model_fields[option].title or option)
        legend_below(canvas)

    def _panel(self, axes: Axes, data: pd.DataFrame, tests: tuple[str, ...], values: list[float]) -> None:
        """Draw one panel. Values are evenly spaced, because they grow roughly like powers and may be 0."""
        for test in tests:
            line = data.loc[data["test"] == test].sort_values("value")
            look = look_of(self.study.evaluation.tests.index(test))
            axes.errorbar(
                [values.index(value) for value in line["value"]],
                100 * line["accuracy"],
                yerr=error_bars(line),
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
