"""Render a study's tables as Markdown, LaTeX, CSV and JSON of the same frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.files import write_texts
from benchmarks.records.provenance import provenance
from benchmarks.records.results import StudyRecords, load_collected
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study
from benchmarks.tables.accuracy import AblationTable, NarTable, PretrainedTable
from benchmarks.tables.base import ExternalRows, TableBuilder
from benchmarks.tables.claims import ClaimsTable
from benchmarks.tables.comparisons import ComparisonsTable
from benchmarks.tables.decoding import ControlsTable, DecodingTable
from benchmarks.tables.main import MainTable, ScaleTable
from benchmarks.tables.markup import latex, markdown
from benchmarks.tables.nats import NatsTable
from benchmarks.tables.stages import StagesTable
from benchmarks.tables.synthetic import LongRangeTable, SyntheticTable

TABLE_BUILDERS: dict[Table, type[TableBuilder]] = {
    Table.main: MainTable,
    Table.comparisons: ComparisonsTable,
    Table.decoding: DecodingTable,
    Table.controls: ControlsTable,
    Table.nats: NatsTable,
    Table.stages: StagesTable,
    Table.ablation: AblationTable,
    Table.nar: NarTable,
    Table.scale: ScaleTable,
    Table.pretrained: PretrainedTable,
    Table.synthetic: SyntheticTable,
    Table.longrange: LongRangeTable,
    Table.claims: ClaimsTable,
}
WITH = "with"  # folder of tables that show rows made elsewhere: the study's own are of its records alone


def render(study: Study, results: Path, table: Table, beside: ExternalRows | None = None) -> list[Path]:
    """Write a table in four formats, Markdown first, from what ``collect`` wrote and the predictions. One with rows
    made elsewhere does not replace the study's own."""
    texts = rendered(load_collected(study, results), table, beside)
    named = {f"table_{table}.{ending}": text for ending, text in texts.items()}
    return write_texts(results / study.name / (WITH if beside else ""), named)


def rendered(records: StudyRecords, table: Table, beside: ExternalRows | None = None) -> dict[str, str]:
    """Return a table's contents by file extension."""
    builder = TABLE_BUILDERS[table](records, beside)
    document = builder.document(provenance(records))
    content = {
        "study": records.study.name,
        "lines": _lines(builder.frame),
        "paired_tests": _lines(builder.paired_tests),
        **{key: _lines(frame) for key, frame in builder.extra_frames.items()},
        "legend": document.legend,
        "notes": document.notes,
        "made": document.footer,
    }
    return {
        "md": markdown(document),
        "tex": latex(document),
        "csv": builder.frame.to_csv(index=False),
        "json": json.dumps(content, indent=1, ensure_ascii=False) + "\n",
    }


def _lines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame's lines for JSON, with missing values as None (JSON has no NA)."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
