"""The main table of a study, rendered from its records alone: Markdown, LaTeX, CSV and JSON of the same frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.files import write_text
from benchmarks.markup import DASH, Cell, Column, Document, Grid, Line, latex, markdown
from benchmarks.paper import Measured, PaperRow, PaperTable, paper_table
from benchmarks.provenance import provenance, titles
from benchmarks.results import load_collected
from benchmarks.statistics import ALPHA
from benchmarks.study import Block, Row, Study
from benchmarks.summary import Summary, summarise

REFERENCE = "main_0.5b"  # the paper's table that a study on real test sets is shown beside
TIE = "="
SCORES = (Column("n"), Column("De-duplicated (%)"), Column("Strict (%)"), Column("No answer (%)"))
SCORES += (Column("95 % interval"), Column("± over"))
COSTS = (Column("ms/question"), Column("Passes/question"), Column("Tokens/question"), Column("Tokens/s"))
COSTS += (Column("Peak MiB"), Column("All steps (s)"))


def render_main(study: Study, results: Path) -> list[Path]:
    """Write the main table in four formats, Markdown first. Needs what ``collect`` wrote and the predictions."""
    paths = []
    for name, text in main_table(study, results).items():
        paths.append(results / study.name / name)
        write_text(paths[-1], text)
    return paths


def main_table(study: Study, results: Path) -> dict[str, str]:
    """The main table's contents by file name."""
    collected = load_collected(study, results)
    summary = summarise(study, collected, results)
    document = _Maker(study, summary, titles(collected)).document(provenance(study, collected))
    content = {
        "study": study.name,
        "lines": _records(summary.lines),
        "paired_tests": _records(summary.pairs),
        "legend": document.legend,
        "notes": document.notes,
        "made": document.footer,
    }
    return {
        "table_main.md": markdown(document),
        "table_main.tex": latex(document),
        "table_main.csv": summary.lines.to_csv(index=False),
        "table_main.json": json.dumps(content, indent=1, ensure_ascii=False) + "\n",
    }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Lines for JSON, which has null and no NA."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


@dataclass
class _Maker:
    """Turns a summary into grids; ``notes`` gathers why something has not run."""

    study: Study
    summary: Summary
    titles: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def document(self, footer: dict[str, str]) -> Document:
        paper = paper_table(self.study.paper) if self.study.paper else None
        grids = [self._main(paper), self._detail(), self._training()]
        reference = paper_table(REFERENCE)
        if paper is None and any(test in reference.tests for test in self._tests):
            grids.append(self._reference(reference))
        return Document(self.study.title, tuple(grids), tuple(_legend(self.study, paper)), tuple(self.notes), footer)

    @property
    def _tests(self) -> tuple[str, ...]:
        return self.study.evaluation.tests

    def _title(self, test: str) -> str:
        return self.titles.get(test, test)

    def _note(self, reason: Any) -> str:
        """The number of a note; the same reason has the same number."""
        if pd.isna(reason) or not reason:
            return ""
        if reason not in self.notes:
            self.notes.append(reason)
        return str(self.notes.index(reason) + 1)

    def _rows(self, block: Block) -> Iterable[tuple[str, list[Row]]]:
        """Rows of a block under headings: those compared, then controls."""
        own = [row for row in self.study.rows if row.blocks is None or block.id in row.blocks]
        for heading, control in ((block.title, False), (f"{block.title} (controls, never ranked)", True)):
            if rows := [row for row in own if row.control == control]:
                yield heading, rows

    # ---- the main table

    def _main(self, paper: PaperTable | None) -> Grid:
        known = self.summary.lines["train_epoch_seconds"].dropna().tolist()
        unit = HOURS if paper or max(known, default=0.0) >= HOURS.seconds else SECONDS
        columns = [Column(f"Train ({unit.name})")]
        for test in self._tests:
            columns += [Column("Acc (%)", self._title(test)), Column("Test (s)", self._title(test))]
        columns += [Column("Params"), Column("Training FLOPs")]
        sections = []
        for block in self.study.blocks:
            printed = paper.blocks[block.id].printed if paper and block.id in paper.blocks else {}
            for heading, rows in self._rows(block):
                lines = []
                for row in rows:
                    lines.append(self._main_line(block, row, unit))
                    if row.id in printed:
                        lines.append(self._paper_line(printed[row.id], "paper", unit))
                sections.append((heading, tuple(lines)))
        return Grid(self.study.title, tuple(columns), tuple(sections))

    def _main_line(self, block: Block, row: Row, unit: Unit) -> Line:
        found = [self.summary.line(block.id, row.id, "default", test) for test in self._tests]
        lines = [line for line in found if line is not None]
        first = lines[0]
        title = Cell(first["title"])
        if first["status"] in ("not run", "skipped"):
            cells = [Cell(first["status"], mark=self._note(first["reason"]))]
            cells += [Cell() for _ in range(2 * len(self._tests) + 2)]
            return Line(title, tuple(cells), row.indent)
        note = self._note(first["reason"])
        cells = [_cell(first["train_epoch_seconds"], unit.format, note)]
        for line in lines:
            seconds = _cell(line["test_seconds_median"], _seconds, note, line["test_seconds_spread"])
            cells += [self._accuracy(line, note), seconds]
        cells += [_cell(first["parameters"], _count, note), _cell(first["training_flops"], _flops, note)]
        return Line(title, tuple(cells), row.indent)

    def _accuracy(self, line: dict[str, Any], note: str) -> Cell:
        if pd.isna(line["accuracy"]):
            return Cell("not run", mark=note)
        tail = {"nothing drawn": " (det.)", "one seed": " (1 seed)"}.get(line["spread_over"], "")
        if pd.notna(line["spread"]):
            tail = f" ± {_percent(line['spread'])}"
        lacking = note if line["training_seeds"] < len(self.study.seeds) else ""
        marks = [TIE if line["mark"] == "tie" else "", lacking]
        return Cell(_percent(line["accuracy"]), tail, line["mark"] == "best", " ".join(mark for mark in marks if mark))

    def _paper_line(self, row: PaperRow, title: str, unit: Unit, blank: int = 2) -> Line:
        """The paper's numbers in the columns of the main table, of which the last ``blank`` are not in the paper."""
        hours = row.train_hours
        cells = [_measured(hours, lambda value: unit.format(3600 * value))]
        for test in self._tests:
            score = row.tests.get(test)
            cells.append(_measured(score and score.accuracy, "{:.2f}".format))
            cells.append(_measured(score and score.seconds, _seconds))
        note = self._note(f"{row.title} in the paper: {row.note}" if row.note else None)
        return Line(Cell(title, mark=note), (*cells, *[Cell()] * blank), indent=title == "paper")

    # ---- the other tables

    def _detail(self) -> Grid:
        sections = []
        for block in self.study.blocks:
            for test in self._tests:
                rows = [row for _, rows in self._rows(block) for row in rows]
                lines = [line for row in rows for line in self._detail_lines(block, row, test)]
                sections.append((f"{block.title} · {self._title(test)}", tuple(lines)))
        return Grid("Details by test set", SCORES + COSTS, tuple(sections))

    def _detail_lines(self, block: Block, row: Row, test: str) -> Iterable[Line]:
        for decoding in self.study.evaluation.decodings:
            line = self.summary.line(block.id, row.id, decoding, test)
            if line is None or (decoding != "default" and pd.isna(line["accuracy"])):
                continue
            name = line["title"] + ("" if decoding == "default" else f" ({decoding.replace('_', ' ')})")
            title = Cell(name, "" if decoding == "default" else f": {_percent(line['accuracy'])} %")
            yield Line(title, _scores(line) + _costs(line), row.indent)

    def _training(self) -> Grid:
        columns = (Column("Wall clock (s)"), Column("Tokens/s"))
        sections = []
        for block in self.study.blocks:
            lines = []
            for row in (row for _, rows in self._rows(block) for row in rows):
                line = self.summary.line(block.id, row.id, "default", self._tests[0])
                if line is None:
                    continue
                speed = _cell(line["train_tokens_per_second"], "{:,.0f}".format)
                cells = (_cell(line["train_wall_seconds"], _seconds), speed)
                lines.append(Line(Cell(line["title"]), cells, row.indent))
            sections.append((block.title, tuple(lines)))
        return Grid("Training as it ran: the whole budget, warm starts included", columns, tuple(sections))

    def _reference(self, paper: PaperTable) -> Grid:
        columns = [Column("Train (h)")]
        for test in self._tests:
            columns += [Column("Acc (%)", self._title(test)), Column("Test (s)", self._title(test))]
        sections = [
            (block.title, tuple(self._paper_line(row, row.title, HOURS, blank=0) for row in block.printed.values()))
            for block in paper.blocks.values()
        ]
        caption = f"For reference: the paper's numbers, in the paper's setting ({paper.setting}), not this study's"
        return Grid(caption, tuple(columns), tuple(sections))


def _scores(line: dict[str, Any]) -> tuple[Cell, ...]:
    n, clean = _cell(line["n"], "{:,}".format), _cell(line["deduplicated"], _percent)
    if n.text != DASH and line["n_distinct"] < line["n"]:
        n = Cell(n.text, f" ({line['n_distinct']:,} distinct)")
    if clean.text != DASH:
        clean = Cell(clean.text, f" (n={line['n_deduplicated']:,})")
    bounds = Cell() if pd.isna(line["low"]) else Cell(f"{_percent(line['low'])} to {_percent(line['high'])}")
    shares = (_cell(line[name], _percent) for name in ("strict", "no_answer"))
    return (n, clean, *shares, bounds, _cell(line["spread_over"], str))


def _costs(line: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        _cell(line["ms_per_question"], _seconds),
        _cell(line["forward_passes"], "{:.2f}".format),
        _cell(line["tokens_per_question"], "{:.1f}".format),
        _cell(line["tokens_per_second"], "{:,.0f}".format),
        _cell(line["peak_memory"], lambda value: f"{value / 2**20:,.0f}"),
        _cell(line["all_steps_seconds_median"], _seconds, spread=line["all_steps_seconds_spread"]),
    )


@dataclass(frozen=True)
class Unit:
    """One unit for a whole column of times."""

    name: str
    seconds: float

    def format(self, seconds: float) -> str:
        return _seconds(seconds / self.seconds)


SECONDS, HOURS = Unit("s", 1.0), Unit("h", 3600.0)


def _cell(value: Any, form: Any, note: str = "", spread: Any = None) -> Cell:
    """A formatted number; a dash, with the note of why, where there is none."""
    if pd.isna(value):
        return Cell(mark=note)
    return Cell(form(value), "" if pd.isna(spread) else f" ± {form(spread)}")


def _measured(value: Measured | None, form: Any) -> Cell:
    return Cell() if value is None else _cell(value.mean, form, spread=value.spread)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 or value == 0 else f"{value:.4f}"


def _count(value: float) -> str:
    """Parameters, in millions or billions."""
    return f"{value / 1e9:.2f}B" if value >= 1e9 else f"{value / 1e6:.2f}M"


def _flops(value: float) -> str:
    return f"{value:.2e}".replace("e+", "e")


def _legend(study: Study, paper: PaperTable | None) -> Iterable[str]:
    """What every column, spread and mark means, in this study."""
    timing, several = study.timing, len(study.seeds) > 1
    over = f"the {len(study.seeds)} training seeds" if several else "the decoding seeds of one trained model"
    timed = f"up to {timing.questions} questions of a set, spread evenly over their lengths" if timing.questions else ""
    texts = [
        """Train: time of one epoch of each training phase, warm starts included: steps per epoch times the median step,
        measured alone on the machine, and what a phase computes once. Training FLOPs: of the whole budget, warm starts
        included.""",
        f"""Acc: mean over decoding seeds{" and training seeds" if several else ""}; ± is the standard deviation over
        {over}. (det.): nothing is drawn, so there is no spread. ± says nothing about other questions; the 95 % interval
        in the details does (Wilson's, or a bootstrap of questions where a question's score is a mean over seeds).""",
        f"""Test: seconds to answer {timed or "all questions of a set"}, answer only, one device, batches of
        {timing.batch_size}; median of {timing.repeats} repeats ± half their interquartile range. All steps: the same,
        the reasoning steps said too. No speed-up is stated: times can be compared within this table only.""",
        f"""Bold: the most accurate row of its block and test set, where paired tests over the same questions separate
        it from every other (p < {ALPHA}, Holm's correction for all pairs, controls apart). {TIE}: the rows that the
        tests do not separate from the most accurate one, and that one. The tests speak for these trained models on
        other questions, not for other training seeds.""",
        """De-duplicated: accuracy on the questions that the training data do not hold. Strict: right, and in the form
        asked for. Further decodings stand in the details, their accuracy behind their name. Peak: memory of the GPU, or
        of the whole process on a CPU.""",
    ]
    yield from (" ".join(text.split()) for text in texts)
    if paper:
        yield f"Lines 'paper': table {paper.label} of the paper ({paper.setting}); it does not say what its ± covers."
    else:
        yield "This study's setting is not the paper's; the paper's numbers are in benchmarks/paper.yaml."
