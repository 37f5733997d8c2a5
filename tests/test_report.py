"""The report: a single file, complete, and valid HTML."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.data import get_dataset
from benchmarks.data.records import digest
from benchmarks.figures import render as figures
from benchmarks.files import BrokenRecord, read_json, write_json, write_parquet
from benchmarks.records import results
from benchmarks.report.questions import _texts, questions
from benchmarks.report.report import report
from benchmarks.studies.specs import Figure, Table
from benchmarks.tables.render import render
from fabricate import collected, fabricate, study
from methods.errors import InputError

LIBRARY = {"library-js", "library-css"}
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
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
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, folder = study(), tmp_path_factory.mktemp("results")
    collected(made, folder)
    for table in made.tables:
        render(made, folder, table)
    for figure in (Figure.pareto, Figure.overview, Figure.steps):
        figures.render(made, folder, figure)
    (folder / "reference/other").mkdir(parents=True)
    (folder / "reference/other/collect.json").write_text("{}", encoding="utf-8")
    return report(folder)


@pytest.fixture(scope="module")
def page(path: Path) -> str:
    return path.read_text(encoding="utf-8")


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
    assert not (tmp_path / "questions.html").exists()


def test_every_link_of_the_contents_has_its_place(outline: Outline) -> None:
    assert outline.links.pop(1) == "fake/questions.html"
    assert len(outline.links) == 1 + 3 + 3  # study, tables, figures
    assert {link.removeprefix("#") for link in outline.links} == set(outline.ids) - LIBRARY
    assert len(set(outline.ids)) == len(outline.ids)
    assert outline.links[1] == "#fake-overview", "the image that says it all comes first"


def test_it_opens_offline(path: Path, page: str, outline: Outline) -> None:
    assert len(outline.images) == 3
    for image in outline.images:
        assert str(image["src"]).startswith("data:image/png;base64,iVBOR") and image["alt"]
    for text in (page, (path.parent / "fake/questions.html").read_text(encoding="utf-8")):
        assert not re.search(r'(src|href)="(?!#|data:|fake/questions\.html")', text)
        assert not any(word in text for word in ("@import", "url(", "http://", "https://"))


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
    collected(made, tmp_path)
    figures.render(made, tmp_path, Figure.steps)
    (tmp_path / "fake/figures/steps.png").unlink()
    with pytest.raises(BrokenRecord, match=r"steps\.png does not exist: draw the figure again"):
        report(tmp_path / "fake")


def test_the_study_with_the_main_table_and_its_details_comes_first(tmp_path: Path) -> None:
    made = study()
    collected(made, tmp_path)
    render(made, tmp_path, made.tables[0])
    shutil.copytree(tmp_path / "fake", tmp_path / "another")
    render(made, tmp_path, made.tables[1])
    page = report(tmp_path).read_text(encoding="utf-8")
    assert page.index('id="fake"') < page.index('id="another"')


def blocks_of(page: Path) -> list[dict[str, Any]]:
    (held,) = re.findall(r'id="data">([^<]*)<', page.read_text(encoding="utf-8"))
    return json.loads(gzip.decompress(base64.b64decode(held)))


def test_the_page_of_questions_has_all_answers_of_the_first_seeds(path: Path) -> None:
    blocks = blocks_of(path.parent / "fake/questions.html")
    assert [block["name"] for block in blocks] == ["text", "equation"]
    assert blocks[0]["rows"] == ["CoT-SFT", "MarCos", "w/o R", "Gold answers"]
    answers = path.parent / "fake/runs/text/marcos/s0/predictions/default.parquet"
    frame = pd.read_parquet(answers).query("seed == 0")
    lines = blocks[0]["lines"]
    assert [line["answers"][1] for line in lines] == frame["text"].tolist()
    assert [line["right"][1] for line in lines] == frame["correct"].tolist()
    assert {(line["test"], line["steps"], line["text"], line["gold"]) for line in lines} == {
        ("Alpha & Co 100%", 2, "", "7"),
        ("Beta_set", 2, "", "7"),
    }


def test_questions_are_generated_again_if_they_come_out_the_same(tmp_path: Path) -> None:
    test = "embedded_in_domain"
    made = study(evaluation={"tests": [test]}, rows=[{"id": "cot", "method": "cot_sft"}], seeds=[0, 1])
    fabricate(made, tmp_path, {})
    rows = get_dataset(test).rows("test")
    for block, digest_of in (("text", digest(rows)), ("equation", "another")):
        record = tmp_path / f"fake/data/{block}/done.json"
        write_json(record, read_json(record) | {"digests": {f"{test}/test": digest_of}})
        run = tmp_path / f"fake/runs/{block}/cot/s0"
        answers = pd.read_parquet(run / "predictions/default.parquet")
        named = answers.assign(id=[f"{test}-test-{row.key}" for row in rows[: len(answers)]], n_steps=None)
        written = write_parquet(run / "predictions/default.parquet", named)
        evaluated = read_json(run / "evaluate.json")
        write_json(run / "evaluate.json", evaluated | {"predictions": {"default": written}})
    results.collect(made, tmp_path)
    (same, other) = (block["lines"] for block in questions(tmp_path, "fake"))
    assert [line["text"] for line in same] == [row.question for row in rows[: len(same)]]
    assert {line["text"] for line in other} == {""} and {line["steps"] for line in other} == {None}


def test_questions_that_are_not_at_hand_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated set may be derived from a published one."""

    def absent(_: str) -> None:
        raise InputError("cannot read openai/gsm8k")

    monkeypatch.setattr("benchmarks.report.questions.get_dataset", absent)
    assert _texts("gsm8k_200", {}, tmp_path) == {}


def test_a_table_that_an_editor_saved_in_another_encoding_is_named(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path.parent, tmp_path / "results")
    table = next((tmp_path / "results").rglob("table_*.md"))
    table.write_bytes(table.read_bytes() + "±".encode("cp1252"))
    with pytest.raises(InputError, match=f"{table}, line .*: not UTF-8 .*; render it again"):
        report(tmp_path / "results")


def test_rows_of_one_title_are_all_there(tmp_path: Path) -> None:
    """As ablations of two rows may be called."""
    titled = {"method": "cot_sft", "title": "- w/o R"}
    collected(study(rows=[{"id": "cot", **titled}, {"id": "oracle", **titled}]), tmp_path)
    block, *_ = questions(tmp_path, "fake")
    assert block["rows"] == ["w/o R", "w/o R"] and all(len(line["answers"]) == 2 for line in block["lines"])


def test_a_row_whose_first_training_is_not_at_hand_has_the_answers_of_the_next(tmp_path: Path) -> None:
    collected(study(rows=[{"id": "cot", "method": "cot_sft"}], seeds=[0, 1]), tmp_path)
    shutil.rmtree(tmp_path / "fake/runs/text/cot/s0")
    assert [block["name"] for block in questions(tmp_path, "fake")] == ["text", "equation"]


@pytest.mark.parametrize(("name", "content"), [("collect.json", "{}"), ("frame.csv", ""), ("frame.csv", "a,b\n1,2\n")])
def test_what_is_no_collection_is_named(name: str, content: str, tmp_path: Path) -> None:
    collected(study(), tmp_path)
    (tmp_path / "fake" / name).write_text(content, encoding="utf-8")
    with pytest.raises(BrokenRecord, match=f"{name} is (no|broken) .*: run `marcos-bench collect` again"):
        questions(tmp_path, "fake")


def test_text_of_models_is_no_html(tmp_path: Path) -> None:
    """What a model wrote is data, whatever it is, and ends no script."""
    made = study(rows=[{"id": "cot", "method": "cot_sft"}])
    fabricate(made, tmp_path)
    run = tmp_path / "fake/runs/text/cot/s0"
    answers = pd.read_parquet(run / "predictions/default.parquet").assign(text="</script><b>7</b>")
    written = write_parquet(run / "predictions/default.parquet", answers)
    write_json(run / "evaluate.json", read_json(run / "evaluate.json") | {"predictions": {"default": written}})
    results.collect(made, tmp_path)
    render(made, tmp_path, Table.main)
    report(tmp_path)
    assert "<b>" not in (tmp_path / "fake/questions.html").read_text(encoding="utf-8")
    if CHROMIUM:
        assert "&lt;b&gt;7" in displayed(tmp_path / "fake/questions.html")


def displayed(page: Path) -> str:
    """Return what a browser makes of a page."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, encoding="utf-8", timeout=300, check=True
    )
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_makes_tables_that_sort_and_filter(path: Path) -> None:
    shown = displayed(path)
    assert shown.count('type="search"') == shown.count('class="dt-layout-row dt-layout-table wide"') == 8
    assert len(re.findall(r'<tr class="dtrg-group[^>]*><th[^>]*>Training data: text', shown)) >= 1
    asked = displayed(path.parent / "fake/questions.html")
    assert (
        "1 to 25 of 400 questions" in asked and asked.count("<select") == 4 + 3 + 1
    )  # rows; block, test, steps; pages
    assert len(re.findall(r'<td class="(?:right|wrong)', asked)) == 25 * 4
