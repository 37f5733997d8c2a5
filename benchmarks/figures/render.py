"""Render a study's figures as PNG and PDF, with their numbers as CSV and a caption as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
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
from benchmarks.files import replacing, write_text
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
METADATA = {"png": {"Software": None}, "pdf": {"CreationDate": None}}  # so that the same numbers give the same bytes


def render(study: Study, results: Path, figure: Figure, mark: str = "") -> list[Path]:
    """Write a figure's four files, the caption last, and return their paths. ``mark``: a text across the picture."""
    builder = FIGURE_BUILDERS[figure](load_collected(study, results))
    data = builder.data()

    def draw(canvas: Canvas, data: pd.DataFrame) -> None:
        builder.draw(canvas, data)
        if mark:
            canvas.text(0.5, 0.5, mark, fontsize=20, color=GREY, alpha=0.5, rotation=20, ha="center", va="center")

    target = results / study.name / "figures" / figure
    return save(target, builder.title, data, draw, builder.caption(data), markdown_footer(provenance(builder.records)))


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
) -> list[Path]:
    """Draw ``data`` and write ``target`` with four endings: pictures, numbers, and the caption last. Return the
    paths."""
    paths = [target.with_suffix(f".{ending}") for ending in ("png", "pdf", "csv", "md")]
    with rc_context(SETTINGS):
        canvas = Canvas(layout="constrained")
        draw(canvas, data)
        for path in paths[:2]:
            ending = path.suffix[1:]
            with replacing(path) as temporary:
                canvas.savefig(temporary, format=ending, metadata=METADATA[ending])
                if ending == "png":
                    reduce_colours(temporary)
    write_text(paths[2], data.to_csv(index=False))
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in caption)
    write_text(paths[3], "\n\n".join([f"# {title}", f"![{title}]({target.name}.png)", text, footer]) + "\n")
    return paths
