"""Rendering of a study's tables: Markdown, LaTeX, CSV and JSON of the same frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.files import write_text
from benchmarks.markup import latex, markdown
from benchmarks.provenance import provenance, titles
from benchmarks.results import load_collected
from benchmarks.study import Study
from benchmarks.summary import summarise
from benchmarks.tables import Table
from benchmarks.tables.controls import ControlsTable
from benchmarks.tables.decoding import DecodingTable
from benchmarks.tables.main import MainTable
from benchmarks.tables.maker import Maker

MAKERS: dict[Table, type[Maker]] = {
    Table.main: MainTable,
    Table.decoding: DecodingTable,
    Table.controls: ControlsTable,
}


def render(study: Study, results: Path, table: Table = Table.main) -> list[Path]:
    """Write a table in four formats, Markdown first. Needs what ``collect`` wrote and the predictions."""
    paths = []
    for ending, text in contents(study, results, table).items():
        paths.append(results / study.name / f"table_{table}.{ending}")
        write_text(paths[-1], text)
    return paths


def contents(study: Study, results: Path, table: Table = Table.main) -> dict[str, str]:
    """A table's contents by the ending of the file's name."""
    collected, kind = load_collected(study, results), MAKERS[table]
    decodings = [name for name, spec in study.evaluation.decodings.items() if kind.shows(name, spec)]
    maker = kind(study, summarise(study, collected, results, decodings), titles(collected))
    document = maker.document(provenance(study, collected))
    content = {
        "study": study.name,
        "lines": _records(maker.frame),
        "paired_tests": _records(maker.tests),
        "legend": document.legend,
        "notes": document.notes,
        "made": document.footer,
    }
    return {
        "md": markdown(document),
        "tex": latex(document),
        "csv": maker.frame.to_csv(index=False),
        "json": json.dumps(content, indent=1, ensure_ascii=False) + "\n",
    }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Lines for JSON, which has null and no NA."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
