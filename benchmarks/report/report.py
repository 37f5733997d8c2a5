"""What papers take from a results folder: all tables and figures as one HTML file that needs no other file and no
network, a page of each study's questions, and the BibTeX entries of a study."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from benchmarks.archive import ARCHIVE, unpacked
from benchmarks.data import get_dataset
from benchmarks.environment import environment, with_hardware
from benchmarks.files import BrokenRecord, sha256, write_text
from benchmarks.report.interactive import bundle, packed
from benchmarks.report.questions import questions
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
    """The tables and figures of one study. ``first``: the figure that the report begins with, if the study has it."""

    name: str
    first: tuple[Part, ...]
    tables: tuple[Part, ...]
    figures: tuple[Part, ...]
    questions: str | None  # the path of the page of its questions from that of the report
    digest: str  # SHA-256 of the collected records

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.first + self.tables + self.figures


def report(folder: Path) -> Path:
    """Write ``report.html`` into a folder of several studies' results, or into the folder of one study, and
    ``questions.html`` into the folder of each study whose answers are there. Return the report's path."""
    found = [section for study in _studies(folder) if (section := _section(study, folder))]
    sections = sorted(found, key=lambda section: -len(section.tables))  # the study with most tables comes first
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
    tables = tuple(_part(study, study / f"table_{table}.md") for table in _there(study, "table_{}.md", Table))
    found = {name: _part(study, study / f"figures/{name}.md") for name in _there(study, "figures/{}.md", Figure)}
    first = tuple(part for name, part in found.items() if name == Figure.overview)
    figures = tuple(part for name, part in found.items() if name != Figure.overview)
    if not tables and not found:
        return None
    asked = (study / QUESTIONS).relative_to(folder).as_posix() if _questions(study) else None
    return Section(study.name, first, tables, figures, asked, sha256(_records(study)))


def _there(study: Path, pattern: str, names: type[Table] | type[Figure]) -> Iterator[str]:
    """Return the names for which there is a file, in the order of the enumeration."""
    return (str(name) for name in names if (study / pattern.format(name)).is_file())


def _part(study: Path, path: Path) -> Part:
    text = path.read_text(encoding="utf-8")
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
