"""Outputs before and after dimensions of R are set by hand, differences in colour (the paper's case study)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.analysis.reading import Analysis
from benchmarks.analysis.steering import differences
from benchmarks.figures.drawing import NothingToDraw
from benchmarks.figures.latents import LatentsFigure
from benchmarks.figures.style import colour

FONT = 6.5  # points
WIDE = 0.602 * FONT / 72  # inches of one character of DejaVu Sans Mono
HIGH = 1.5 * FONT / 72  # inches of one line
COLUMN, GAP = 55, 4  # characters
LONGEST = 12  # lines of an output that are shown

Piece = tuple[int, str, bool]  # column, text, whether it is highlighted


class CasesFigure(LatentsFigure):
    """A row for each set of dimensions: one question's output as it is, and with the set at its largest value."""

    @property
    def title(self) -> str:
        return f"{self.study.title}: cases of dimensions set by hand"

    def data(self) -> pd.DataFrame:
        """One line per block and set of dimensions: the question whose output changes least without staying the same,
        right in both if there is one, and in how many questions the output changes."""
        lines = [line for analysis in self.analyses for line in self._lines(analysis)]
        if not lines:
            raise NothingToDraw("no dimension that was set changes any output")
        return pd.DataFrame(lines)

    def _lines(self, analysis: Analysis) -> Iterator[dict[str, object]]:
        frame = analysis.frame("interventions")
        plain = frame.loc[frame["setting"] == ""].set_index(["test", "id"])
        largest, shown = max(self.study.analysis.values), set()
        for setting, group in frame.loc[frame["value"] == largest].groupby("setting", sort=False):
            both = plain.join(group.set_index(["test", "id"]), rsuffix="_after")
            changed = both.loc[both["steps"] != both["steps_after"]]
            if not len(changed):
                continue
            right = changed.loc[changed["correct"] & changed["correct_after"].astype(bool)]
            chosen = right if len(right) else changed
            fresh = chosen.loc[[key not in shown for key in chosen.index]]
            chosen = fresh if len(fresh) else chosen
            ratios = [_likeness(*pair) for pair in zip(chosen["steps"], chosen["steps_after"], strict=True)]
            case = chosen.iloc[max(range(len(ratios)), key=ratios.__getitem__)]
            test, id = case.name  # type: ignore[misc]
            shown.add(case.name)
            counts = {"changed": len(changed), "n": len(both)}
            outputs = {"question": case["question"], "before": case["steps"], "after": case["steps_after"]}
            yield {"block": analysis.block.id, "setting": setting, "test": test, "id": id, **outputs, **counts}

    def draw(self, canvas: Canvas, data: pd.DataFrame) -> None:
        """One axis over all, whose units are characters and lines."""
        blocks = [(line, *layout(line["before"], line["after"])) for line in data.to_dict("records")]
        heads = [wrapped([(f"{line['id']}: {line['question']}", False)], 2 * COLUMN + GAP) for line, *_ in blocks]
        lines = sum(3 + len(head) + max(map(len, sides)) for (_, *sides), head in zip(blocks, heads, strict=True))
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
            below = at + 1 + len(head)
            write(axes, before, 0, below, colour(0))
            write(axes, after, COLUMN + GAP, below, colour(1))
            at = below + max(len(before), len(after)) + 2

    def caption(self, data: pd.DataFrame) -> Iterable[str]:
        yield f"""Left: what is said as it is, steps first and the answer last; right: with the named dimensions of R
        set by hand in every step; differences in colour. Of the questions asked ({self.asked}), the one is shown
        whose output changes least, among those that are right both times where there are any."""
        for line in data.to_dict("records"):
            yield f"{line['block']}, {line['setting']}: {line['changed']} of {line['n']} outputs change."


def layout(before: str, after: str) -> tuple[list[list[Piece]], list[list[Piece]]]:
    """Two texts as lines of pieces, cut at line ends and at the width of a column."""
    parts = differences(before, after)
    sides = ([(old, not shared) for shared, old, _ in parts], [(new, not shared) for shared, _, new in parts])
    return wrapped(sides[0]), wrapped(sides[1])


def wrapped(parts: list[tuple[str, bool]], width: int = COLUMN) -> list[list[Piece]]:
    """Marked and unmarked text as lines of pieces."""
    lines: list[list[Piece]] = [[]]
    at = 0
    for text, marked in parts:
        for character in text:
            if character == "\n" or at == width:
                lines.append([])
                at = 0
            if character == "\n":
                continue
            last = lines[-1]
            if last and last[-1][2] == marked:
                last[-1] = (last[-1][0], last[-1][1] + character, marked)
            else:
                last.append((at, character, marked))
            at += 1
    return lines if len(lines) <= LONGEST else [*lines[: LONGEST - 1], [(0, "...", False)]]


def write(axes: Axes, lines: list[list[Piece]], start: int, first: int, highlight: str) -> None:
    """Lines of pieces from a column and a line on."""
    for number, pieces in enumerate(lines, first):
        for column, text, marked in pieces:
            look: dict[str, Any] = {"color": highlight, "fontweight": "bold"} if marked else {"color": "black"}
            axes.text(
                start + column, number, text.replace("$", r"\$"), family="DejaVu Sans Mono", fontsize=FONT, **look
            )


def _likeness(before: str, after: str) -> float:
    return difflib.SequenceMatcher(None, before, after, autojunk=False).ratio()
