"""The figures of what latents carry, after those of the paper.

Dimensions of R that questions activate; dimensions that are active together, and the effects of setting a clique of
them; which dimension encodes which drawn digit of Random Summation, and whether setting it steers the model; what R
encodes of what a step draws, and how its draws are read; and the benefit of sampling R.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from benchmarks.analysis.dimensions import correlation_graph, correlations
from benchmarks.analysis.interventions import clique_effects
from benchmarks.analysis.majority_vote import calibration_error, protocols, reliability
from benchmarks.analysis.records import Analysis, EncodingRecord, analysed, read_analysis
from benchmarks.figures.base import (
    DIVERGING,
    GREY,
    SEQUENTIAL,
    FigureBuilder,
    NothingToDraw,
    accuracy_and_interval,
    bars,
    colour,
    error_bars,
    grid,
    legend_below,
    look_of,
    picture,
)
from benchmarks.records import statistics
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import Study

CASES = 3
# The paper's text, in percent: steered steps that obey (4.1.2); on its clique at 0.5 (4.2.3), how much longer outputs
# are, and answers with the marker
PAPERS_STEERING, PAPERS_LONGER, PAPERS_MARKED = 100.0, 44.62, 1.08
LABELLED = 20  # panels with more dimensions than this have no labels for them
OTHERS = 6  # number of the most active dimensions without a digit that are shown too


class LatentsFigure(FigureBuilder):
    """One row of panels per block with latents that can be set by hand, or one per row of these blocks."""

    every_row: ClassVar[bool] = False

    @classmethod
    def needs(cls, study: Study, results: Path) -> list[Path]:
        return [Paths(results, spec).analysis for _, _, spec in analysed(study, cls.every_row)]

    @cached_property
    def analyses(self) -> list[Analysis]:
        results = self.records.results
        runs = analysed(self.study, self.every_row)
        analyses = [read_analysis(self.study, block, row, spec, results) for block, row, spec in runs]
        if not analyses:
            raise NothingToDraw(f"no row of {self.study.name} has latents that can be set by hand")
        return analyses

    @property
    def asked(self) -> str:
        """A description of the questions that were asked."""
        return f"up to {self.study.analysis.questions} questions of each test set, spread evenly over it"

    @property
    def samples(self) -> str:
        """A description of where the latents' values come from."""
        if {analysis.record.source for analysis in self.analyses} == {"encoded"}:
            return "as training encodes the written steps of validation questions, empty steps included"
        return f"as drawn for {self.asked}"

    def block_title(self, analysis: Analysis) -> str:
        title = analysis.block.title  # in a sentence, unless it begins with an abbreviation, such as RS
        title = title if title[:2].isupper() else title[:1].lower() + title[1:]
        return f"{self.row_name(analysis.row)}, {title}"

    def label(self, analysis: Analysis) -> str:
        """The same, in lines that fit beside a panel."""
        return textwrap.fill(self.block_title(analysis), 28)


def _of(data: pd.DataFrame, analysis: Analysis) -> pd.DataFrame:
    """Return the lines of one analysis. Figures with one for each block name no rows."""
    lines = data.loc[data["block"] == analysis.block.id]
    return lines.loc[lines["row"] == analysis.row.id] if "row" in lines else lines


def _part(data: pd.DataFrame, analysis: Analysis, part: str) -> pd.DataFrame:
    """Return the lines of one part of a figure, of one analysis."""
    of = _of(data, analysis)
    return of.loc[of["part"] == part]


class DimensionsFigure(LatentsFigure):
    """Left: R in one step for three cases. Right: frequencies of all dimensions, the most frequent first."""

    topic = "active dimensions of R"

    def data(self) -> pd.DataFrame:
        """Return the numbers of both panels, by ``part``.

        * case: the value of R in the step that is shown, by question and dimension.
        * frequency: the number of samples (steps of questions) in which a dimension is active, by rank.
        """
        frames = []
        for analysis in self.analyses:
            samples, values = analysis.latents
            active = np.asarray(values > self.study.analysis.active_above)
            step, cases = chosen(samples["step"].to_numpy(), active)
            for case, at in enumerate(cases, 1):
                frame = pd.DataFrame({"part": "case", "case": case, "id": samples["id"].iloc[at], "value": values[at]})
                frames.append(frame.assign(block=analysis.block.id, step=step, dim=np.arange(values.shape[1])))
            counts = active.sum(axis=0)
            order = np.argsort(-counts, kind="stable")
            frame = pd.DataFrame({"part": "frequency", "dim": order, "value": counts[order]})
            frames.append(frame.assign(block=analysis.block.id, rank=np.arange(1, len(order) + 1)))
        return pd.concat(frames, ignore_index=True)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        panels = grid(canvas, len(self.analyses), 2, (3.4, 2.2))
        for (left, right), analysis in zip(panels, self.analyses, strict=True):
            cases, frequency = (_part(data, analysis, part) for part in ("case", "frequency"))
            for case, group in cases.groupby("case"):
                number = int(case)  # type: ignore[arg-type]
                beside = group["dim"] + 0.25 * (number - 2)  # side by side, so that no case hides another
                left.vlines(beside, 0, group["value"], color=colour(number - 1), linewidth=1.0)
                left.plot([], [], color=colour(number - 1), label=f"case {number}")
            left.axhline(self.study.analysis.active_above, color="black", linewidth=0.6, linestyle=":")
            left.set_ylabel(f"{self.label(analysis)}\nR in step {cases['step'].max():.0f}")
            left.legend(ncols=CASES, loc="upper center", bbox_to_anchor=(0.5, 1.17))
            if not analysis.record.active:
                left.text(0.5, 0.5, "no dimension is ever active", transform=left.transAxes, ha="center")
            right.fill_between(frequency["rank"], frequency["value"], step="mid", color=colour(0))
            right.set_yscale("symlog", linthresh=1)
            right.set_ylabel("Samples in which it is active")
        panels[-1][0].set_xlabel("Dimension")
        panels[-1][1].set_xlabel("Dimensions, the most frequent first")

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        above = self.study.analysis.active_above
        yield f"""R {self.samples}. Left: the first step in which any dimension is ever active, of the first three
        questions that activate one there (of the first three, and step 1, where none is ever active): other questions
        may have none. The dotted line is {above:g}, above which a dimension counts as active. Right: in how many
        samples each dimension is active; a sample is one step of one question."""
        for analysis in self.analyses:
            record = analysis.record
            share = f"{record.active} of {record.dimensions}"
            samples, values = analysis.latents
            active = np.asarray(values > above)
            step, _ = chosen(samples["step"].to_numpy(), active)
            there = active[np.asarray(samples["step"] == step)].any(axis=1)
            yield f"""{self.block_title(analysis)}: dimensions that are ever active: {share}. Questions that activate
            one in step {step}: {there.sum()} of {there.size}."""


def chosen(steps: np.ndarray, active: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the first step in which any dimension is active, and its first samples with an active one, by index; step
    1 and its first samples if none is ever active. ``steps`` is (N,), ``active`` (N, D)."""
    any_active = active.any(axis=1)
    step = int(min(steps[any_active], default=1))
    return step, np.flatnonzero((steps == step) & (any_active | ~any_active.any()))[:CASES]


class InterventionFigure(LatentsFigure):
    """Correlations of frequent dimensions, effects of their clique at several values, and the graph with its clique."""

    topic = "correlated dimensions of R, set by hand"

    def data(self) -> pd.DataFrame:
        """Return the numbers of the panels, by ``part``. Raise :class:`NothingToDraw` if no dimension is ever active.

        * correlation: the Pearson correlation of dimensions ``a`` and ``b``.
        * effect: ``measure`` under ``setting`` (tokens per question, or shares of answers).
        """
        if not self._active:
            raise NothingToDraw(f"no dimension of R is ever active in {self.study.name}")
        return pd.DataFrame([line for analysis in self._active for line in self._lines(analysis)])

    @property
    def _active(self) -> list[Analysis]:
        """The analyses with active dimensions, which can be set. There are none if R is dead."""
        return [analysis for analysis in self.analyses if analysis.record.frequent]

    def _lines(self, analysis: Analysis) -> Iterator[dict[str, object]]:
        block, dims = analysis.block.id, analysis.record.frequent
        for a, row in zip(dims, correlations(analysis.latents[1], dims), strict=True):
            for b, value in zip(dims, row, strict=True):
                yield {"part": "correlation", "block": block, "a": a, "b": b, "value": float(value)}
        for line in clique_effects(analysis).to_dict("records"):
            setting = "as it is" if pd.isna(line["value"]) else f"{line['value']:g}"
            for measure in ("tokens", "longer", "marked", "correct"):
                yield {"part": "effect", "block": block, "setting": setting, "measure": measure, "value": line[measure]}

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        panels = grid(canvas, len(self._active), 3, (2.7, 2.4))
        for (heat, effect, graph), analysis in zip(panels, self._active, strict=True):
            self._effect(effect, _part(data, analysis, "effect"))
            heat.set_title("Pearson correlation")
            graph.set_title("Correlation graph")
            heat.set_ylabel(self.label(analysis))
            if len(analysis.record.frequent) < 2:
                for axes in (heat, graph):
                    _left_out(axes, f"only dimension {analysis.record.frequent[0]}\nis often active")
                continue
            heat.set_ylabel(f"{self.label(analysis)}\nDimension")
            dims = analysis.record.frequent
            matrix = _part(data, analysis, "correlation").pivot(index="a", columns="b", values="value")
            matrix = matrix.reindex(index=dims, columns=dims)
            self._heat(heat, matrix, analysis)
            self._graph(graph, matrix, analysis)

    def _heat(self, axes: Axes, matrix: pd.DataFrame, analysis: Analysis) -> None:
        dims = analysis.record.frequent
        image = axes.imshow(matrix, cmap=DIVERGING, vmin=-1, vmax=1)
        axes.figure.colorbar(image, ax=axes, shrink=0.8)
        if len(dims) <= LABELLED:
            axes.set_xticks(range(len(dims)), list(map(str, dims)), rotation=90)
            axes.set_yticks(range(len(dims)), list(map(str, dims)))
        picture(axes)

    def _effect(self, axes: Axes, data: pd.DataFrame) -> None:
        table = _by_setting(data)
        places = range(len(table))
        axes.bar(places, table["tokens"], color=colour(4), width=0.6, label="length (tokens)")
        axes.set_ylabel("Tokens per question")
        axes.set_ylim(0, 1.5 * max(table["tokens"].tolist()))
        axes.set_xticks(places, table.index)
        axes.set_title("Clique set to ...")
        shares = axes.twinx()
        shares.grid(False)
        shares.spines["right"].set_visible(True)
        for name, label, index in (("marked", "with ####", 0), ("correct", "right", 1)):
            shares.plot(places, 100 * table[name], "os"[index] + "-", color=colour(index), label=label)
        shares.set_ylim(0, 145)
        shares.set_yticks([0, 50, 100])
        shares.set_ylabel("Answers (%)")
        handles = [part for one in (axes, shares) for part in one.get_legend_handles_labels()[0]]
        axes.legend(handles=handles, loc="upper left")

    def _graph(self, axes: Axes, matrix: pd.DataFrame, analysis: Analysis) -> None:
        """Draw the correlation graph. Few nodes are placed on a circle, those of the clique side by side: a
        force-directed layout would pull a clique together until its labels overlap."""
        dims, inside = analysis.record.frequent, set(analysis.record.clique)
        correlated = correlation_graph(matrix.to_numpy(), dims, self.study.analysis.correlated_above)
        small = len(dims) <= LABELLED
        order = sorted(correlated, key=lambda dim: (dim not in inside, dim))
        places = nx.circular_layout(nx.empty_graph(order)) if small else nx.spring_layout(correlated, seed=0)
        colours = [colour(1) if dim in inside else GREY for dim in correlated]
        nx.draw_networkx_edges(correlated, places, ax=axes, edge_color=GREY, width=0.6)
        nx.draw_networkx_edges(correlated.subgraph(inside), places, ax=axes, edge_color=colour(1), width=1.0)
        look = {"node_color": colours, "node_size": 130 if small else 12, "edgecolors": "white"}
        nx.draw_networkx_nodes(correlated, places, ax=axes, **look)  # type: ignore[arg-type]
        if small:
            nx.draw_networkx_labels(correlated, places, ax=axes, font_size=6.5)
        axes.set_aspect("equal")
        axes.margins(0.15)
        axes.axis("off")

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        settings = self.study.analysis
        yield f"""Left: Pearson correlation of the most often active dimensions of R
        ({100 * settings.frequent_share:g} % of all, or {settings.frequent_at_least} where that is more), R
        {self.samples}. Right: a graph of these dimensions with an edge where their correlation is above
        {settings.correlated_above:g}; its largest clique is in colour. Middle: that clique set by hand, in every step
        of {self.asked}: length of all that is written, share of answers with the marker, accuracy."""
        for analysis in self._active:
            table = _by_setting(_part(data, analysis, "effect"))
            dims, last = analysis.record.clique, table.iloc[-1]
            correct = ", ".join(f"{100 * share:.1f} % at {value}" for value, share in table["correct"].iloc[1:].items())
            alone = (
                "" if len(dims) > 1 else " (no two dimensions correlate so much, so it is the most frequent one alone)"
            )
            change = f"{100 * abs(last['longer']):.1f} % {'longer' if last['longer'] >= 0 else 'shorter'}"
            yield f"""{self.block_title(analysis)}: clique {", ".join(map(str, dims))}{alone}. At
            {table.index[-1]}, outputs are {change} and {100 * last["marked"]:.1f} % of answers have the marker (as it
            is: {100 * table["marked"].iloc[0]:.1f} %). Accuracy is {correct} (as it is:
            {100 * table["correct"].iloc[0]:.1f} %)."""
        if dead := [self.block_title(analysis) for analysis in self.analyses if not analysis.record.frequent]:
            yield f"{', '.join(dead)}: no dimension of R is ever active."
        yield f"""The paper, with its own model and data, at 0.5: outputs {PAPERS_LONGER:g} % longer,
        {PAPERS_MARKED:.2f} % of answers with the marker, accuracy largely unaffected."""


def _by_setting(effects: pd.DataFrame) -> pd.DataFrame:
    """Return a clique's effects with one column per measure, and one line per setting, in the order of the settings."""
    table = effects.pivot(index="setting", columns="measure", values="value")
    return table.reindex(effects["setting"].unique())


def _left_out(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


class EncodingFigure(LatentsFigure):
    """Left: mean of R by digit and dimension. Right: share of steps that obey a digit set by hand."""

    topic = "the drawn digit in R"
    every_row = True

    @property
    def _encoded(self) -> list[tuple[Analysis, EncodingRecord]]:
        encoded = [(analysis, analysis.record.encoding) for analysis in self.analyses if analysis.record.encoding]
        if not encoded:
            raise NothingToDraw(f"no test set of {self.study.name} is Random Summation, or no run of it encodes steps")
        return encoded

    def data(self) -> pd.DataFrame:
        """Return the numbers of both panels, by ``part``, block and row.

        * encoding: the mean of R by digit and dimension, of the dimensions that are shown.
        * steering: by way (``by``), steered step and digit, the shares of questions whose step obeys, whose later steps
          follow, and with both.
        """
        frames = []
        for analysis, encoded in self._encoded:
            place = {"block": analysis.block.id, "row": analysis.row.id}
            means = analysis.frame("encoding")
            shown = shown_dimensions(encoded, means.pivot(index="digit", columns="dim", values="mean"))
            frames.append(means.loc[means["dim"].isin(shown)].assign(part="encoding", **place))
            if "steering" not in analysis.record.files:  # no digit can be set by hand
                continue
            steering = analysis.frame("steering")
            steering["both"] = steering["obeyed"] & steering["followed"]
            if "by" not in steering:  # of release 0.2
                steering["by"] = "dimension"
            shares = steering.pivot_table(["obeyed", "followed", "both"], ["by", "step", "digit"]).reset_index()
            frames.append(shares.assign(part="steering", n=len(steering) // len(shares), **place))
        return pd.concat(frames, ignore_index=True)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        panels = grid(canvas, len(self._encoded), 2, (3.4, 2.2))
        for (left, right), (analysis, encoded) in zip(panels, self._encoded, strict=True):
            matrix = _part(data, analysis, "encoding").pivot(index="digit", columns="dim", values="mean")
            dims = shown_dimensions(encoded, matrix)
            image = left.imshow(matrix[dims].to_numpy(dtype=float), cmap=SEQUENTIAL, aspect="auto")
            canvas.colorbar(image, ax=left, label="mean of R", shrink=0.9)
            left.set_xticks(range(len(dims)), list(map(str, dims)), rotation=90)
            left.set_yticks(range(10))
            left.set_ylabel(f"{self.label(analysis)}\nDrawn digit")
            left.set_xlabel("Dimension")
            picture(left)
            steering = _part(data, analysis, "steering")
            if steering.empty:
                right.set_axis_off()
                continue
            steps = sorted(steering["step"].unique())
            for at, step in enumerate(steps):
                lines, label = steering.loc[steering["step"] == step], f"step {int(step)}"
                own, code = (lines.loc[lines["by"] == by] for by in ("dimension", "code"))
                if len(own):
                    bars(right, own["digit"], 100 * own["both"], at, len(steps), color=colour(at), label=label)
                if len(code):
                    look = {**look_of(at), "linestyle": "none", "markeredgecolor": "black"}
                    right.plot(code["digit"], 100 * code["both"], label=f"{label}, whole code", **look)
            without = [digit for digit, dim in enumerate(encoded.dims) if dim is None]
            hatching: dict[str, Any] = {"facecolor": "none", "edgecolor": GREY, "hatch": "////", "linewidth": 0}
            if without:
                right.bar(without, [105] * len(without), 0.8, label="no own dimension", **hatching)
            right.set_xticks(range(10))
            right.set_xlabel("Digit set by hand")
            right.set_ylabel("Steps and all later ones right (%)")
            right.set_ylim(0, 105)
            right.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Left: mean of R, as training encodes it, over the validation steps that drew each digit, by
        dimension; first the digits' own dimensions, then the most active others. Dimensions are assigned to digits one
        to one; the assigned dimension is a digit's own if its mean there is above
        {self.study.analysis.active_above:g} and it is the largest of all assigned ones in most steps of that digit.
        Right: the steering test. In one step the digit's own dimension is set to that mean and all others to 0, and R
        of all other steps is drawn; the bar is the share of questions in which that step adds this digit and all later
        steps, the last sum included, follow from it ({self.asked}). Hatched: digits without a dimension of their own.
        Points: the same with the whole of R set to the mean over the steps that drew the digit, where this was asked.
        If nothing was steered, the panel is left out."""
        for analysis, encoded in self._encoded:
            agreement = [share for share in encoded.agreement if share is not None]
            own = len(encoded.digit_dimensions)
            yield f"""{self.block_title(analysis)}: {own} of 10 digits have a dimension of their own; the assigned one
            is the largest in {100 * np.mean(agreement):.1f} % of a digit's steps (mean over digits; the lowest:
            {100 * min(agreement):.1f} %). {steering_accuracy(_part(data, analysis, "steering"))}
            The paper: {PAPERS_STEERING:g} %. {variance_in_words(encoded)}"""


def variance_in_words(encoded: EncodingRecord) -> str:
    """Say how much of R's variance the drawn digit explains, and how much the level of the numbers that result."""
    percentages = {
        cause: " and ".join(f"{100 * share:.0f}" for share in by_step if share is not None)
        for cause, by_step in encoded.explained.items()
    }
    if not all(percentages.values()):
        return ""
    digit, level = percentages["digit"], percentages["level"]
    return f"""Of R's variance the drawn digit explains {digit} % (by step), and the level, the rounded mean of the
        numbers that the step writes, {level} %."""


def steering_accuracy(shares: pd.DataFrame) -> str:
    """Describe the result of the steering test."""
    if shares.empty:
        return "Steering accuracy: none, since no digit can be set by hand."
    found = []
    for by, way in (("dimension", ""), ("code", " by whole codes")):
        lines = shares.loc[shares["by"] == by]
        if lines.empty:
            continue
        found.append(
            f"""Steering accuracy{way}: {100 * lines["both"].mean():.1f} %, steered over {lines["digit"].nunique()} of
            10 digits (the step obeys: {100 * lines["obeyed"].mean():.1f} %; later steps follow:
            {100 * lines["followed"].mean():.1f} %)."""
        )
    return " ".join(found)


def shown_dimensions(encoded: EncodingRecord, matrix: pd.DataFrame) -> list[int]:
    """Return the digits' dimensions in order, then the most active of the others."""
    dims = encoded.digit_dimensions
    rest = matrix.drop(columns=dims).max().fillna(-np.inf).sort_values(ascending=False)
    return dims + [int(dim) for dim in rest.index[:OTHERS]]


class DrawsFigure(LatentsFigure):
    """Left: shares of R's variance by what explains them. Right: how steps read R that is theirs, another question's,
    or drawn."""

    topic = "what R encodes, and how it is read"
    every_row = True
    causes: ClassVar = {
        "draw": "the draw",
        "first word": "the first word",
        "question": "the question",
        "draws so far": "all draws so far",
    }
    readings: ClassVar = {
        "own": "own R, own draw",
        "donor": "other's R, other's draw",
        "same": "same text",
        "two_ways": "read in two ways",
    }

    def data(self) -> pd.DataFrame:
        """Return the numbers of both panels, by ``part``, block, row and ``step``: the ``share`` of R's variance that a
        cause explains (``explained``), or the share of ``n`` steps that are read so (``reading``)."""
        frames = []
        for analysis in self.analyses:
            if "explained" not in analysis.record.files:
                continue
            given, drawn = analysis.frame("transplanted"), analysis.frame("reread")
            drawn["two_ways"] = (~drawn["later"].astype(bool)).where(drawn["same"].astype(bool))
            readings = pd.concat([given.melt("step"), drawn.drop(columns="later").melt("step")]).dropna()
            readings["value"] = readings["value"].astype(float)
            shares = readings.groupby(["variable", "step"], sort=False)["value"].agg(share="mean", n="count")
            parts = {
                "explained": analysis.frame("explained").rename(columns={"cause": "name"}),
                "reading": shares.reset_index().rename(columns={"variable": "name"}),
            }
            for part, frame in parts.items():
                frames.append(frame.assign(part=part, block=analysis.block.id, row=analysis.row.id))
        if not any(map(len, frames)):
            raise NothingToDraw(f"no row of {self.study.name} has an R that encodes steps one by one, and varies")
        return pd.concat(frames, ignore_index=True)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        shown = [(analysis, of) for analysis in self.analyses if not (of := _of(data, analysis)).empty]
        steps = sorted(set(data["step"].tolist()))
        causes = {name: label for name, label in self.causes.items() if name in set(data["name"])}
        panels = grid(canvas, len(shown), 2, (3.4, 1.8))
        for (left, right), (analysis, of) in zip(panels, shown, strict=True):
            self._bars(left, of.loc[of["part"] == "explained"], causes)
            self._bars(right, of.loc[of["part"] == "reading"], self.readings)
            left.set_title(self.block_title(analysis), loc="left")
            left.set_ylabel("Variance of R (%)")
            right.set_ylabel("Steps (%)")
            for axes in (left, right):
                axes.set_xticks(steps)
                axes.set_xlim(steps[0] - 0.5, steps[-1] + 0.5)
                axes.set_ylim(0, 105)
        for axes, names in zip(panels[-1], (causes, self.readings), strict=True):
            axes.set_xlabel("Thinking step")
            # of all names, also of those that the last panel has no bars of
            keys = [Patch(color=colour(at), label=label) for at, label in enumerate(names.values())]
            axes.legend(handles=keys, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.3))

    def _bars(self, axes: Axes, data: pd.DataFrame, names: dict[str, str]) -> None:
        for at, name in enumerate(names):
            lines = data.loc[data["name"] == name]
            bars(axes, lines["step"], 100 * lines["share"], at, len(names), color=colour(at))

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        first = "" if len(self.study.evaluation.tests) == 1 else "; of several test sets the first"
        so_far = (
            "; all that was drawn up to the step, from the second on" if "draws so far" in set(data["name"]) else ""
        )
        yield f"""Left: share of the variance of R that each cause explains (adjusted R squared), where R is the mean by
        which training encodes the solutions of validation questions: what the step draws, by the task's rules; the
        first word of its text; the question (a linear regression){so_far}. Right, R of the steps' solutions: the share
        of steps that draw what their solution draws, and, with R of another question in that one step, the share that
        draw what the other's solution does (where the two differ). Right, drawn R (up to
        {self.study.analysis.questions} questions{first}): in one step the draw gives way to R that encodes the step as
        it was spoken. Same text: this step is spoken as before. Read in two ways: of these steps, the share after which
        later steps change, a sign that speaking and thinking took the draw for different steps."""
        for analysis in self.analyses:
            if (of := _of(data, analysis)).empty:
                continue
            causes = _by_step(of.loc[of["part"] == "explained"], self.causes)
            readings = _by_step(of.loc[of["part"] == "reading"], self.readings)
            yield f"""{self.block_title(analysis)}. Variance of R: {causes or "none"}. Steps: {readings or "none"}."""


def _by_step(lines: pd.DataFrame, labels: dict[str, str]) -> str:
    """Return shares in words, each with its step."""
    found = []
    for name, label in labels.items():
        own = lines.loc[lines["name"] == name]
        shares = [f"{100 * share:.1f} % (step {step})" for step, share in zip(own["step"], own["share"], strict=True)]
        found += [f"{label} {', '.join(shares)}"] if shares else []
    return "; ".join(found)


class CalibrationFigure(LatentsFigure):
    """Left: accuracy by answering protocol. Right: accuracy of the majority answer by its share of the votes."""

    topic = "samples of R"

    def data(self) -> pd.DataFrame:
        """Return the numbers of both panels, by ``part``.

        * accuracy: by ``protocol``, with a 95 % interval over questions.
        * reliability: accuracy of the majority answer of all draws by its share of the votes.
        """
        return pd.DataFrame([line for analysis in self.analyses for line in self._lines(analysis)])

    def _lines(self, analysis: Analysis) -> Iterator[dict[str, object]]:
        samples = analysis.frame("samples")
        for test, group in samples.groupby("test", sort=False):
            shared = {"block": analysis.block.id, "test": test}
            for protocol, frame in protocols(group).items():
                correct = statistics.correctness(frame)
                values = accuracy_and_interval(correct) | {"n": len(correct)}
                yield {"part": "accuracy", **shared, "protocol": protocol, **values}
            for line in reliability(group).to_dict("records"):
                yield {"part": "reliability", **shared, **line}

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        panels = grid(canvas, len(self.analyses), 2, (3.4, 2.2))
        tests = list(data["test"].unique())
        for (left, right), analysis in zip(panels, self.analyses, strict=True):
            accuracies, votes = (_part(data, analysis, part) for part in ("accuracy", "reliability"))
            names = list(accuracies["protocol"].unique())
            for index, test in enumerate(tests):
                look = look_of(index)
                scores, bins = (lines.loc[lines["test"] == test] for lines in (accuracies, votes))
                places = [names.index(name) + 0.12 * (index - (len(tests) - 1) / 2) for name in scores["protocol"]]
                label = self.test_title(str(test))
                left.errorbar(
                    places, 100 * scores["accuracy"], yerr=error_bars(scores), linestyle="none", label=label, **look
                )
                right.plot(100 * bins["share"], 100 * bins["accuracy"], **look)
            left.set_xticks(range(len(names)), names)
            left.set_ylabel(f"{self.label(analysis)}\nAccuracy (%)")
            left.set_ylim(bottom=0)
            right.plot([0, 100], [0, 100], color=GREY, linewidth=0.8, linestyle="--")
            right.set_ylabel("Accuracy of the majority (%)")
        panels[-1][1].set_xlabel("Votes for the majority (%)")
        legend_below(canvas)

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Left: accuracy when R is the mean of its predicted distribution, one draw (mean over
        {self.study.analysis.samples} of them), or when the most frequent answer of several draws is taken; bars: 95 %
        interval over questions ({self.asked}). Right: accuracy of the majority answer of all draws by its share of the
        votes; on the dashed line the share equals the probability of being right."""
        for analysis in self.analyses:
            errors = [
                f"{self.test_title(str(test))} {100 * calibration_error(group):.1f}"
                for test, group in _part(data, analysis, "reliability").groupby("test", sort=False)
            ]
            yield f"Expected calibration error (points), {self.block_title(analysis)}: {', '.join(errors)}."
