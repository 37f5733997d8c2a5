"""Render documents of tables and notes as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tabulate import tabulate

DASH = "\N{EN DASH}"  # in place of a missing number
MADE = "How it was made"  # heading of the provenance
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        DASH: "--",
        "·": r"$\cdot$",
        "Δ": r"$\Delta$",
    }
)
MARKDOWN = str.maketrans({"|": r"\|", "<": "&lt;", "*": r"\*"})


@dataclass(frozen=True)
class Cell:
    """``text``, optionally bold, followed by ``tail`` (such as a spread) and by ``mark`` as a superscript."""

    text: str = DASH
    tail: str = ""
    bold: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Line:
    title: Cell
    cells: Sequence[Cell]
    indent: bool = False


Section = tuple[str, Sequence[Line]]  # a heading and the lines below it


@dataclass(frozen=True)
class Column:
    """A column. Adjacent columns with the same ``group`` share a heading. ``text``: it has sentences, not numbers."""

    name: str
    group: str = ""
    text: bool = False


@dataclass(frozen=True)
class Grid:
    """A table. The first column has the heading ``head`` and the lines' titles. Each section has its own heading."""

    caption: str
    columns: Sequence[Column]
    sections: Sequence[Section]
    head: str = "Model"


@dataclass(frozen=True)
class Document:
    """Grids with a title, a legend, notes and a footer. Notes are numbered from 1, and marks of cells refer to them."""

    title: str
    grids: Sequence[Grid]
    legend: Sequence[str] = ()
    notes: Sequence[str] = ()
    footer: dict[str, str] = field(default_factory=dict)


def markdown(document: Document) -> str:
    """Render a document as GitHub Markdown: the title, the first grid, the legend, further grids, the footer. Each note
    is below the first grid that refers to it."""
    first, *others = document.grids
    printed: set[str] = set()
    parts = [f"# {_md(document.title)}", _markdown_grid(first), _markdown_notes(document, first, printed)]
    parts += ["\n".join(f"* {_md(text)}" for text in document.legend)]
    for grid in others:
        parts += [f"## {_md(grid.caption)}", _markdown_grid(grid), _markdown_notes(document, grid, printed)]
    if document.footer:
        parts.append(markdown_footer(document.footer))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_notes(document: Document, grid: Grid, printed: set[str]) -> str:
    """Return the notes that a grid refers to, without those in ``printed``, and add the grid's marks to ``printed``."""
    lines = [line for _, section in grid.sections for line in section]
    marks = {mark for line in lines for one in (line.title, *line.cells) for mark in one.mark.split()} - printed
    printed |= marks
    notes = [(str(number), note) for number, note in enumerate(document.notes, 1)]
    return "\n".join(f"<sup>{number}</sup> {_md(note)}  " for number, note in notes if number in marks)


def markdown_footer(footer: Mapping[str, str]) -> str:
    """Render the provenance of the numbers under its own heading."""
    return "\n\n".join([f"## {MADE}", "\n".join(f"* **{_md(k)}:** {_md(v)}" for k, v in footer.items())])


def _md(text: str) -> str:
    return text.translate(MARKDOWN)


def _md_cell(cell: Cell) -> str:
    text = f"**{_md(cell.text)}**" if cell.bold else _md(cell.text)
    return text + _md(cell.tail) + (f"<sup>{cell.mark}</sup>" if cell.mark else "")


def _markdown_grid(grid: Grid) -> str:
    headers = [_md(grid.head), *(_md(f"{column.group} {column.name}".strip()) for column in grid.columns)]
    rows: list[list[str]] = []
    for heading, lines in grid.sections:
        rows.append([f"***{_md(heading)}***", *[""] * len(grid.columns)])
        for line in lines:
            title = ("&nbsp;&nbsp;&nbsp;" if line.indent else "") + _md_cell(line.title)
            rows.append([title, *(_md_cell(cell) for cell in line.cells)])
    align = ["left", *("left" if column.text else "right" for column in grid.columns)]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align)


def latex(document: Document) -> str:
    """Render a document as LaTeX floats for ``\\input``. The first line names the packages that they need."""
    parts = ["% needs \\usepackage{booktabs}"]
    below = [f"\\textsuperscript{{{i}}} {_tex(note)}" for i, note in enumerate(document.notes, 1)]
    below += [_tex(text) for text in document.legend]
    below += [f"\\textbf{{{_tex(k)}:}} {_tex(v)}" for k, v in document.footer.items()]
    for i, grid in enumerate(document.grids):
        caption = document.title if i == 0 else grid.caption
        parts.append(_latex_grid(grid, caption, below if i == 0 else []))
    return "\n\n".join(parts) + "\n"


def _tex(text: str) -> str:
    return text.translate(LATEX)


def _tex_cell(cell: Cell) -> str:
    text = f"\\textbf{{{_tex(cell.text)}}}" if cell.bold else _tex(cell.text)
    return text + _tex(cell.tail) + (f"\\textsuperscript{{{_tex(cell.mark)}}}" if cell.mark else "")


def _latex_grid(grid: Grid, caption: str, below: Sequence[str]) -> str:
    width = 1 + len(grid.columns)
    lines = ["\\begin{table*}", "\\centering", "\\footnotesize", "\\setlength{\\tabcolsep}{3pt}"]
    wide = "p{2.2cm}"  # so that sentences wrap
    columns = "".join(wide if column.text else "r" for column in grid.columns)
    first = wide if any(column.text for column in grid.columns) else "l"
    lines += [f"\\caption{{{_tex(caption)}}}", f"\\begin{{tabular}}{{{first}{columns}}}", "\\toprule"]
    lines += _latex_headings(grid.head, grid.columns)
    for heading, rows in grid.sections:
        lines += ["\\midrule", f"\\multicolumn{{{width}}}{{c}}{{\\textit{{{_tex(heading)}}}}} \\\\", "\\midrule"]
        for row in rows:
            title = ("\\quad " if row.indent else "") + _tex_cell(row.title)
            lines.append(" & ".join([title, *(_tex_cell(cell) for cell in row.cells)]) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\raggedright\\scriptsize {text}" for text in below]
    return "\n".join([*lines, "\\end{table*}"])


def _latex_headings(head: str, columns: Sequence[Column]) -> list[str]:
    spans: list[tuple[str, int, int]] = []  # group, first and last column, counted from 1, the titles' column included
    for group, members in groupby(enumerate(columns, 2), key=lambda pair: pair[1].group):
        numbers = [number for number, _ in members]
        spans.append((group, numbers[0], numbers[-1]))
    names = " & ".join([_tex(head), *(_tex(column.name) for column in columns)]) + r" \\"
    if not any(group for group, _, _ in spans):
        return [names]
    top = " & ".join(["", *(f"\\multicolumn{{{b - a + 1}}}{{c}}{{{_tex(group)}}}" for group, a, b in spans)]) + r" \\"
    rules = " ".join(f"\\cmidrule(lr){{{a}-{b}}}" for group, a, b in spans if group)
    return [top, rules, names]
