"""Render a study's tables as Markdown, LaTeX, CSV and JSON of the same frame."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.files import write_text
from benchmarks.records.provenance import in_short, provenance, titles
from benchmarks.records.results import Collected, load_collected
from benchmarks.records.summary import Summary, summarise
from benchmarks.studies.paths import COLLECTED
from benchmarks.studies.rendered import Table
from benchmarks.studies.study import Study, load_study
from benchmarks.tables.accuracy import AblationTable, NarTable, PretrainedTable
from benchmarks.tables.claims import ClaimsTable
from benchmarks.tables.controls import ControlsTable
from benchmarks.tables.decoding import DecodingTable
from benchmarks.tables.longrange import LongRangeTable
from benchmarks.tables.main import MainTable
from benchmarks.tables.maker import Maker
from benchmarks.tables.markup import latex, markdown
from benchmarks.tables.scale import ScaleTable
from benchmarks.tables.stages import StagesTable
from benchmarks.tables.synthetic import SyntheticTable

MAKERS: dict[Table, type[Maker]] = {
    Table.main: MainTable,
    Table.decoding: DecodingTable,
    Table.controls: ControlsTable,
    Table.stages: StagesTable,
    Table.ablation: AblationTable,
    Table.nar: NarTable,
    Table.scale: ScaleTable,
    Table.pretrained: PretrainedTable,
    Table.synthetic: SyntheticTable,
    Table.longrange: LongRangeTable,
    Table.claims: ClaimsTable,
}


def render(study: Study, results: Path, table: Table = Table.main) -> list[Path]:
    """Write a table in four formats, Markdown first, from what ``collect`` wrote and the predictions."""
    paths = []
    for ending, text in contents(study, results, table).items():
        paths.append(results / study.name / f"table_{table}.{ending}")
        write_text(paths[-1], text)
    return paths


def contents(study: Study, results: Path, table: Table = Table.main) -> dict[str, str]:
    """Return a table's contents by file extension."""
    return rendered(study, load_collected(study, results), results, table)


def rendered(study: Study, collected: Collected, results: Path, table: Table) -> dict[str, str]:
    """Return a table's contents by file extension, from collected records and the predictions in ``results``."""
    kind = MAKERS[table]
    others = tuple(_beside(study, results)) if kind.reads_beside else ()
    beside = tuple((other, _summary(other, found, results, kind)) for other, found in others)
    summary = _summary(study, collected, results, kind)
    maker = kind(study, summary, titles(collected), beside, collected.runs, results)
    made = {f"Beside, {other.name}": in_short(other, found) for other, found in others}
    document = maker.document(provenance(study, collected) | made)
    content = {
        "study": study.name,
        "lines": _records(maker.frame),
        "paired_tests": _records(maker.paired_tests),
        **{key: _records(frame) for key, frame in maker.further.items()},
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


def _summary(study: Study, collected: Collected, results: Path, kind: type[Maker]) -> Summary:
    shown = [name for name, spec in study.evaluation.decodings.items() if name == "default" or kind.shows(spec)]
    return summarise(study, collected, results, shown)


def _beside(study: Study, results: Path) -> Iterator[tuple[Study, Collected]]:
    """Yield the studies that this one names as `beside` and whose records are collected."""
    for other in map(load_study, study.beside):
        if (results / other.name / COLLECTED).is_file():
            yield other, load_collected(other, results)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame's lines for JSON, with missing values as None (JSON has no NA)."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
