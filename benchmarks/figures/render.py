"""Render a study's figures as PNG and PDF, with their numbers as CSV and a caption as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context, rcParamsDefault
from matplotlib.figure import Figure as Canvas
from PIL.Image import Dither, Quantize
from PIL.Image import open as open_image

from benchmarks.figures.accuracy import (
    CurvesFigure,
    LatentsCurveFigure,
    OverviewFigure,
    ParetoFigure,
    StepsFigure,
    SweepsFigure,
)
from benchmarks.figures.base import GREY, SETTINGS, FigureBuilder
from benchmarks.figures.copied import CopiedFigure
from benchmarks.figures.latents import (
    CalibrationFigure,
    DimensionsFigure,
    DrawsFigure,
    EncodingFigure,
    InterventionFigure,
)
from benchmarks.files import replacing, write_texts
from benchmarks.records.provenance import provenance
from benchmarks.records.results import load_collected
from benchmarks.studies.specs import Figure
from benchmarks.studies.study import Study
from benchmarks.tables.markup import markdown_footer

FIGURE_BUILDERS: dict[Figure, type[FigureBuilder]] = {
    Figure.overview: OverviewFigure,
    Figure.pareto: ParetoFigure,
    Figure.steps: StepsFigure,
    Figure.latents_curve: LatentsCurveFigure,
    Figure.dimensions: DimensionsFigure,
    Figure.intervention: InterventionFigure,
    Figure.encoding: EncodingFigure,
    Figure.draws: DrawsFigure,
    Figure.copied: CopiedFigure,
    Figure.calibration: CalibrationFigure,
    Figure.curves: CurvesFigure,
    Figure.sweeps: SweepsFigure,
}
# Figures are the same with any matplotlibrc
DEFAULTS: dict[Any, Any] = {name: value for name, value in rcParamsDefault.items() if name != "backend"}
METADATA = {"png": {"Software": None}, "pdf": {"CreationDate": None}}  # so that the same numbers give the same bytes


def render(study: Study, results: Path, figure: Figure, mark: str = "") -> list[Path]:
    """Write a figure's four files, the caption last, and return their paths. ``mark``: a text across the picture."""
    builder = FIGURE_BUILDERS[figure](load_collected(study, results))
    data = builder.data()
    target, footer = results / study.name / "figures" / figure, markdown_footer(provenance(builder.records))
    return save(target, builder.title, data, builder.draw, builder.caption(data), footer, mark)


def reduce_colours(path: Path) -> None:
    """Write a PNG again with a palette of 256 colours, which looks the same and takes a third of the space."""
    with open_image(path) as image:
        resolution = image.info["dpi"]
        reduced = image.convert("RGB").quantize(256, Quantize.MEDIANCUT, dither=Dither.NONE)
    reduced.save(path, format="PNG", optimize=True, dpi=resolution)


def save(
    target: Path,
    title: str,
    data: pd.DataFrame,
    draw: Callable[[Canvas, pd.DataFrame], None],
    caption: Iterable[str],
    footer: str,
    mark: str = "",
) -> list[Path]:
    """Draw ``data`` and write ``target`` with four endings: pictures, numbers, and the caption last. Return the
    paths."""
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in caption)
    page = "\n\n".join([f"# {title}", f"![{title}]({target.name}.png)", text, footer]) + "\n"
    with rc_context(DEFAULTS | SETTINGS):
        canvas = Canvas(layout="constrained")
        draw(canvas, data)
        if mark:
            canvas.text(0.5, 0.5, mark, fontsize=20, color=GREY, alpha=0.5, rotation=20, ha="center", va="center")
        pictures = [target.with_suffix(f".{ending}") for ending in METADATA]
        for path, (ending, metadata) in zip(pictures, METADATA.items(), strict=True):
            with replacing(path) as temporary:
                canvas.savefig(temporary, format=ending, metadata=metadata)
                if ending == "png":
                    reduce_colours(temporary)
    texts = {f"{target.name}.csv": data.to_csv(index=False), f"{target.name}.md": page}
    return pictures + write_texts(target.parent, texts)
