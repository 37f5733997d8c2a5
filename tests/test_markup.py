"""Documents as Markdown and LaTeX."""

from __future__ import annotations

from benchmarks.tables.markup import Cell, Column, Document, Grid, Line, latex, markdown


def test_special_characters_are_escaped() -> None:
    grid = Grid("c", (Column("50 % & more"),), (("s_1", (Line(Cell("a|b*"), (Cell("<1 ± {2}^~\\"),)),)),))
    document = Document("T", (grid,), footer={"x#": "$y$"})
    assert r"a\|b\*" in markdown(document) and "&lt;1" in markdown(document)
    text = latex(document)
    for part in (r"50 \% \& more", r"s\_1", r"\textless{}1 $\pm$ \{2\}\textasciicircum{}", r"x\#", r"\$y\$"):
        assert part in text


def test_a_note_stands_once_under_the_first_table_that_refers_to_it() -> None:
    first, second, third = (
        Grid(f"table {number}", (Column("n"),), (("", (Line(Cell("row", mark=title), (Cell("1", mark=mark),)),)),))
        for number, title, mark in ((1, "2", ""), (2, "2", "= 1"), (3, "", "1"))
    )
    text = markdown(Document("T", (first, second, third), legend=("a legend",), notes=("one", "two")))
    assert text.count("> one  ") == text.count("> two  ") == 1
    places = [text.index(part) for part in ("> two  ", "* a legend", "## table 2", "> one  ", "## table 3")]
    assert places == sorted(places)
