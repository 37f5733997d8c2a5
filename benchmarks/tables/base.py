"""The base class of all tables: rows, sections, notes and the texts that legends share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from benchmarks.paper.numbers import PaperTable, Printed, paper_table
from benchmarks.records.results import StudyRecords, to_frame
from benchmarks.records.schema import PublishedScores
from benchmarks.records.statistics import ALPHA, FEWEST_TRAININGS
from benchmarks.records.summary import KEYS, LINES, Summary, groups, summarise
from benchmarks.scoring.scorers import scorer_of_recorded
from benchmarks.studies.specs import Block, DecodingSpec, Row
from benchmarks.studies.study import Study
from benchmarks.tables.markup import DASH, Cell, Column, Document, Grid, Line, Section

TIE = "="
PUBLISHED = "As published (never ranked)"  # heading of rows of outputs alone
# Texts of several legends
RANKS = f"""Bold: the most accurate row of its block and test set, if paired tests on the same questions separate it
    from every other ranked row. {TIE}: otherwise, the most accurate row and all rows that the tests do not separate
    from it. Controls are not ranked, and may be higher."""
NOT_THE_PAPERS = "This study's setting is not the paper's; the paper's numbers are in benchmarks/paper/numbers.yaml."
PASSES = """Passes/question: calls of a transformer, thinking included, for the batch that the question is answered in;
    a question waits for the longest of its batch, so it counts them all."""


@dataclass(frozen=True)
class ExternalRows:
    """Rows that were made elsewhere. ``lines``: where they come from (column ``source``), and the columns of
    ``Summary.lines``; a row of outputs alone, without records, has an empty ``block``. ``about``: paragraphs of a
    legend on what they are, and on what was left out."""

    lines: pd.DataFrame
    about: tuple[str, ...]

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]], about: Sequence[str]) -> ExternalRows:
        frame = pd.DataFrame(lines, columns=["source", *LINES]).astype({"source": "string", **LINES})
        return cls(frame, tuple(about))


def published_rows(records: StudyRecords) -> ExternalRows:
    held = {(one.title, one.test, one.file): one for one in records.published}
    shown, missing = [], []
    for row in records.study.published:
        for test, file in row.outputs.items():
            if found := held.get((row.title, test, Path(file).name)):
                shown.append(found)
            else:
                missing.append(f"{row.title} ({records.test_title(test)}), whose outputs are `{file}`")
    about = [about_published(one) for one in shown]
    if missing:
        about.append(f"As published, and not at hand when the records were collected: {'; '.join(missing)}.")
    return ExternalRows.of([published_line(one) for one in shown], about)


def published_line(scores: PublishedScores) -> dict[str, Any]:
    """Return the line of scored outputs, with a note if some outputs or questions do not count."""
    lacks = [f"outputs for {scores.n:,} of {scores.of:,} questions"] if scores.n < scores.of else []
    lacks += [f"lines that match no question: {scores.unmatched:,}"] if scores.unmatched else []
    numbers = {"n", "n_distinct", "accuracy", "low", "high", "strict", "no_answer"}
    return scores.model_dump(include={"title", "test", *numbers}) | {
        "source": PUBLISHED,
        "block": "",
        "row": scores.title,
        "decoding": "default",
        "mark": "",
        "training_seeds": 0,
        "dead_trainings": 0,
        "reason": f"{scores.file}: {'; '.join(lacks)}" if lacks else None,
    }


def about_published(scores: PublishedScores) -> str:
    source, scorer = f" ({scores.source})" if scores.source else "", scores.scorer
    text = f"{scores.title}: outputs of {scores.file}{source} for {scores.test}"
    return f"{text}, scored by `{scorer.name}`, version {scorer.version}."


@dataclass
class TableBuilder(ABC):
    """Turns the records of a study into a document. ``notes`` collects the reasons why numbers are missing. ``beside``:
    rows made elsewhere, for the tables that show any; default: those that the study names."""

    topic: ClassVar[str] = ""  # what the title says behind that of the study
    records: StudyRecords
    beside: ExternalRows | None = None
    notes: list[str] = field(default_factory=list, init=False)

    @property
    def study(self) -> Study:
        return self.records.study

    @cached_property
    def summary(self) -> Summary:
        """The numbers of the decodings that the table shows."""
        return summarise(self.records, *self.decoding_names)

    @classmethod
    def shows(cls, spec: DecodingSpec) -> bool:
        """Return whether the table shows a decoding other than `default`, which every table shows."""
        return False

    @property
    def title(self) -> str:
        return f"{self.study.title}: {self.topic}" if self.topic else self.study.title

    @property
    def generalisation(self) -> str:
        """A legend text: what the tests of the study generalise to."""
        if (count := len(self.study.seeds)) == 1:
            return "The tests generalise to other questions for these trained models, not to other training seeds."
        tests = (self.summary.pairs, self.summary.against_controls, self.paired_tests)
        few = self.about_untested(*tests)
        if any({"mcnemar", "permutation"} & set(frame["kind"]) for frame in tests):
            few += " Two rows that have one training each so far are tested over questions alone."
        return f"""The tests (t tests of the mean difference, whose variance over questions and over the trainings of
            either row adds up) generalise to other questions and to other training seeds. The fewer trainings a row has
            (here {count}), the larger a difference has to be. {few}"""

    @staticmethod
    def about_untested(*tests: pd.DataFrame) -> str:
        """Return a legend text on why some pairs of rows are not tested, or an empty one if all are."""
        if not any("untested" in set(frame["kind"]) for frame in tests):
            return ""
        return f"""Two rows are tested only if both have at least {FEWEST_TRAININGS} trainings, or one each: with fewer,
            how far a row's trainings differ is hardly known."""

    def about_own_decodings(self) -> Iterator[str]:
        """Yield a legend text for each decoding of a table that a row has in another way."""
        for row in self.study.rows:
            for name in self.decoding_names:
                if name in row.decodings:
                    yield f"{self.study.row_titles[row.id]}, in its own way: {described(name, row.decodings[name])}"

    @property
    def separation(self) -> str:
        """A legend text: by which tests rows are separated."""
        if self.study.comparisons is None:
            return f"Separated: p < {ALPHA} after Holm's correction for all pairs of ranked rows."
        return f"""Separated: p < {ALPHA} after Holm's correction. Comparisons that the study plans are corrected for
            each other alone, within a block and test set; all other pairs were looked up afterwards, and are corrected
            for all pairs of rows."""

    @property
    def about_interval(self) -> str:
        """A legend text: the kind of the 95 % intervals."""
        if len(self.study.seeds) > 1:
            return """of the t distribution, over questions and training seeds, or Wilson's where all answers are right
                or all are wrong; of a row with one training so far, over questions"""
        return "Wilson's, or a bootstrap over questions where a question's score is a mean over seeds"

    def about_repeated(self) -> str:
        """Return a legend text on how duplicate questions are counted, or an empty one if no test set has any."""
        lines = self.summary.lines.dropna(subset="n")
        repeating = lines.loc[lines["n_distinct"] < lines["n"], "test"].unique()
        if not len(repeating):
            return ""
        return f"""{", ".join(map(self.test_title, repeating))}: accuracies are of all n questions, of which some stand
            there several times; tests and intervals are over the distinct ones, each scored by its mean."""

    @property
    def trainings_column(self) -> tuple[Column, ...]:
        """The column of :meth:`each_training`, if the study has several training seeds."""
        return (Column("Each training (%)"),) if len(self.study.seeds) > 1 else ()

    def each_training(self, line: Mapping[str, Any]) -> tuple[Cell, ...]:
        """Return a cell with the accuracy of each training, if the study has several training seeds. Where some learn
        a task and others do not, mean and spread describe none of them."""
        if not self.trainings_column:
            return ()
        return (Cell(self._by_training[tuple(line[key] for key in KEYS)]),)

    @cached_property
    def _by_training(self) -> dict[tuple[str, ...], str]:
        def listed(runs: pd.DataFrame) -> str:
            return ", ".join(DASH if pd.isna(score) else f"{100 * score:.1f}" for score in runs["accuracy_mean"])

        return {key: listed(runs) for key, runs in groups(to_frame(self.records), KEYS)}

    @property
    def about_trainings(self) -> str:
        return "Each training: its own accuracy, in the order of seeds." if self.trainings_column else ""

    def questions(self) -> Grid:
        """Return a grid with the default decoding's number of questions, 95 % interval, ± and what that covers."""
        columns = (Column("n"), Column("95 % interval"), Column("±"), Column("± over"), *self.trainings_column)
        return Grid("Questions and intervals of the default decoding", columns, self.by_test(self._question_lines))

    def _question_lines(self, block: Block, row: Row, test: str) -> Iterable[Line]:
        line = self.line(block, row, test)
        spread = cell(line["spread"], percent), cell(line["spread_over"], str)
        cells = question_count(line), interval_cell(line), *spread, *self.each_training(line)
        yield Line(self.row_title(line), cells, row.indent)

    def about_questions(self) -> str:
        return f"""Last table: n questions; the 95 % interval of the default decoding's accuracy
            ({self.about_interval}); its ±, which says nothing about other questions, and what that covers.
            {self.about_trainings} {self.about_repeated()}"""

    @cached_property
    def paper(self) -> PaperTable | None:
        """The paper's table with the same setting as the study, if any."""
        return paper_table(self.study.paper) if self.study.paper else None

    @abstractmethod
    def grids(self) -> list[Grid]: ...

    @abstractmethod
    def legend(self) -> Iterable[str]:
        """Yield paragraphs that explain every column, spread and mark of this study's table."""

    @property
    def frame(self) -> pd.DataFrame:
        """The numbers, for CSV and JSON."""
        return self.summary.lines

    @property
    def paired_tests(self) -> pd.DataFrame:
        """The paired tests that the table is based on."""
        return self.summary.pairs

    @property
    def extra_frames(self) -> dict[str, pd.DataFrame]:
        """More numbers for JSON alone, by their key there."""
        return {}

    def document(self, footer: dict[str, str]) -> Document:
        grids, legend = self.grids(), [" ".join(text.split()) for text in self.legend()]
        return Document(self.title, grids, legend, self.notes, footer)

    @property
    def test_names(self) -> tuple[str, ...]:
        return self.study.evaluation.tests

    def test_title(self, test: str) -> str:
        return self.records.test_title(test)

    def about_strict(self) -> str:
        """Return a legend text on the column Strict, which depends on the scorers of the study's test sets."""
        tests: dict[str, list[str]] = {}  # by what strict means for them
        for test in self.test_names:
            tests.setdefault(scorer_of_recorded(test).strict_means, []).append(self.test_title(test))
        parts = [f"{meaning} ({', '.join(titles)})" for meaning, titles in tests.items()]
        return f"Strict: {'; '.join(parts) if len(parts) > 1 else next(iter(tests))}."

    def decodings(self) -> dict[str, DecodingSpec]:
        shown = self.study.evaluation.decodings.items()
        return {name: spec for name, spec in shown if name != "default" and self.shows(spec)}

    @property
    def decoding_names(self) -> tuple[str, ...]:
        return "default", *self.decodings()

    def line(self, block: Block, row: Row, test: str | None = None) -> dict[str, Any]:
        """Return the line of a row's default decoding on a test set of its block (default: the first). Every row of a
        block has one; if there is no run, it says why."""
        line = self.summary.line(block.id, row.id, "default", test or self.study.tests_of(block)[0])
        assert line is not None
        return line

    def note(self, reason: Any) -> str:
        """Add a reason to the notes and return its number as text. The same reason always has the same number."""
        if pd.isna(reason) or not reason:
            return ""
        if reason not in self.notes:
            self.notes.append(reason)
        return str(self.notes.index(reason) + 1)

    def row_title(self, line: Mapping[str, Any]) -> Cell:
        """Return a row's title, with a note on problems that its training ended with."""
        return Cell(line["title"], self.dead_r_suffix(line), mark=self.note(line["warning"]))

    def dead_r_suffix(self, line: Mapping[str, Any]) -> str:
        """Return what the title of a row adds if its R was dead when training ended: it answers as a row without R."""
        count, trained = line["dead_trainings"], len(self.study.seeds)
        if not count:
            return ""
        return " (R dead)" if count >= trained else f" (R dead in {count} of {trained} trainings)"

    def missing_cell(self, line: Mapping[str, Any]) -> Cell:
        return Cell("not run", mark=self.note(line["reason"]))

    def missing_seeds(self, line: Mapping[str, Any]) -> str:
        """Return the note on a mean that lacks some training seeds."""
        return self.note(line["reason"]) if line["training_seeds"] < len(self.study.seeds) else ""

    def score(self, line: Mapping[str, Any], spread: Any = None, otherwise: str = "") -> Cell:
        """Return a row's accuracy with its ``spread`` or, if there is none, what is ``otherwise`` in its place."""
        if pd.isna(line["accuracy"]):
            return self.missing_cell(line)
        tail = otherwise if pd.isna(spread) else f" ± {percent(spread)}"
        return Cell(percent(line["accuracy"]), tail, mark=self.missing_seeds(line))

    def accuracy(self, line: Mapping[str, Any]) -> Cell:
        """Return a row's accuracy with its spread, in bold if it is the best or with the mark of a tie."""
        without = {"nothing drawn": " (det.)", "one seed": " (1 seed)"}.get(line["spread_over"], "")
        score = self.score(line, line["spread"], without)
        if line["mark"] == "tie":
            return replace(score, mark=f"{TIE} {score.mark}".strip())
        return replace(score, bold=line["mark"] == "best")

    def rows(self, block: Block) -> Iterable[tuple[str, list[Row]]]:
        """Yield a block's rows under headings: first the rows that are ranked, then the controls."""
        rows_here = self.study.rows_of(block)
        for heading, control in ((block.title, False), (f"{block.title} (controls, never ranked)", True)):
            if rows := [row for row in rows_here if row.control == control]:
                yield heading, rows

    def all_rows(self, block: Block) -> list[Row]:
        """Return the rows of a block in the order of :meth:`rows`."""
        return [row for _, rows in self.rows(block) for row in rows]

    def by_block(self, lines: Callable[[Block, Row], Iterable[Line]]) -> list[Section]:
        return [
            (block.title, [line for row in self.all_rows(block) for line in lines(block, row)])
            for block in self.study.blocks
        ]

    def by_test(self, lines: Callable[[Block, Row, str], Iterable[Line]]) -> list[Section]:
        sections = []
        for block in self.study.blocks:
            for test in self.study.tests_of(block):
                of_test = [line for row in self.all_rows(block) for line in lines(block, row, test)]
                sections.append((f"{block.title} · {self.test_title(test)}", of_test))
        return sections


def decoding_heading(decoding: str) -> str:
    name = decoding_label(decoding)
    return name[0].upper() + name[1:]


def described(name: str, spec: DecodingSpec) -> str:
    """Return a decoding in words, as a sentence of a legend."""
    nucleus = f" from the likeliest that make up a share of {spec.top_p:g}" if spec.top_p < 1 else ""
    tokens = "the likeliest" if spec.tokens == "greedy" else f"drawn at temperature {spec.temperature:g}{nucleus}"
    latents = {
        "default": "as the method's default is",
        "sample": "drawn where the method can draw them",
        "mean": "the means in place of draws (a row that draws none answers as by default)",
        "encoded": "those that training encodes from the gold steps and answer, what perfect draws could reach (the "
        "last one is encoded from the gold answer itself)",
    }
    seeds = f"{spec.seeds} seeds" if spec.seeds > 1 else "1 seed"
    only = f"; for {', '.join(spec.only)} only" if spec.only else ""
    options = "".join(f", {option} {value}" for option, value in spec.options.items())
    return f"{decoding_heading(name)}: tokens {tokens}, latents {latents[spec.latents]}{options}; {seeds}{only}."


def decoding_label(name: str) -> str:
    """Return a decoding's name as part of a sentence. Words of one letter are variables and become capitals."""
    return " ".join(part.upper() if len(part) == 1 else part for part in name.split("_"))


def cell(value: Any, form: Callable[[Any], str], note: str = "", spread: Any = None) -> Cell:
    """Return a formatted number with its spread, or a dash with a ``note`` on why the number is missing."""
    if pd.isna(value):
        return Cell(mark=note)
    return Cell(form(value), "" if pd.isna(spread) else f" ± {form(spread)}")


def printed_cell(value: Printed | None, form: Callable[[float], str]) -> Cell:
    """Return a number of the paper with its spread, or a dash if the paper gives none."""
    return Cell() if value is None else cell(value.mean, form, spread=value.spread)


def seconds_cell(value: Any, note: str = "", spread: Any = None) -> Cell:
    """Return seconds and their spread, both with the number of decimals of the seconds."""
    digits = 2 if pd.isna(value) else decimals(value)
    return cell(value, lambda number: f"{number:.{digits}f}", note, spread)


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def points(difference: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+.2f}"


def question_count(line: Mapping[str, Any]) -> Cell:
    """Return the number of questions of a line, and of distinct ones if the test set has duplicates."""
    if pd.isna(line["n"]) or line["n_distinct"] == line["n"]:
        return cell(line["n"], "{:,}".format)
    return Cell(f"{line['n']:,}", f" ({line['n_distinct']:,} distinct)")


def interval_cell(line: Mapping[str, Any], form: Callable[[float], str] = percent) -> Cell:
    """Return the 95 % interval of a line's number, by default an accuracy, or a dash if it has none."""
    return Cell() if pd.isna(line["low"]) else Cell(f"{form(line['low'])} to {form(line['high'])}")


def p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def difference(test: Mapping[str, Any] | None) -> tuple[Cell, Cell]:
    """Return the difference that a paired test found and its corrected p-value, or dashes without a test."""
    if test is None:
        return Cell(), Cell()
    return cell(test["difference"], points), cell(test["p_holm"], p_value)


def seconds(value: float) -> str:
    return f"{value:.{decimals(value)}f}"


def decimals(value: float) -> int:
    """Return the number of decimals for a time: two, or four if two would show only zeros."""
    return 2 if value >= 0.005 or value == 0 else 4


def count(value: float) -> str:
    """Format a number of parameters in millions or billions."""
    return f"{value / 1e9:.2f}B" if value >= 1e9 else f"{value / 1e6:.2f}M"


def flops(value: float) -> str:
    return f"{value:.2e}".replace("e+", "e")
