"""How many training seeds and questions separate two rows whose accuracies differ by so many points.

The accuracy of a row with S trainings over Q questions varies, by the records of a study, because of

* ``training``, the variance of a row's accuracy between its trainings over endless questions;
* ``question``, the variance between questions of the difference of two rows, over endless trainings (paired: what is
  hard for both rows cancels);
* ``both``, the variance of one training's correctness on one question that neither explains: another training has other
  questions right.

The test of two rows (:func:`benchmarks.records.statistics.paired_test`) estimates the variance of their difference as
that of the questions plus that of either row's trainings. On average, it finds

    (question + 2 both / S) / Q  +  2 (training + both / Q) / S

which counts ``both`` twice, so that it errs on the large side. Power is the probability that the t test is below alpha
(noncentral t with the test's degrees of freedom). Of a family of m comparisons, each has to be below ALPHA / m: Holm's
correction asks that of the smallest p-value, and less of the others.

With one training of each row, the test is over the questions alone, and says nothing about other trainings: the
variance is (question + 2 both) / Q.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from tabulate import tabulate

from benchmarks.archive import unpacked
from benchmarks.records.results import StudyRecords, load_collected
from benchmarks.records.statistics import ALPHA, FEWEST_TRAININGS, Uncertainty
from benchmarks.studies.specs import Block
from benchmarks.studies.study import Study
from methods.errors import InputError

WANTED = 0.8  # probability of separating two rows that differ
POINTS = (2, 5, 10, 20)  # differences of accuracy
SEEDS = (1, FEWEST_TRAININGS, 5, 10)  # trainings of each row
MOST_SEEDS = 100  # that are tried
# Numbers of questions that are tried, 6 % apart, to two digits
QUESTIONS = tuple(sorted({int(float(f"{count:.1e}")) for count in np.geomspace(10, 100_000, 160)}))


@dataclass(frozen=True)
class Variances:
    """Variances of correctness, as shares of 1 (see the module)."""

    training: float
    question: float
    both: float

    @classmethod
    def seen(cls, rows: Mapping[str, pd.DataFrame], pairs: Sequence[tuple[str, str]]) -> Variances:
        """Estimate the variances from rows with several trainings each (questions x trainings): the mean over the rows
        of the pairs, and over the pairs. None is below 0."""
        named = dict.fromkeys(row for pair in pairs for row in pair)
        both = {row: _residual(rows[row].to_numpy()) for row in named}
        training = [_variance(rows[row].mean()) - both[row] / len(rows[row]) for row in named]
        question = []
        for a, b in pairs:
            explained = both[a] / rows[a].shape[1] + both[b] / rows[b].shape[1]
            question.append(_variance((rows[a].mean(axis=1) - rows[b].mean(axis=1)).dropna()) - explained)
        means = (float(np.mean(values)) for values in (training, question, [*both.values()]))
        return cls(*(max(mean, 0.0) for mean in means))

    def of_difference(self, seeds: int, questions: int) -> Uncertainty:
        """Return the uncertainty of a difference that the test of two rows finds on average."""
        if seeds == 1:
            return Uncertainty.of(((self.question + 2 * self.both) / questions, questions))
        row = ((self.training + self.both / questions) / seeds, seeds)
        return Uncertainty.of(((self.question + 2 * self.both / seeds) / questions, questions), row, row)


def _residual(correct: np.ndarray) -> float:
    """Return the variance that neither questions nor trainings explain (two-way analysis of variance)."""
    left = correct - correct.mean(axis=1, keepdims=True) - correct.mean(axis=0) + correct.mean()
    return float((left**2).sum()) / ((len(correct) - 1) * (correct.shape[1] - 1))


def _variance(values: pd.Series) -> float:
    return float(values.to_numpy().var(ddof=1))


def power(variances: Variances, difference: float, seeds: int, questions: int, alpha: float = ALPHA) -> float:
    """Return the probability that the test separates two rows whose accuracies differ by ``difference`` (of 1)."""
    found = variances.of_difference(seeds, questions)
    if not found.variance:
        return 1.0
    bound, shift = stats.t.isf(alpha / 2, found.freedom), difference / found.deviation
    both = stats.nct.sf(bound, found.freedom, shift) + stats.nct.cdf(-bound, found.freedom, shift)
    return 1.0 if np.isnan(both) else float(both)  # scipy has none of a very large shift


def questions_needed(variances: Variances, difference: float, seeds: int, alpha: float = ALPHA) -> int | None:
    """Return the fewest of :data:`QUESTIONS` that separate such a difference with probability :data:`WANTED`, or None:
    if trainings differ too much, no number of questions helps."""
    return next((n for n in QUESTIONS if power(variances, difference, seeds, n, alpha) >= WANTED), None)


def seeds_needed(variances: Variances, difference: float, questions: int, alpha: float = ALPHA) -> int | None:
    """Return the fewest trainings of each row that separate such a difference over so many questions with probability
    :data:`WANTED` and generalise to other trainings, or None if :data:`MOST_SEEDS` are too few."""
    tried = range(FEWEST_TRAININGS, MOST_SEEDS + 1)
    return next((seeds for seeds in tried if power(variances, difference, seeds, questions, alpha) >= WANTED), None)


def render(study: Study, results: Path) -> str:
    """Return a table for each block and test set of a study whose rows were trained several times, and what it means.

    Read what ``collect`` wrote, packed or not. Raise :class:`InputError` if no two rows have answers of several
    trainings.
    """
    with unpacked(results, [study.name, *study.shared]) as whole:
        parts = list(_parts(load_collected(study, whole)))
    if not parts:
        raise InputError(
            f"study {study.cli_name} has no two rows with answers of several trainings in {results.absolute()}, so how "
            "far trainings differ is not known: name a study with several `seeds`, such as stories_seeds"
        )
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in _notes(study))])


def _parts(records: StudyRecords) -> Iterator[str]:
    """Yield a table for each block and test set with rows to compare."""
    study = records.study
    for block in study.blocks:
        for test in study.tests_of(block):
            rows = _trained_often(records, block, test)
            ranked = [row.id for row in study.rows_of(block) if not row.control]
            pairs = study.planned(block) if study.comparisons else tuple(combinations(ranked, 2))
            if pairs := [pair for pair in pairs if rows.keys() >= {*pair}]:
                title = f"## {block.title} · {records.test_title(test)}"
                yield f"{title}\n\n{_table(Variances.seen(rows, pairs), rows, pairs)}"


def _trained_often(records: StudyRecords, block: Block, test: str) -> dict[str, pd.DataFrame]:
    """Return the correctness of the rows of a block that have several trainings."""
    found = {}
    for row in records.study.rows_of(block):
        correct = records.correctness(block.id, row.id, "default").get(test)
        if correct is not None and correct.shape[1] > 1:
            found[row.id] = correct
    return found


def _table(variances: Variances, rows: Mapping[str, pd.DataFrame], pairs: Sequence[tuple[str, str]]) -> str:
    if not variances.of_difference(2, 2).variance:
        return "All answers are right, or all are wrong: nothing varies, so that nothing can be estimated."
    alpha, asked, lines = ALPHA / len(pairs), max(map(len, rows.values())), []
    for points in POINTS:
        needed = (questions_needed(variances, points / 100, seeds, alpha) for seeds in SEEDS)
        questions = [f"{count:,}" if count else f">{QUESTIONS[-1]:,}" for count in needed]
        seeds = seeds_needed(variances, points / 100, asked, alpha)
        lines.append([f"{points} points", *questions, str(seeds or f">{MOST_SEEDS}")])
    header = ["Difference", *(f"{seeds} seed{'s' * (seeds > 1)}" for seeds in SEEDS), f"Seeds, {asked:,} questions"]
    align = ["left", *["right"] * (len(SEEDS) + 1)]
    table = tabulate(lines, header, tablefmt="github", disable_numparse=True, colalign=align)
    trainings = sorted({rows[row].shape[1] for pair in pairs for row in pair})
    seen = {name: 100 * value**0.5 for name, value in vars(variances).items()}
    spreads = (
        f"{seen['training']:.1f} between the trainings of a row, {seen['question']:.1f} between questions (of the "
        f"difference of two rows), {seen['both']:.1f} of one training on one question"
    )
    return (
        f"{table}\n\nSeen in {' to '.join(map(str, trainings))} trainings of {len({*sum(pairs, ())})} rows on "
        f"{asked:,} questions, as standard deviations in points: {spreads}. Comparisons in the "
        f"family: {len(pairs)}."
    )


def _notes(study: Study) -> Iterator[str]:
    family = "the planned comparisons" if study.comparisons else "all pairs of ranked rows (the study plans none)"
    yield (
        f"Test questions needed to detect a difference of this size with {WANTED:.0%} power (p < {ALPHA} after Holm's "
        f"correction for {family}, assuming it is the smallest p), by number of trainings of each row. "
        f">{QUESTIONS[-1]:,}: most often, trainings differ too much for any number of questions. Last column: "
        "trainings of each row needed on the study's own questions."
    )
    yield (
        "1 seed: of these two trained models alone, since one training of each row says nothing about others. Where "
        "trainings differ by more than the difference, the other models of these rows may differ the other way."
    )
    yield (
        "This is for a typical pair, by the mean variances of rows and pairs: rows whose trainings differ more need "
        "more. From few trainings, the variance between trainings is known only roughly."
    )
