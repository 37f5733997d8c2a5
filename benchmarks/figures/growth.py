"""The figure of a sweep: seconds and memory of a training step and of an answer against sizes, for all methods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullLocator

from benchmarks.figures.base import colour_order, grid, legend_below, look_of
from benchmarks.figures.render import save
from benchmarks.records.provenance import measured_on
from benchmarks.tables.markup import markdown_footer
from methods.registry import available

LABELS = {
    "batch": "Batch",
    "question": "Question (tokens)",
    "thoughts": "Thoughts",
    "width": "Width (of the study's)",
}
COSTS = {
    "step_seconds": ("Step (s)", 1.0),
    "step_bytes": ("Step (MB)", 1e6),
    "answer_seconds": ("Answers (s)", 1.0),
    "answer_bytes": ("Answers (MB)", 1e6),
}


def render_growth(record: dict[str, Any], folder: Path) -> list[Path]:
    """Write the figure of a sweep's record, its numbers and a caption into a folder, and return their paths."""
    title, footer = f"Growth of time and memory, {record['study']}", measured_on([record["environment"]])
    return save(folder / "growth", title, frame(record), draw, caption(record), markdown_footer(footer))


def frame(record: dict[str, Any]) -> pd.DataFrame:
    """Return one line per axis, method and size on that axis, with the costs there (none: it did not fit)."""
    lines = []
    for axis in LABELS:
        others = [other for other in LABELS if other != axis]
        for point in record["points"]:
            if point[axis] is not None and all(point[other] == record["base"][other] for other in others):
                costs = {cost: point[cost] for cost in COSTS}
                lines.append({"axis": axis, "method": point["method"], "size": point[axis], **costs})
    return pd.DataFrame(lines).sort_values(["axis", "method", "size"], kind="stable").reset_index(drop=True)


def draw(canvas: Canvas, data: pd.DataFrame) -> None:
    """Draw one column of panels per axis and one row per cost, all logarithmic."""
    order = colour_order()
    panels = grid(canvas, len(COSTS), len(LABELS), (1.75, 1.4), sharex="col", sharey="row")
    for across, (cost, (label, unit)) in zip(panels, COSTS.items(), strict=True):
        for axes, axis in zip(across, LABELS, strict=True):
            own = data.loc[data["axis"] == axis]
            for method, line in own.groupby("method"):
                title, look = available()[str(method)].title, look_of(order[str(method)])
                axes.plot(line["size"], line[cost].astype(float) / unit, label=title, markersize=3, **look)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            sizes = sorted(set(own["size"]))
            axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
            axes.xaxis.set_minor_locator(NullLocator())
        across[0].set_ylabel(label)
    for axes, axis in zip(panels[-1], LABELS, strict=True):
        axes.set_xlabel(LABELS[axis])
    legend_below(canvas)


def caption(record: dict[str, Any]) -> Iterator[str]:
    base, example, known = record["base"], record["example"], available()
    counted = {known[point["method"]].title: known[point["method"]].thoughts_option for point in record["points"]}
    options = ", ".join(f"{title}: `{option}`" for title, option in counted.items() if option)
    widths = ", ".join(f"{times} is {width}" for times, width in record["widths"].items())
    yield f"""Seconds and peak memory of one optimizer step on a batch and of the answers to a batch, for every method;
    one size departs from the base of {base["batch"]} questions of {base["question"]} tokens, the study's width and the
    options of its rows in the block {record["block"]} (defaults where it has none). Thoughts are counted by an option
    of the method ({options}); methods without one are left out there. Width: {widths}; feed-forward layers grow alike,
    {record["layers"]} layers, in {record["precision"]}."""
    yield f"""Questions are followed by {example["steps"]} steps of {example["step_tokens"]} tokens and an answer of
    {example["answer_tokens"]}; all are drawn, and so are the weights, so that answers are forced to the lengths of the
    gold ones. A step is one of the last stage of training that reads examples, of one process, without compilation or
    recomputation: forward and backward pass, clipping and AdamW, on a batch that is collated already. Seconds are
    medians of {record["repeats"]} repeats after a warm-up. Memory is the most bytes of tensors at one time, weights and
    AdamW's states included: by the allocator on a GPU, and by PyTorch's profiler on a CPU."""
    if record["left_out"]:
        yield f"Left out, as memory was full: {'; '.join(record['left_out'])}."
