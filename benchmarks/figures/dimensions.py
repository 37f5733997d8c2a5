"""Dimensions of R that three questions activate, and how often each is active (the paper's figure on R's values)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from benchmarks.figures.base import colour, grid
from benchmarks.figures.latents import LatentsFigure

CASES = 3


class DimensionsFigure(LatentsFigure):
    """Left: R in one step for three cases. Right: frequencies of all dimensions, the most frequent first."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: active dimensions of R"

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
            own = data.loc[data["block"] == analysis.block.id]
            for case, group in own.loc[own["part"] == "case"].groupby("case"):
                number = int(case)  # type: ignore[arg-type]
                beside = group["dim"] + 0.25 * (number - 2)  # side by side, so that no case hides another
                left.vlines(beside, 0, group["value"], color=colour(number - 1), linewidth=1.0)
                left.plot([], [], color=colour(number - 1), label=f"case {number}")
            left.axhline(self.study.analysis.active_above, color="black", linewidth=0.6, linestyle=":")
            left.set_ylabel(f"{self.block_title(analysis)}\nR in step {own['step'].max():.0f}")
            left.legend(ncols=CASES, loc="upper center", bbox_to_anchor=(0.5, 1.17))
            if not analysis.record.active:
                left.text(0.5, 0.5, "no dimension is ever active", transform=left.transAxes, ha="center")
            frequency = own.loc[own["part"] == "frequency"]
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
    """Return the first step in which any dimension is active, and the indices of its first samples with an active one.

    If no dimension is ever active, return step 1 and its first samples. ``steps`` is (N,), ``active`` (N, D).
    """
    any_active = active.any(axis=1)
    step = int(min(steps[any_active], default=1))
    return step, np.flatnonzero((steps == step) & (any_active | ~any_active.any()))[:CASES]
