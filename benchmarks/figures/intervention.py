"""Dimensions of R that are active together, and the effects of setting a clique of them.

These are the paper's figures on correlated dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import networkx as nx
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.analysis.patterns import correlation_graph, correlations
from benchmarks.analysis.reading import Analysis
from benchmarks.analysis.steering import clique_effects
from benchmarks.figures.drawing import NothingToDraw, grid
from benchmarks.figures.latents import LatentsFigure
from benchmarks.figures.style import DIVERGING, GREY, colour, picture

# The paper's text (4.2.3) on its clique at 0.5, in percent: how much longer outputs are, and answers with the marker
PAPERS_LONGER, PAPERS_MARKED = 44.62, 1.08
LABELLED = 20  # panels with more dimensions than this have no labels for them


class InterventionFigure(LatentsFigure):
    """Correlations of frequent dimensions, effects of their clique at several values, and the graph with its clique."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: correlated dimensions of R, set by hand"

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
            own = data.loc[data["block"] == analysis.block.id]
            self._effect(effect, own.loc[own["part"] == "effect"])
            heat.set_title("Pearson correlation")
            graph.set_title("Correlation graph")
            heat.set_ylabel(self.block_title(analysis))
            if len(analysis.record.frequent) < 2:
                for axes in (heat, graph):
                    _left_out(axes, f"only dimension {analysis.record.frequent[0]}\nis often active")
                continue
            heat.set_ylabel(f"{self.block_title(analysis)}\nDimension")
            matrix = self._matrix(own.loc[own["part"] == "correlation"], analysis)
            self._heat(heat, matrix, analysis)
            self._graph(graph, matrix, analysis)

    def _matrix(self, data: pd.DataFrame, analysis: Analysis) -> pd.DataFrame:
        dims = analysis.record.frequent
        return data.pivot(index="a", columns="b", values="value").reindex(index=dims, columns=dims)

    def _heat(self, axes: Axes, matrix: pd.DataFrame, analysis: Analysis) -> None:
        dims = analysis.record.frequent
        image = axes.imshow(matrix, cmap=DIVERGING, vmin=-1, vmax=1)
        axes.figure.colorbar(image, ax=axes, shrink=0.8)
        if len(dims) <= LABELLED:
            axes.set_xticks(range(len(dims)), list(map(str, dims)), rotation=90)
            axes.set_yticks(range(len(dims)), list(map(str, dims)))
        picture(axes)

    def _effect(self, axes: Axes, data: pd.DataFrame) -> None:
        table = data.pivot(index="setting", columns="measure", values="value").reindex(data["setting"].unique())
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
        """Draw the correlation graph. Few nodes are placed on a circle, with those of the clique side by side.

        A force-directed layout would pull a clique together until its labels overlap.
        """
        dims, inside = analysis.record.frequent, set(analysis.record.clique)
        found = correlation_graph(matrix.to_numpy(), dims, self.study.analysis.correlated_above)
        small = len(dims) <= LABELLED
        order = sorted(found, key=lambda dim: (dim not in inside, dim))
        places = nx.circular_layout(nx.empty_graph(order)) if small else nx.spring_layout(found, seed=0)
        colours = [colour(1) if dim in inside else GREY for dim in found]
        nx.draw_networkx_edges(found, places, ax=axes, edge_color=GREY, width=0.6)
        nx.draw_networkx_edges(found.subgraph(inside), places, ax=axes, edge_color=colour(1), width=1.0)
        look = {"node_color": colours, "node_size": 130 if small else 12, "edgecolors": "white"}
        nx.draw_networkx_nodes(found, places, ax=axes, **look)  # type: ignore[arg-type]
        if small:
            nx.draw_networkx_labels(found, places, ax=axes, font_size=6.5)
        axes.set_aspect("equal")
        axes.margins(0.15)
        axes.axis("off")

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        settings = self.study.analysis
        yield f"""Left: Pearson correlation of the most often active dimensions of R
        ({100 * settings.frequent_share:g} % of all, or {settings.frequent_at_least} where that is more), R
        {self.samples}. Right: a graph of these dimensions with an edge where their correlation is above
        {settings.correlated_above:g}; its largest clique is in colour. Middle: that clique set by hand, in every step
        of {self.asked}: length of all that is said, share of answers with the marker, accuracy."""
        for analysis in self._active:
            own = data.loc[(data["block"] == analysis.block.id) & (data["part"] == "effect")]
            table = own.pivot(index="setting", columns="measure", values="value").reindex(own["setting"].unique())
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
        if dead := [self.block_title(analysis) for analysis in self.analyses if analysis not in self._active]:
            yield f"{', '.join(dead)}: no dimension of R is ever active."
        yield f"""The paper, with its own model and data, at 0.5: outputs {PAPERS_LONGER:g} % longer,
        {PAPERS_MARKED:.2f} % of answers with the marker, accuracy largely unaffected."""


def _left_out(axes: Axes, why: str) -> None:
    """Leave a panel empty except for the reason why."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
