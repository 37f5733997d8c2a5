"""What papers take from a results folder: all tables and figures as one HTML file that needs no other file and no
network, a page of each study's questions, and the BibTeX entries of a study."""

from __future__ import annotations

import base64
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from benchmarks.archive import ARCHIVE, studies_of, unpacked
from benchmarks.data import get_dataset
from benchmarks.environment import environment, with_hardware
from benchmarks.files import BrokenRecord, read_text, sha256, write_text
from benchmarks.report.interactive import bundle, packed
from benchmarks.report.questions import FRAME, questions
from benchmarks.studies.paths import COLLECTED
from benchmarks.studies.specs import Figure, Table
from benchmarks.studies.study import Study
from benchmarks.tables.markup import MADE
from methods.registry import get_method

REPORT, QUESTIONS = "report.html", "questions.html"  # pages, and the templates in this package
SENTENCE = 60  # characters of a table cell; a longer one is broken into lines
REFERENCE = "reference"  # folder of committed results, which are not a study of this folder
FACTS = ("commit", "python", "torch", "transformers", "device", "cpu")


@dataclass(frozen=True)
class Part:
    """A table or figure: its anchor, its title, and as HTML its content and what made it. ``short``: its title in the
    table of contents, below the name of its study."""

    anchor: str
    title: str
    short: str
    body: str
    made: str


@dataclass(frozen=True)
class Section:
    """One study: its overview figure if it has one, its tables, and its other figures."""

    name: str
    parts: list[Part]
    tables: int  # among the parts
    questions: str | None  # the path of the page of its questions from that of the report
    digest: str  # SHA-256 of the collected records


def report(folder: Path) -> Path:
    """Write ``report.html`` into a folder of several studies' results, or into the folder of one study, and
    ``questions.html`` into the folder of each study whose answers are there. Return the report's path."""
    folder = folder.resolve()
    found = [section for study in _studies(folder) if (section := _section(study, folder))]
    sections = sorted(found, key=lambda section: -section.tables)  # the study with most tables comes first
    if not sections:
        raise BrokenRecord(f"{folder} holds no table and no figure: render some first (marcos-bench table, figure)")
    made = with_hardware(environment())
    facts = {name: made[name] for name in FACTS if made.get(name)}
    path = folder / REPORT
    _write(path, sections=sections, facts=facts, date=made["finished"], made=MADE)
    return path


def _write(path: Path, **content: object) -> None:
    """Write a page from the template of its name."""
    loader = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(path.name)
    write_text(path, template.render(bundle=bundle(), **content))


def _questions(study: Path) -> bool:
    """Write the page of a study's questions, if there is an answer to any. Return whether there is."""
    with unpacked(study.parent, [study.name]) as results:
        answered = (results / study.name / FRAME).is_file()
        others = studies_of(results / study.name) - {study.name} if answered else set[str]()
    with unpacked(study.parent, [study.name, *sorted(others)]) as results:
        blocks = questions(results, study.name)
    if blocks:
        _write(study / QUESTIONS, study=study.name, data=packed(json.dumps(blocks, ensure_ascii=False).encode()))
    return bool(blocks)


def _studies(folder: Path) -> list[Path]:
    if _records(folder).is_file():
        return [folder]
    return sorted(path for path in folder.glob("*") if _records(path).is_file() and path.name != REFERENCE)


def _records(study: Path) -> Path:
    """Return the file from which a study's tables were rendered, packed or not."""
    return study / (ARCHIVE if (study / ARCHIVE).is_file() else COLLECTED)


def _section(study: Path, folder: Path) -> Section | None:
    overview = study / f"figures/{Figure.overview}.md"
    tables = [path for table in Table if (path := study / f"table_{table}.md").is_file()]
    figures = [path for figure in Figure if (path := study / f"figures/{figure}.md").is_file() and path != overview]
    paths = [*([overview] if overview.is_file() else []), *tables, *figures]
    if not paths:
        return None
    asked = (study / QUESTIONS).relative_to(folder).as_posix() if _questions(study) else None
    return Section(study.name, [_part(study, path) for path in paths], len(tables), asked, sha256(_records(study)))


def _part(study: Path, path: Path) -> Part:
    text = read_text(path, "render it again (marcos-bench table, figure)")
    head, _, made = text.partition(f"## {MADE}")
    title, _, body = head.removeprefix("# ").partition("\n")
    plain = _plain(title)
    short = plain.rpartition(": ")[2]
    anchor, short = f"{study.name}-{path.stem}", short[:1].upper() + short[1:]
    return Part(anchor, plain, short, _html(body, path.parent), _html(made, path.parent))


def _plain(title: str) -> str:
    """Return a Markdown title as plain text, which the HTML template escapes again."""
    return re.sub(r"\\(.)", r"\1", title).replace("&lt;", "<")


def _html(text: str, folder: Path) -> str:
    """Convert Markdown to HTML: headings rank below those of the report, images are
    embedded, and tables scroll on their own."""
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = reader.parse(text)
    for cell, inside in itertools.pairwise(tokens):
        if cell.type == "td_open" and len(inside.content) > SENTENCE:
            cell.attrSet("class", "sentence")  # cells are not wrapped otherwise, which suits numbers but not sentences
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
        for child in token.children or ():
            if child.type == "image":
                path = folder / str(child.attrGet("src"))
                if not path.is_file():
                    raise BrokenRecord(f"{path} does not exist: draw the figure again (marcos-bench figure)")
                child.attrSet("src", f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}")
    html = reader.renderer.render(tokens, reader.options, {})
    return html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def citations(study: Study) -> list[str]:
    """Return the BibTeX entries that a study should cite, each once: its methods (including those that rows start
    from), its training data and its test sets. Generated data have no entry."""
    methods = [get_method(run.method).citation for run in study.runs.values()]
    names = [name for block in study.blocks for name in (block.data.train, *study.tests_of(block))]
    return [entry for entry in dict.fromkeys([*methods, *(get_dataset(name).card.citation for name in names)]) if entry]
