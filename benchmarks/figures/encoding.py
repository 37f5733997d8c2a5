"""Random Summation: which dimension of R encodes which drawn digit, and whether setting it steers the model.

This is the paper's figure on the encoding of randomness.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from benchmarks.analysis.reading import Analysis, EncodingRecord
from benchmarks.figures.drawing import NothingToDraw, grid
from benchmarks.figures.latents import LatentsFigure
from benchmarks.figures.style import GREY, SEQUENTIAL, colour, picture

PAPERS_STEERING = 100.0  # percent of steered steps that obey, in the paper's text (4.1.2)
OTHERS = 6  # number of the most active dimensions without a digit that are shown too


class EncodingFigure(LatentsFigure):
    """Left: mean of R by digit and dimension. Right: share of steps that obey a digit set by hand."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: the drawn digit in R"

    @property
    def _encoded(self) -> list[tuple[Analysis, EncodingRecord]]:
        found = [(one, one.record.encoding) for one in self.analyses if one.record.encoding]
        if not found:
            raise NothingToDraw(f"no test set of {self.study.name} is Random Summation, or no run of it encodes steps")
        return found

    def data(self) -> pd.DataFrame:
        """Return the numbers of both panels, by ``part``.

        * encoding: the mean of R by digit and dimension.
        * steering: by steered step and digit, the shares of questions whose step obeys, whose later steps follow, and
          with both.
        """
        frames = []
        for analysis, _ in self._encoded:
            block = analysis.block.id
            frames.append(analysis.frame("encoding").assign(part="encoding", block=block))
            if "steering" not in analysis.record.files:  # no digit has a dimension of its own
                continue
            steering = analysis.frame("steering")
            steering["both"] = steering["obeyed"] & steering["followed"]
            shares = steering.pivot_table(["obeyed", "followed", "both"], ["step", "digit"]).reset_index()
            frames.append(shares.assign(part="steering", block=block, n=len(steering) // max(len(shares), 1)))
        return pd.concat(frames, ignore_index=True)

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        panels = grid(canvas, len(self._encoded), 2, (3.4, 2.4))
        for (left, right), (analysis, encoded) in zip(panels, self._encoded, strict=True):
            own = data.loc[data["block"] == analysis.block.id]
            matrix = own.loc[own["part"] == "encoding"].pivot(index="digit", columns="dim", values="mean")
            dims = shown_dimensions(encoded, matrix)
            image = left.imshow(matrix[dims].to_numpy(dtype=float), cmap=SEQUENTIAL, aspect="auto")
            canvas.colorbar(image, ax=left, label="mean of R", shrink=0.9)
            left.set_xticks(range(len(dims)), list(map(str, dims)), rotation=90)
            left.set_yticks(range(10))
            left.set_ylabel(f"{self.block_title(analysis)}\nDrawn digit")
            left.set_xlabel("Dimension")
            picture(left)
            steering = own.loc[own["part"] == "steering"]
            if steering.empty:
                right.set_axis_off()
                continue
            steps = sorted(steering["step"].unique())
            width = 0.8 / len(steps)
            for at, step in enumerate(steps):
                lines = steering.loc[steering["step"] == step]
                places = lines["digit"] + width * (at - (len(steps) - 1) / 2)
                right.bar(places, 100 * lines["both"], width, color=colour(at), label=f"step {int(step)}")
            without = [digit for digit, dim in enumerate(encoded.dims) if dim is None]
            hatching: dict[str, Any] = {"facecolor": "none", "edgecolor": GREY, "hatch": "////", "linewidth": 0}
            if without:
                right.bar(without, [105] * len(without), 0.8, label="no own dimension", **hatching)
            right.set_xticks(range(10))
            right.set_xlabel("Digit set by hand")
            right.set_ylabel("Steps and all later ones right (%)")
            right.set_ylim(0, 105)
            right.legend(ncols=len(steps) + bool(without), loc="lower center", bbox_to_anchor=(0.5, 1.0))

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Left: mean of R, as training encodes it, over the validation steps that drew each digit, by
        dimension; first the digits' own dimensions, then the most active others. Dimensions are assigned to digits one
        to one; the assigned dimension is a digit's own if its mean there is above
        {self.study.analysis.active_above:g} and it is the largest of all assigned ones in most steps of that digit.
        Right: the steering test. In one step the digit's own dimension is set to that mean and all others to 0, and R
        of all other steps is drawn; the bar is the share of questions in which that step adds this digit and all later
        steps, the last sum included, follow from it ({self.asked}). Hatched: digits without a dimension of their own,
        which were not steered; where no digit has one, the right panel is left out."""
        for analysis, encoded in self._encoded:
            own = data.loc[(data["block"] == analysis.block.id) & (data["part"] == "steering")]
            agreement = [share for share in encoded.agreement if share is not None]
            yield f"""{self.block_title(analysis)}: {len(encoded.own)} of 10 digits have a dimension of their own; the
            assigned one is the largest in {100 * np.mean(agreement):.1f} % of a digit's steps (mean over digits; the
            lowest: {100 * min(agreement):.1f} %). {steered(own)} The paper: {PAPERS_STEERING:g} %.
            {told(encoded)}"""


def told(encoded: EncodingRecord) -> str:
    """Say how much of R's variance the drawn digit explains, and how much the level of the numbers that result."""
    shares = {what: [share for share in found if share is not None] for what, found in encoded.explained.items()}
    if not all(shares.values()) or not shares:
        return ""
    digit, level = (" and ".join(f"{100 * share:.0f}" for share in shares[what]) for what in ("digit", "level"))
    return f"""Of R's variance the drawn digit explains {digit} % (by step), and the level, the rounded mean of the
        numbers that the step writes, {level} %."""


def steered(shares: pd.DataFrame) -> str:
    """Describe the result of the steering test."""
    if shares.empty:
        return "Steering accuracy: none, since no digit can be set by hand."
    return f"""Steering accuracy: {100 * shares["both"].mean():.1f} %, steered over {shares["digit"].nunique()} of 10
        digits (the step obeys: {100 * shares["obeyed"].mean():.1f} %; later steps follow:
        {100 * shares["followed"].mean():.1f} %)."""


def shown_dimensions(encoded: EncodingRecord, matrix: pd.DataFrame) -> list[int]:
    """Return the digits' dimensions in order, then the most active of the others."""
    own = encoded.own
    rest = matrix.drop(columns=own).max().fillna(-np.inf).sort_values(ascending=False)
    return own + [int(dim) for dim in rest.index[:OTHERS]]
