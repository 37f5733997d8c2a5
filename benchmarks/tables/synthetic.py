"""The tables of the synthetic tasks: accuracy with sampled and greedy decoding, and the diversity of the samples; for
long-range copy also how often steps repeat each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from statistics import fmean
from typing import Any

import pandas as pd

from benchmarks.scoring.diversity import FEWEST_PAIRS, DrawStatistics
from benchmarks.scoring.synthetic import repeats
from benchmarks.studies.specs import Block, DecodingSpec, Row
from benchmarks.studies.study import StudyError
from benchmarks.tables.base import (
    NOT_THE_PAPERS,
    TableBuilder,
    cell,
    decoding_label,
    interval_cell,
    percent,
    printed_cell,
)
from benchmarks.tables.markup import Cell, Column, Document, Grid, Line
from benchmarks.tables.nats import GoldNats


class SyntheticTable(TableBuilder):
    """For every row a decoding that samples, and beside it one that does not. A block is a task with one test set."""

    extra: tuple[str, ...] = ("Entropy (bits)",)  # a task's columns besides its two accuracies
    scoring = """RS, RP: every step must follow from the one before it, by some digit or some partition, and the last
        equation must be right. P24: every equation must be true, have natural numbers and use numbers that are still
        there, and the last path must use all four numbers once and end in 24. All methods write every step, and every
        step is scored, except in P24 with K = 1, where only the last path, which is the answer, is scored."""

    @classmethod
    def shows(cls, spec: DecodingSpec) -> bool:
        return spec.thoughts == "own" and spec.latents != "encoded"

    def document(self, footer: dict[str, str]) -> Document:
        if several := [block.id for block in self.study.blocks if len(self.study.tests_of(block)) > 1]:
            raise StudyError(
                f"blocks {', '.join(several)}: this table is for one test set a block; give each `tests: [NAME]`"
            )
        return super().document(footer)

    @cached_property
    def _nats(self) -> GoldNats:
        return GoldNats(self.records)

    @property
    def extra_frames(self) -> dict[str, pd.DataFrame]:
        return self._nats.frames

    def grids(self) -> list[Grid]:
        return [self._scores(), self._detail()]

    # ---- accuracy, with columns for each task

    def _scores(self) -> Grid:
        columns = [
            Column(name, block.title)
            for block in self.study.blocks
            for name in ("Sampled (%)", "Greedy (%)", *self.extra)
        ]
        lines = []
        for row in self.study.rows:
            cells = [cell for block in self.study.blocks for cell in self._block_cells(block, row)]
            lines.append(Line(self._title(row), cells, row.indent))
            if printed := self._paper_line(row.id):
                lines.append(printed)
        return Grid(self.title, columns, [("Accuracy", lines)])

    def _title(self, row: Row) -> Cell:
        """Return a row's title, with the tasks in which R was dead when training ended."""
        tasks: dict[str, list[str]] = {}  # by what a title says of R
        for block in self.study.blocks:
            line = self.evaluated_line(block, row, drawn=True)
            if line is not None and (dead := self.dead_r_suffix(line)):
                tasks.setdefault(dead, []).append(block.title)
        every = len(self.study.blocks)
        suffixes = (dead if len(of) == every else f"{dead[:-1]}: {', '.join(of)})" for dead, of in tasks.items())
        return Cell(self.study.row_titles[row.id], "".join(suffixes))

    def _block_cells(self, block: Block, row: Row) -> Iterator[Cell]:
        for drawn in (True, False):
            line = self.evaluated_line(block, row, drawn)
            yield Cell() if line is None else self.score(line, line["spread"])
        yield from self.extra_cells(block, row)

    def extra_cells(self, block: Block, row: Row) -> Iterator[Cell]:
        line = self.evaluated_line(block, row, drawn=True)
        yield _entropy([] if line is None or pd.isna(line["accuracy"]) else self.draws(block, row, line))

    def evaluated_line(self, block: Block, row: Row, drawn: bool) -> dict[str, Any] | None:
        """Return the line of a row's first evaluated decoding that draws (or does not), or None; if none has been
        evaluated, the line of the first one, which says why."""
        (test,) = self.study.tests_of(block)
        lines = [self.summary.line(block.id, row.id, name, test) for name in self.decoding_names]
        scored = [line for line in lines if line is not None and pd.notna(line["accuracy"])]
        if not scored:
            return next((line for line in lines if line is not None), None)
        return next((line for line in scored if bool(line["stochastic"]) == drawn), None)

    def _paper_line(self, row: str) -> Line | None:
        """Return the paper's numbers of a row, in the columns for sampling: the paper does not say how it decodes."""
        if self.paper is None:
            return None
        rows = {id: printed for block in self.paper.blocks.values() for id, printed in block.rows.items()}
        if row not in rows:
            return None
        form = percent if self.paper.unit == "share" else "{:.2f}".format
        cells: list[Cell] = []
        for block in self.study.blocks:
            score = rows[row].tests.get(block.id)
            cells += [printed_cell(score and score.accuracy, form), Cell(), *[Cell()] * len(self.extra)]
        return Line(Cell("paper"), cells, indent=True)

    # ---- details

    def draws(self, block: Block, row: Row, line: dict[str, Any]) -> list[DrawStatistics]:
        """Return statistics of the draws of every step and training seed in the answers that a line is about."""
        records = self.records.evaluations(block.id, row.id)
        tests = [record.decodings[line["decoding"]].tests[line["test"]] for record in records]
        return [draws for by_seed in zip(*(test.draws for test in tests), strict=True) for draws in by_seed]

    def _detail(self) -> Grid:
        names = ("n", "Accuracy (%)", "95 % interval", "Strict (%)", "No answer (%)", "Tokens/question")
        names += ("Steps explained (%)", "Entropy (bits)", "Seeds agree (%)")
        sections = self.by_test(lambda block, row, _: self._detail_lines(block, row))
        return Grid("Details", (*(Column(name) for name in names), *self._nats.columns), sections)

    def _detail_lines(self, block: Block, row: Row) -> Iterable[Line]:
        (test,) = self.study.tests_of(block)
        for name in self.decoding_names:
            line = self.summary.line(block.id, row.id, name, test)
            if line is None or pd.isna(line["accuracy"]):
                continue
            draws = self.draws(block, row, line)
            agreement = [one.agreement for one in draws if one.agreement is not None]
            cells = (
                cell(line["n"], "{:,}".format),
                self.score(line, line["spread"]),
                interval_cell(line),
                cell(line["strict"], percent),
                cell(line["no_answer"], percent),
                cell(line["tokens_per_question"], "{:.1f}".format),
                _mean_cell([one.share for one in draws], percent),
                _entropy(draws),
                _mean_cell(agreement, percent),
                *self._nats.cells(block, row),
            )
            decoding = f" ({'sampled' if line['stochastic'] else 'greedy'}: {decoding_label(name)})"
            yield Line(Cell(line["title"] + self.dead_r_suffix(line) + decoding), cells, row.indent)

    def legend(self) -> Iterator[str]:
        yield self.scoring
        yield self.about_strict()
        yield """Sampled: a transformer draws its tokens; a method with R draws R and takes the likeliest tokens. Mean
        and spread over decoding seeds (over training seeds where there are several). Greedy: nothing is drawn; the mean
        of R takes the place of a draw."""
        yield f"""Entropy: that of what the sampled answers drew, over questions and seeds, in bits, and the most that
        as many uniform draws could have; mean over steps, without those that break the rules. Seeds agree: of
        the pairs of decoding seeds that both draw something for a question, how many draw the same (a dash below
        {FEWEST_PAIRS} pairs); uniform draws among n do so in one of n cases. A model that always draws the same has
        entropy 0 and agreement 100 %."""
        yield from self._nats.about_columns()
        if verdicts := [verdict for block in self.study.blocks for verdict in self._verdicts(block)]:
            yield f"""Default decoding, paired tests on the same questions (Holm's correction): {"; ".join(verdicts)}.
            {self.about_untested(self.paired_tests)}"""
        corpora = ", ".join(f"{block.title}: {block.data.train}" for block in self.study.blocks)
        yield f"Data are generated, and their names give the sizes: {corpora}."
        if self.paper:
            yield f"Lines 'paper': {self.paper.place}, {self.paper.setting}."
        else:
            yield NOT_THE_PAPERS

    def _verdicts(self, block: Block) -> Iterator[str]:
        """Yield the tested differences between a block's rows, in words."""
        titles = self.study.row_titles
        for pair in self.summary.pairs.to_dict("records"):
            if pair["block"] == block.id:
                place = f"{100 * abs(pair['difference']):.2f} points {'above' if pair['difference'] > 0 else 'below'}"
                test = "no test" if pd.isna(pair["p_holm"]) else f"p = {pair['p_holm']:.2g}"
                yield f"{block.title}: {titles[pair['a']]} {place} {titles[pair['b']]} ({test})"


def _entropy(draws: list[DrawStatistics]) -> Cell:
    most = sum(one.maximum for one in draws) / len(draws) if draws else 0.0
    return _mean_cell([one.entropy for one in draws], lambda value: f"{value:.2f} of {most:.2f}")


def _mean_cell(values: list[float], form: Callable[[float], str]) -> Cell:
    return Cell(form(sum(values) / len(values))) if values else Cell()


class LongRangeTable(SyntheticTable):
    """Every block is one value of K, the number of steps."""

    extra = ("Sampled strict (%)", "Greedy strict (%)", "Sampled repeats (%)", "Greedy repeats (%)")

    def extra_cells(self, block: Block, row: Row) -> Iterator[Cell]:
        lines = [self.evaluated_line(block, row, drawn) for drawn in (True, False)]
        yield from (Cell() if line is None else cell(line["strict"], percent) for line in lines)
        for line in lines:
            answers = line and self.records.answers(block.id, row.id, line["decoding"], ("text",))
            yield Cell() if answers is None else Cell(percent(fmean(map(repeats, answers["text"]))))

    scoring = """Each of K - 1 steps has five random digits, and the last repeats those of one of them. Right: the five
        are those of an earlier step that was written. All methods write every step, and every step is scored. Repeats:
        of the steps before the last, the share that equals an earlier one, which random ones hardly ever do. The last
        step has twice as many steps before it as they have on average, or more (K = 4: three times as many), and a
        model that repeats steps by habit repeats one there as many times as often: only hits that are more frequent
        than that are evidence of memory."""
