"""Outputs before and after dimensions of R are set by hand, with differences in colour (the paper's case study)."""

from __future__ import annotations

import difflib
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.analysis.interventions import differences
from benchmarks.analysis.records import Analysis
from benchmarks.figures.base import GREY, NothingToDraw, colour
from benchmarks.figures.latents import LatentsFigure

FONT = 6.5  # points
WIDE = 0.602 * FONT / 72  # width of a character of DejaVu Sans Mono in inches
HIGH = 1.5 * FONT / 72  # height of a line in inches
COLUMN, GAP = 55, 4  # characters
LONGEST = 12  # lines of an output that are shown at most

Piece = tuple[int, str, bool]  # column, text, whether it is highlighted


class CasesFigure(LatentsFigure):
    """One row per set of dimensions: a question's output as it is, and with these dimensions set by hand."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: cases of dimensions set by hand"

    def data(self) -> pd.DataFrame:
        """Return one line per block and set of dimensions, at the value that changes most outputs.

        Of all questions whose output changes, the line has the one that changes by the median amount, and their number.
        Raise :class:`NothingToDraw` if no output changes.
        """
        lines = [line for analysis in self.analyses for line in self._lines(analysis)]
        if not lines:
            raise NothingToDraw("no dimension that was set changes any output")
        return pd.DataFrame(lines)

    def _lines(self, analysis: Analysis) -> Iterator[dict[str, object]]:
        frame = analysis.frame("interventions")
        plain = frame.loc[frame["setting"] == ""].set_index(["test", "id"])
        for _, group in frame.loc[frame["setting"] != ""].groupby("dims", sort=False):
            both = plain.join(group.set_index(["test", "id"]), rsuffix="_after")
            every = both.loc[both["steps"] != both["steps_after"]]
            if not len(every):
                continue
            setting = every["setting_after"].value_counts().index[0]
            changed = every.loc[every["setting_after"] == setting]
            ratios = [_likeness(*pair) for pair in zip(changed["steps"], changed["steps_after"], strict=True)]
            case = changed.iloc[np.argsort(ratios, kind="stable")[len(ratios) // 2]]
            test, id = case.name  # type: ignore[misc]
            counts = {"changed": len(changed), "n": len(plain)}
            outputs = {"question": case["question"], "before": case["steps"], "after": case["steps_after"]}
            yield {"block": analysis.block.id, "setting": setting, "test": test, "id": id, **outputs, **counts}

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        """Draw all text in one axis whose units are characters and lines."""
        blocks = [(line, *layout(line["before"], line["after"])) for line in data.to_dict("records")]
        heads = [wrapped([(f"{line['id']}: {line['question']}", False)], 2 * COLUMN + GAP) for line, *_ in blocks]
        lines = sum(4 + len(head) + max(map(len, sides)) for (_, *sides), head in zip(blocks, heads, strict=True))
        wide, high = (2 * COLUMN + GAP) * WIDE, lines * HIGH
        canvas.set_layout_engine("none")
        canvas.set_size_inches(wide + 0.2, high + 0.2)
        axes = canvas.add_axes((0.1 / (wide + 0.2), 0.1 / (high + 0.2), wide / (wide + 0.2), high / (high + 0.2)))
        axes.axis("off")
        axes.set_xlim(0, 2 * COLUMN + GAP)
        axes.set_ylim(lines, 0)
        at = 1
        for (line, before, after), head in zip(blocks, heads, strict=True):
            heading = f"{line['block']} · {line['setting']} · {self.test_title(line['test'])}"
            axes.text(0, at, heading, fontsize=FONT + 0.5, fontweight="bold")
            write(axes, head, 0, at + 1, colour(0))
            below = at + 2 + len(head)
            for start, name in ((0, "as it is"), (COLUMN + GAP, "set by hand")):
                axes.text(start, below - 1, name, fontsize=FONT, fontstyle="italic", color=GREY)
            write(axes, before, 0, below, colour(0))
            write(axes, after, COLUMN + GAP, below, colour(1))
            at = below + max(len(before), len(after)) + 2

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Left: the output as it is, steps first and the answer last. Right: the output with the named
        dimensions of R set by hand in every step, to the value among those tried that changes most outputs; differences
        in colour. Of the questions asked ({self.asked}), the one is shown whose output changes by the median amount of
        all outputs that change."""
        for line in data.to_dict("records"):
            yield f"{line['block']}, {line['setting']}: {line['changed']} of {line['n']} outputs change."


def layout(before: str, after: str) -> tuple[list[list[Piece]], list[list[Piece]]]:
    """Split two texts into lines of pieces, at line ends and at the width of a column, with differences marked."""
    parts = differences(before, after)
    sides = ([(old, not shared) for shared, old, _ in parts], [(new, not shared) for shared, _, new in parts])
    return wrapped(sides[0]), wrapped(sides[1])


def wrapped(parts: list[tuple[str, bool]], width: int = COLUMN) -> list[list[Piece]]:
    """Wrap marked and unmarked text into lines of pieces, at spaces where possible; longer texts are truncated."""
    marks = [marked for text, marked in parts for _ in text]
    lines: list[list[Piece]] = []
    start = 0
    for paragraph in "".join(text for text, _ in parts).split("\n"):
        # Each character has its mark, so a tab must stay one character
        shape = textwrap.TextWrapper(width, expand_tabs=False, drop_whitespace=False, break_on_hyphens=False)
        for line in shape.wrap(paragraph) or [""]:
            lines.append(_pieces(line, marks[start : start + len(line)]))
            start += len(line)
        start += 1  # the line's end
    return lines if len(lines) <= LONGEST else [*lines[: LONGEST - 1], [(0, "...", False)]]


def _pieces(line: str, marks: list[bool]) -> list[Piece]:
    """Split a line into stretches that are either marked or unmarked."""
    pieces = []
    for marked, group in itertools.groupby(range(len(line)), key=marks.__getitem__):
        places = list(group)
        pieces.append((places[0], line[places[0] : places[-1] + 1], marked))
    return pieces


def write(axes: Axes, lines: list[list[Piece]], start: int, first: int, highlight: str) -> None:
    """Write lines of pieces, starting at a column and a line."""
    for number, pieces in enumerate(lines, first):
        for column, text, marked in pieces:
            look: dict[str, Any] = {"color": highlight, "fontweight": "bold"} if marked else {"color": "black"}
            axes.text(
                start + column, number, text.replace("$", r"\$"), family="DejaVu Sans Mono", fontsize=FONT, **look
            )


def _likeness(before: str, after: str) -> float:
    return difflib.SequenceMatcher(None, before, after, autojunk=False).ratio()
