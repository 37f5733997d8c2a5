"""The main table: accuracy and costs of each row as the paper prints them; then details by test set, training costs,
and comparisons with the controls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import pandas as pd

from benchmarks.paper.numbers import PaperRow, PaperTable, paper_table
from benchmarks.records.provenance import backbone, hardware
from benchmarks.records.schema import TimeRecord
from benchmarks.records.summary import gpu_seconds_as_trained, groups, index_by
from benchmarks.studies.specs import Block, DecodingSpec, Row, TimingSpec
from benchmarks.tables.base import (
    NOT_THE_PAPERS,
    PASSES,
    RANKS,
    ExternalRows,
    TableBuilder,
    cell,
    count,
    decoding_label,
    difference,
    flops,
    interval_cell,
    percent,
    printed_cell,
    published_rows,
    question_count,
    seconds,
    seconds_cell,
)
from benchmarks.tables.markup import DASH, Cell, Column, Grid, Line
from benchmarks.tables.nats import GoldNats
from benchmarks.timing.machine import MUCH, SLOWER

SCORES = (Column("n"), Column("Not in training (%)"), Column("Strict (%)"), Column("No answer (%)"))
SCORES += (Column("95 % interval"), Column("± over"))
COSTS = (Column("ms/question"), Column("Passes/question"), Column("Tokens/question"), Column("Tokens/s"))
COSTS += (Column("Peak MiB"), Column("All steps (s)"))
HOUR = 3600.0  # seconds


class MainTable(TableBuilder):
    """The default decoding; the details also show decodings with the mean in place of drawn latents."""

    reference: ClassVar[str] = "main_0.5b"  # the paper's table that is shown beside studies with its test sets

    @classmethod
    def shows(cls, spec: DecodingSpec) -> bool:
        return spec.thoughts == "own" and spec.latents == "mean"

    def grids(self) -> list[Grid]:
        grids = [self._main(), self._detail(), self._training()]
        if self._has_reference:
            grids.append(self._reference(paper_table(self.reference)))
        return [*grids, *self._against_controls()]

    @property
    def _has_reference(self) -> bool:
        """Whether the paper's numbers get their own grid: the paper has some of the test sets, but another setting."""
        return self.paper is None and not paper_table(self.reference).tests.keys().isdisjoint(self.test_names)

    @property
    def extra_frames(self) -> dict[str, pd.DataFrame]:
        return {"against_controls": self.summary.against_controls, **self._nats.frames}

    @cached_property
    def _nats(self) -> GoldNats:
        return GoldNats(self.records)

    @property
    def frame(self) -> pd.DataFrame:
        own, others = self.summary.lines, self._external.lines
        return pd.concat([own.assign(source=""), others], ignore_index=True) if len(others) else own

    @cached_property
    def _external(self) -> ExternalRows:
        return self.beside or published_rows(self.records)

    @cached_property
    def _elsewhere(self) -> dict[str, list[dict[str, dict[str, Any]]]]:
        """The rows that were made elsewhere, by the heading of their section: for each its lines by test set."""
        found: dict[str, list[dict[str, dict[str, Any]]]] = {}
        for (source, block, _), lines in groups(self._external.lines, ["source", "block", "row"]):
            title = f"{self.study.block(block).title} (from {source}, never ranked)" if block else source
            found.setdefault(title, []).append({line["test"]: line for line in lines.to_dict("records")})
        return found

    # ---- the main table

    def _main(self) -> Grid:
        paper = self.paper
        known = self.summary.lines["train_epoch_seconds"].dropna().tolist()
        name, unit = ("h", HOUR) if paper or max(known, default=0.0) >= HOUR else ("s", 1.0)
        limit = next((timing.questions for timing in self.study.timings.values()), None)
        test_column = f"Test of {limit} (s)" if limit else "Test (s)"
        columns = [Column(f"Train ({name})")]
        for test in self.test_names:
            columns += [Column("Acc (%)", self.test_title(test)), Column(test_column, self.test_title(test))]
        columns += [Column("Params"), Column("Training FLOPs")]
        sections = []
        for block in self.study.blocks:
            printed = paper.rows(block.id) if paper else {}
            for heading, rows in self.rows(block):
                lines = []
                for row in rows:
                    lines.append(self._main_line(block, row, unit))
                    if row.id in printed:
                        lines.append(self._paper_line(printed[row.id], "paper", unit))
                sections.append((heading, lines))
        for heading, rows in self._elsewhere.items():
            sections.append((heading, [*map(self._elsewhere_line, rows)]))
        return Grid(self.title, columns, sections)

    def _main_line(self, block: Block, row: Row, unit: float) -> Line:
        lines = [self.summary.line(block.id, row.id, "default", test) for test in self.test_names]
        first = self.line(block, row)
        title = self.row_title(first)
        if first["status"] == "not run":
            blank = [Cell()] * (2 * len(self.test_names) + 2)
            return Line(title, (self.missing_cell(first), *blank), row.indent)
        note = self.note(first["reason"])
        cells = [cell(first["train_epoch_seconds"], lambda value: seconds(value / unit), note)]
        for line in lines:
            if line is None:  # this block is not evaluated on the test set
                cells += [Cell(), Cell()]
                continue
            cells.append(self.accuracy(line))
            cells.append(seconds_cell(line["test_seconds_median"], note, line["test_seconds_spread"]))
        cells += [cell(first["parameters"], count, note), cell(first["training_flops"], flops, note)]
        return Line(title, cells, row.indent)

    def _elsewhere_line(self, row: dict[str, dict[str, Any]]) -> Line:
        """Return a row that was made elsewhere in the columns of the main table. Its times are another machine's."""
        first = next(iter(row.values()))
        scores = (self.accuracy(row[test]) if test in row else Cell() for test in self.test_names)
        cells = (one for score in scores for one in (score, Cell()))
        return self._brought(first, (Cell(), *cells, cell(first["parameters"], count), Cell()))

    def _brought(self, line: Mapping[str, Any], cells: Sequence[Cell]) -> Line:
        """Return the line of a row that was made elsewhere, indented if the study's own is."""
        indented = {row.id for row in self.study.rows if row.indent} if line["block"] else ()
        return Line(self.row_title(line), cells, line["row"] in indented)

    def _paper_line(self, row: PaperRow, title: str, unit: float, blank: int = 2) -> Line:
        """Return the paper's numbers in the columns of the main table, the time of training in units of so many
        seconds. The paper lacks the last ``blank`` columns."""
        cells = [printed_cell(row.train_hours, lambda hours: seconds(HOUR * hours / unit))]
        for test in self.test_names:
            score = row.tests.get(test)
            cells.append(printed_cell(score and score.accuracy, "{:.2f}".format))
            cells.append(
                seconds_cell(score.seconds.mean, spread=score.seconds.spread) if score and score.seconds else Cell()
            )
        return Line(Cell(title, mark=self.note(row.in_paper)), (*cells, *[Cell()] * blank), indent=title == "paper")

    # ---- the other tables

    def _detail(self) -> Grid:
        trainings = self.trainings_column
        columns = SCORES + trainings + COSTS + self._nats.columns
        sections = self.by_test(self._detail_lines)
        for heading, rows in self._elsewhere.items():
            for test in self.test_names:
                if lines := [row[test] for row in rows if test in row]:
                    between, blank = (Cell(),) * len(trainings), (Cell(),) * len(self._nats.columns)
                    shown = [self._brought(line, _scores(line) + between + _costs(line) + blank) for line in lines]
                    sections.append((f"{heading} · {self.test_title(test)}", shown))
        return Grid("Details by test set", columns, sections)

    def _detail_lines(self, block: Block, row: Row, test: str) -> Iterable[Line]:
        default = self.summary.line(block.id, row.id, "default", test)
        # If nothing is drawn, taking the mean gives the same answers
        drawn = default is not None and default["stochastic"] is True
        for decoding in ("default", *(self.decodings() if drawn else ())):
            line = self.summary.line(block.id, row.id, decoding, test)
            if line is None or (decoding != "default" and pd.isna(line["accuracy"])):
                continue
            title = Cell(line["title"] + self.dead_r_suffix(line))
            if decoding != "default":
                title = Cell(f"{title.text} ({decoding_label(decoding)})", f": {percent(line['accuracy'])} %")
            scores = _scores(line) + self.each_training(line)
            yield Line(title, scores + _costs(line) + self._nats.cells(block, row), row.indent)

    def _training(self) -> Grid:
        columns = (Column("In optimizer steps (s)"), Column("Tokens/s"), Column("GPU-hours"))
        caption = "Training as it ran: the whole budget, warm starts included"
        return Grid(caption, columns, self.by_block(self._training_lines))

    def _training_lines(self, block: Block, row: Row) -> Iterator[Line]:
        line = self.line(block, row)
        speed = cell(line["train_tokens_per_second"], "{:,.0f}".format)
        spent_by_all = gpu_seconds_as_trained(self.records, block.id, row.id)
        hours = cell(spent_by_all, lambda spent: f"{spent / HOUR:.2f}")
        yield Line(self.row_title(line), (cell(line["train_wall_seconds"], seconds), speed, hours), row.indent)

    def _against_controls(self) -> Iterator[Grid]:
        """Yield a grid of each row against each control row of its block, if there are controls."""
        found = index_by(self.summary.against_controls, "block", "control", "row", "test")
        columns = [Column(name, self.test_title(test)) for test in self.test_names for name in ("Δ", "p")]
        sections = []
        for id, control in dict.fromkeys(key[:2] for key in found):
            block, lines = self.study.block(id), []
            for row in (row for row in self.study.rows_of(block) if not row.control):
                pairs = (found.get((id, control, row.id, test)) for test in self.test_names)
                cells = [one for pair in pairs for one in difference(pair)]
                lines.append(Line(self.row_title(self.line(block, row)), cells, row.indent))
            sections.append((f"{block.title}: minus {self.study.row_titles[control]}", lines))
        if sections:
            yield Grid("Against the control", columns, sections)

    def _reference(self, paper: PaperTable) -> Grid:
        columns = [Column("Train (h)")]
        for test in self.test_names:
            columns += [Column("Acc (%)", self.test_title(test)), Column("Test (s)", self.test_title(test))]
        sections = [
            (block.title, [self._paper_line(row, row.title, HOUR, blank=0) for row in block.rows.values()])
            for block in paper.blocks.values()
        ]
        caption = f"For reference: the paper's numbers, in the paper's setting ({paper.setting}), not this study's"
        return Grid(caption, columns, sections)

    def legend(self) -> Iterable[str]:
        study, several = self.study, len(self.study.seeds) > 1
        over = f"the {len(study.seeds)} training seeds" if several else "the decoding seeds of one trained model"
        yield """Train: one epoch of every training phase, warm starts included: steps of an epoch times the median
        step, plus what a phase computes once; measured on the run's own devices, with no other job of the workflow
        beside it. Training FLOPs: of the whole budget, warm starts included. Training as it ran: what
        a phase computes once counts as steps, validation and checkpoints do not; Tokens/s is that of the row's own run,
        without its warm start."""
        yield f"""Acc: mean over decoding seeds{" and training seeds" if several else ""}; ± is the standard deviation
        over {over}. (det.): nothing is drawn, so there is no spread. ± says nothing about other questions; the 95 %
        interval in the details does ({self.about_interval}). {self.about_trainings} {self.about_repeated()}"""
        yield from self._times()
        yield from self._machines()
        yield from self._disturbed()
        yield f"{RANKS} {self.separation} {self.generalisation}"
        yield f"""Not in training: accuracy on the questions that are not in the training data. {self.about_strict()}
        Lines with the mean in place of a drawn latent are in the details only, their accuracy behind the name; other
        decodings have a table of their own. {PASSES} Peak: memory of the GPU, or of the whole process on a CPU."""
        yield from self.about_own_decodings()
        yield from self._nats.about_columns()
        if len(self._external.lines):
            yield """From elsewhere and as published (the last sections of this table and of the details): not made by
            the runs that the table is of, and never ranked, so that they have no mark and change none. Times of another
            machine are left out. `marcos-bench compare` and `score` test such rows question by question."""
        yield from self._external.about
        if len(self.summary.against_controls):
            family = "for all rows of the block and test set" if self.study.comparisons is None else "as above"
            yield f"""Against the control (last table): Δ is the row minus the control of its block, in percentage
            points; p: paired test over the same questions, Holm's correction {family}."""
        if self.paper:
            about = f" Their test sets: {self.paper.about_tests}" if self.paper.about_tests else ""
            yield f"Lines 'paper': {self.paper.place}, {self.paper.setting}. {self.paper.spreads}{about}"
        else:
            yield NOT_THE_PAPERS
        if self._has_reference:
            yield f"Test sets of the paper: {paper_table(self.reference).about_tests}"

    @cached_property
    def _timed(self) -> dict[str, TimeRecord]:
        return {id: run.time for id, run in self.records.runs.items() if run.time}

    def _machines(self) -> Iterable[str]:
        """Say which runs were timed on which machine, if there are several kinds of machines."""
        machines: dict[str, list[str]] = {}
        for id, time in self._timed.items():
            machines.setdefault(hardware(time.environment), []).append(id)
        if len(machines) > 1:
            where = "; ".join(f"{machine}: {', '.join(ids)}" for machine, ids in machines.items())
            yield f"""Timed on machines of different kinds, so that Train and Test cannot be compared between rows of
            one and rows of another. {where}."""

    def _disturbed(self) -> Iterable[str]:
        """Name the runs that were timed beside other work or while the machine was slow."""
        loads = {id: time.other_load for id, time in self._timed.items()}
        if busy := [f"{id} ({100 * load:.0f} %)" for id, load in loads.items() if load > MUCH]:
            yield f"""Other processes took more than {100 * MUCH:g} % of the machine's CPU time while these were timed,
            so that their Train and Test may be too long: {", ".join(busy)}."""
        paces = {id: time.pace_seconds for id, time in self._timed.items()}
        machines = {id: hardware(time.environment) for id, time in self._timed.items()}
        best = {machine: min(paces[id] for id in paces if machines[id] == machine) for machine in machines.values()}
        ratios = {id: pace / best[machines[id]] for id, pace in paces.items()}
        if slow := [f"{id} ({ratio:.1f} times)" for id, ratio in ratios.items() if ratio > SLOWER]:
            yield f"""A fixed piece of work took more than {SLOWER:g} times as long between the measurements of these as
            beside the row of its machine where it was fastest, so that their Train and Test may be too long:
            {", ".join(slow)}."""

    def _times(self) -> Iterable[str]:
        """Explain the columns of times, or say that nothing is timed."""
        if self.study.timing is None:
            theirs = " and ".join(self.study.timings)
            there = f" Times and training FLOPs are those of rows that are runs of {theirs}." if theirs else ""
            yield f"Nothing is timed in this study.{there}"
        yield from dict.fromkeys(map(_about_test, self.study.timings.values()))
        if self.study.timings and len(self.study.seeds) > 1:
            yield "Times and costs are means over the trainings that have them."


def _about_test(timing: TimingSpec) -> str:
    """Explain the seconds of tests that were timed in one way."""
    some = f"up to {timing.questions} questions of a set, spread evenly over their lengths"
    passes, covers = "one pass", "Repeats differ, and processes do by more"
    if timing.repeats > 1:
        passes = f"median of {timing.repeats} repeats ± half their range"
        covers = "± covers repeats within one process only and processes differ by more"
    return f"""Test: seconds to answer {some if timing.questions else "all questions of a set"} on one device, in
    batches of {timing.batch_size}; {passes}. A method that can leave out its steps writes the answer alone; All
    steps, in the details, is its time with the steps written too. {covers}, so small differences in Test are not
    meaningful. No speed-up is stated: times can be compared within this table only."""


def _scores(line: dict[str, Any]) -> tuple[Cell, ...]:
    clean = cell(line["deduplicated"], percent)
    if clean.text != DASH:
        clean = Cell(clean.text, f" (n={line['n_deduplicated']:,})")
    shares = (cell(line[name], percent) for name in ("strict", "no_answer"))
    return (question_count(line), clean, *shares, interval_cell(line), cell(line["spread_over"], str))


def _costs(line: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        cell(line["ms_per_question"], seconds),
        cell(line["forward_passes"], "{:.2f}".format),
        cell(line["tokens_per_question"], "{:.1f}".format),
        cell(line["tokens_per_second"], "{:,.0f}".format),
        cell(line["peak_memory"], lambda value: f"{value / 2**20:,.0f}"),
        seconds_cell(line["all_steps_seconds_median"], spread=line["all_steps_seconds_spread"]),
    )


class ScaleTable(MainTable):
    """The main table with the backbone and number of parameters of each row: the paper compares MarCos, each of whose
    modules has its own backbone, with baselines on one backbone of six times that size."""

    reference = "main_3b"

    def grids(self) -> list[Grid]:
        first, *others = super().grids()
        return [first, self._sizes(), *others]

    def _sizes(self) -> Grid:
        columns = (Column("Backbone"), Column("Params"))
        return Grid("Backbone of each row, and all parameters", columns, self.by_block(self._size_lines))

    def _size_lines(self, block: Block, row: Row) -> Iterator[Line]:
        line = self.line(block, row)
        sizes = (Cell(backbone(self.study.backbone_of(block, row))), cell(line["parameters"], count))
        yield Line(self.row_title(line), sizes, row.indent)

    def legend(self) -> Iterable[str]:
        yield from super().legend()
        yield """MarCos has a transformer of the smaller backbone for each of its modules; the paper compares it with
        baselines of about the size of all of these together."""
