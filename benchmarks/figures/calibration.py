"""The benefit of sampling R: its mean against one draw and against majority votes, and whether votes are calibrated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from benchmarks.analysis.reading import Analysis
from benchmarks.analysis.votes import calibration_error, protocols, reliability
from benchmarks.figures.base import GREY, colour, grid, legend_below, marker
from benchmarks.figures.latents import LatentsFigure
from benchmarks.records import statistics


class CalibrationFigure(LatentsFigure):
    """Left: accuracy by answering protocol. Right: accuracy of the majority answer by its share of the votes."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: samples of R"

    def data(self) -> pd.DataFrame:
        """Return the numbers of both panels, by ``part``.

        * accuracy: by ``protocol``, with a 95 % interval over questions.
        * reliability: accuracy of the majority answer of all draws by its share of the votes.
        """
        return pd.DataFrame([line for analysis in self.analyses for line in self._lines(analysis)])

    def _lines(self, analysis: Analysis) -> Iterator[dict[str, object]]:
        samples = analysis.frame("samples")
        for test, own in samples.groupby("test", sort=False):
            shared = {"block": analysis.block.id, "test": test}
            for protocol, frame in protocols(own).items():
                correct = statistics.correctness(frame)
                low, high = statistics.interval(correct)
                values = {"accuracy": statistics.accuracy(correct), "low": low, "high": high, "n": len(correct)}
                yield {"part": "accuracy", **shared, "protocol": protocol, **values}
            for line in reliability(own).to_dict("records"):
                yield {"part": "reliability", **shared, **line}

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        panels = grid(canvas, len(self.analyses), 2, (3.4, 2.2))
        tests = list(data["test"].unique())
        for (left, right), analysis in zip(panels, self.analyses, strict=True):
            own = data.loc[data["block"] == analysis.block.id]
            names = list(own["protocol"].dropna().unique())
            for index, test in enumerate(tests):
                look: dict[str, Any] = {"color": colour(index), "marker": marker(index)}
                scores = own.loc[(own["test"] == test) & (own["part"] == "accuracy")]
                places = [names.index(name) + 0.12 * (index - (len(tests) - 1) / 2) for name in scores["protocol"]]
                bars = [100 * (scores["accuracy"] - scores["low"]), 100 * (scores["high"] - scores["accuracy"])]
                label = self.test_title(str(test))
                left.errorbar(places, 100 * scores["accuracy"], yerr=bars, linestyle="none", label=label, **look)
                bins = own.loc[(own["test"] == test) & (own["part"] == "reliability")]
                right.plot(100 * bins["share"], 100 * bins["accuracy"], **look)
            left.set_xticks(range(len(names)), names)
            left.set_ylabel(f"{self.block_title(analysis)}\nAccuracy (%)")
            left.set_ylim(bottom=0)
            right.plot([0, 100], [0, 100], color=GREY, linewidth=0.8, linestyle="--")
            right.set_ylabel("Accuracy of the majority (%)")
        panels[-1][1].set_xlabel("Votes for the majority (%)")
        legend_below(canvas, [axes for across in panels for axes in across])

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Left: accuracy when R is the mean of its predicted distribution, one draw (mean over
        {self.study.analysis.samples} of them), or when the most frequent answer of several draws is taken; bars: 95 %
        interval over questions ({self.asked}). Right: accuracy of the majority answer of all draws by its share of the
        votes; on the dashed line the share equals the probability of being right."""
        for analysis in self.analyses:
            bins = data.loc[(data["block"] == analysis.block.id) & (data["part"] == "reliability")]
            errors = [
                f"{self.test_title(str(test))} {100 * calibration_error(own):.1f}"
                for test, own in bins.groupby("test", sort=False)
            ]
            yield f"Expected calibration error (points), {self.block_title(analysis)}: {', '.join(errors)}."
