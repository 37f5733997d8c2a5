"""The report: a single file, complete, and valid HTML."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmarks.figures import render as figures
from benchmarks.files import BrokenRecord
from benchmarks.records import results
from benchmarks.report import report
from benchmarks.studies.specs import Figure
from benchmarks.tables.render import render
from fabricate import fabricate, study

VOID = {"meta", "img", "br", "link", "hr"}


class Outline(HTMLParser):
    """Collects ids, links, images and text, and checks that elements are opened and closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [str(values["id"])] if "id" in values else []
        self.links += [str(values["href"])] if "href" in values else []
        self.images += [values] if tag == "img" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    made, folder = study(), tmp_path_factory.mktemp("results")
    fabricate(made, folder)
    results.collect(made, folder)
    for table in made.tables:
        render(made, folder, table)
    for figure in (Figure.pareto, Figure.steps):
        figures.render(made, folder, figure)
    (folder / "reference/other").mkdir(parents=True)
    (folder / "reference/other/collect.json").write_text("{}", encoding="utf-8")
    return report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    assert not parser.open
    return parser


def test_sentences_in_tables_are_broken_into_lines(tmp_path: Path) -> None:
    (tmp_path / "collect.json").write_text("{}", encoding="utf-8")
    cells = ["12.5 ± 0.3", "a claim that nobody would read in one line " * 2]
    (tmp_path / "table_main.md").write_text(
        f"# A title\n\n| a | b |\n|---|---|\n| {' | '.join(cells)} |\n", encoding="utf-8"
    )
    text = report(tmp_path).read_text(encoding="utf-8")
    assert f"<td>{cells[0]}</td>" in text and f'<td class="sentence">{cells[1].strip()}</td>' in text
    assert text.count(".sentence {") == 2  # once for the screen and once for print


def test_every_link_of_the_contents_has_its_place(outline: Outline) -> None:
    assert len(outline.links) == 1 + 3 + 2  # study, tables, figures
    assert {link.removeprefix("#") for link in outline.links} == set(outline.ids)
    assert len(set(outline.ids)) == len(outline.ids)


def test_it_opens_offline(page: str, outline: Outline) -> None:
    assert len(outline.images) == 2
    for image in outline.images:
        assert str(image["src"]).startswith("data:image/png;base64,iVBOR") and image["alt"]
    assert not re.search(r'(src|href)="(?!#|data:)', page) and "@import" not in page and "url(" not in page


def test_tables_are_whole(page: str, outline: Outline) -> None:
    # Main has four grids, and the others have two each
    assert page.count("<table>") == page.count('<div class="wide">') == 8
    assert "<strong>" in page and "<sup>=</sup>" in page and "|:--" not in page
    assert "Alpha & Co 100% Acc (%)" in outline.text and "A fabricated study: decodings" in outline.text


def test_what_made_it_is_told(outline: Outline) -> None:
    assert "torch 2.13.0" in outline.text  # the version from the records, not from this process
    assert re.search(r"From the records of fake \(collect\.json,\s+sha256 [0-9a-f]{64}\)", outline.text)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match="holds no table and no figure"):
        report(tmp_path)


def test_a_lost_image_is_named(tmp_path: Path) -> None:
    made = study()
    fabricate(made, tmp_path)
    results.collect(made, tmp_path)
    figures.render(made, tmp_path, Figure.steps)
    (tmp_path / "fake/figures/steps.png").unlink()
    with pytest.raises(BrokenRecord, match=r"steps\.png does not exist: draw the figure again"):
        report(tmp_path / "fake")


def test_the_study_with_the_main_table_and_its_details_comes_first(tmp_path: Path) -> None:
    made = study()
    fabricate(made, tmp_path)
    results.collect(made, tmp_path)
    render(made, tmp_path, made.tables[0])
    shutil.copytree(tmp_path / "fake", tmp_path / "another")
    render(made, tmp_path, made.tables[1])
    page = report(tmp_path).read_text(encoding="utf-8")
    assert page.index('id="fake"') < page.index('id="another"')
