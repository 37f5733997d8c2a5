"""Scores outputs that no run here made: JSON lines of what any model answered, such as its authors have published.

Each line has an `output`, and says what it answers by an `id` (such as `gsm8k-test-0`), an `index` in the test set's
order, counted from 0, or the `question`. Outputs are judged by the scorer that judges our runs, and compared with each
other and with runs question by question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pandas as pd
from tabulate import tabulate

from benchmarks.comparison import TRACKED, gold_of, read_side, require_same_questions
from benchmarks.data import Record, get_dataset, load_records, normalise
from benchmarks.data.cards import refusal
from benchmarks.data.records import first_alike
from benchmarks.files import json_rows, read_text, sha256, shortened, write_texts
from benchmarks.records.schema import PublishedScores, ScoredBy
from benchmarks.records.statistics import compare_rows, correctness, interval
from benchmarks.scoring import SCORERS, Reference, Score, Scorer
from benchmarks.scoring.scorers import scorer_of
from benchmarks.studies.specs import Form
from benchmarks.studies.study import Study
from benchmarks.tables.base import cell, interval_cell, percent, points
from benchmarks.tables.markup import DASH
from methods.errors import InputError, suggestion

FORM = "give JSON lines, each with an `output` and an `id`, an `index` (from 0) or the `question`"
VERDICTS = ["id", "same_as", "gold", "text", "extracted", "correct", "strict"]
UNMATCHED = ["line", "why", "output"]
UNMATCHED_SHOWN = 20  # lines; all are counted


@dataclass(frozen=True)
class Questions:
    """The questions that outputs are matched with, and the scorer of their answers. ``name``: of the test set, or of
    the file that brings its own questions. ``by_index``: by their place there, or by the `index` of that file's lines.
    """

    name: str
    by_index: Mapping[int, Record]
    scorer: Scorer
    is_test: bool = True

    @cached_property
    def records(self) -> Sequence[Record]:
        return [*self.by_index.values()]

    @cached_property
    def same_as(self) -> dict[str, str]:
        """For each id, that of the first question that is the same."""
        ids = [record.id for record in self.records]
        return dict(zip(ids, first_alike(ids, [record.question for record in self.records]), strict=True))

    def knows(self, row: Mapping[str, Any]) -> bool:
        """Return whether a line's `id` or `index` is that of a question here: files of other people may number a file's
        questions anew."""
        return self.is_test or not isinstance(row.get("question"), str)

    def score(self, record: Record, text: str) -> Score:
        """Score an answer to one of the questions."""
        return self.scorer.score(text, Reference(record.question, record.answer, len(record.steps)))


@dataclass(frozen=True)
class Scores:
    """What :func:`score` found."""

    questions: Questions
    # outputs, n, of, accuracy, low, high (95 % interval), strict, no_answer, unmatched; shares of 1. `n` of the `of`
    # questions have an output; the others count for nothing
    lines: pd.DataFrame
    tests: pd.DataFrame  # of all pairs, as of `compare_rows`
    unmatched: pd.DataFrame  # outputs, and the columns of `UNMATCHED`
    shares: pd.DataFrame  # one line per question, one column per file or run: the share of its answers that are right


def score(
    names: Sequence[str],
    test: str | None,
    scorer: str | None,
    results: Path,
    decoding: str = "default",
    study: str | None = None,
) -> Scores:
    """Score files of outputs, and test all pairs of them, and of runs, over the questions that both answered. A name
    that is no file names a run or row, as for :func:`benchmarks.comparison.compare`; folders that it names hold results
    of ``study``, if it is given. The questions and gold answers are those of the test set ``test``, or, with a
    ``scorer`` instead, those that the first file brings along (`question` and `gold`). Raise :class:`InputError` if a
    file cannot be read or matches no question."""
    if (test is None) == (scorer is None):
        raise InputError("name the test set that was answered (--test), or a --scorer if the file has its own `gold`")
    questions = questions_of_test(test) if test else _own_questions(Path(names[0]), str(scorer))
    labels = _labels(names)
    rows = {label: _scored(name, questions, results, decoding, study) for name, label in labels.items()}
    correct = {label: correctness(verdicts) for label, (verdicts, _) in rows.items()}
    unmatched = [lines.assign(outputs=label) for label, (_, lines) in rows.items()]
    shares = pd.DataFrame({label: verdicts.groupby("id")["correct"].mean() for label, (verdicts, _) in rows.items()})
    return Scores(
        questions=questions,
        lines=pd.DataFrame([_line(label, *row, correct[label], len(questions.records)) for label, row in rows.items()]),
        tests=compare_rows(correct),
        unmatched=pd.concat(unmatched, ignore_index=True).reindex(columns=["outputs", *UNMATCHED]),
        shares=shares.reindex([record.id for record in questions.records]).rename_axis("id").reset_index(),
    )


def score_published(study: Study, results: Path) -> list[PublishedScores]:
    """Score the outputs that a study names in `published`, as far as they are at hand. Raise :class:`InputError` if a
    file is missing or cannot be read."""
    return [published_scores(row.title, row.source, test, path, results) for row, test, path in study.published_files()]


def published_scores(title: str, source: str, test: str, path: Path, results: Path) -> PublishedScores:
    """Score one file of outputs for a test set. It is shown as ``title``; an empty one stands for the file's stem."""
    scores = score([str(path)], test, None, results)
    (line,), scorer, same_as = scores.lines.to_dict("records"), scores.questions.scorer, scores.questions.same_as
    return PublishedScores(
        title=title or path.stem,
        source=source,
        test=test,
        file=path.name,
        sha256=sha256(path),
        scorer=ScoredBy(name=scorer.name, version=scorer.version),
        n_distinct=len({same_as[id] for id in scores.shares.dropna()["id"]}),
        **{key: line[key] for key in ("n", "of", "unmatched", "accuracy", "low", "high", "strict", "no_answer")},
    )


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Return what each name is shown as: files by their stem, unless two have the same."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} is given twice: name each file or run once")
    stems = [Path(name).stem if Path(name).is_file() else name for name in names]
    unclear = {stem for stem in stems if stems.count(stem) > 1} | {"id"}  # which is a column beside them
    return {name: name if stem in unclear else stem for name, stem in zip(names, stems, strict=True)}


def questions_of_test(test: str) -> Questions:
    """Return the questions of a test set, whatever study asks them."""
    card = get_dataset(test).card
    records = load_records(test, cast(Form, card.forms[0]), "test")
    return Questions(test, dict(enumerate(records)), scorer_of(test))


def _own_questions(path: Path, scorer: str) -> Questions:
    """Return the questions that a file of outputs brings along."""
    if scorer not in SCORERS:
        raise InputError(f"no scorer is named {scorer!r}{suggestion(scorer, SCORERS)} (known: {', '.join(SCORERS)})")
    if SCORERS[scorer].reads_steps:
        raise InputError(f"the scorer {scorer!r} needs the steps of each question: name the test set (--test) instead")
    records: dict[str, Record] = {}
    numbers: dict[str, int] = {}
    for number, (place, row) in enumerate(_rows(path)):
        for name in ("question", "gold"):
            if not isinstance(row.get(name), str):
                raise InputError(f"{place}: no text `{name}`, which --scorer needs; name the test set (--test) instead")
        if why := refusal(scorer, row["gold"]):
            raise InputError(f"{place}: the `gold` answer {shortened(row['gold'])} {why}: write the answer alone")
        index = row.get("index", number)
        id = str(row["id"]) if "id" in row else f"{path.stem}-{index}"
        if id in records and (records[id].question, records[id].answer) != (row["question"], row["gold"]):
            raise InputError(
                f"{place}: another question has the id {id!r} too, or another `gold`: give each an id of its own"
            )
        records[id] = Record(id, row["question"], (), row["gold"])
        numbers.setdefault(id, index if isinstance(index, int) else number)
    by_index = {numbers[id]: record for id, record in records.items()}
    if len(by_index) < len(records):
        raise InputError(f"{path}: two questions have the same `index`: give each an index of its own, or none")
    return Questions(path.stem, by_index, SCORERS[scorer], is_test=False)


def _rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the place and the fields of each line of a file of outputs."""
    rows = list(json_rows(read_text(path, FORM), path, FORM))
    if not rows:
        raise InputError(f"{path} is empty; {FORM}")
    for place, row in rows:
        if not isinstance(row.get("output"), str):
            raise InputError(f"{place}: no text `output`; {FORM}")
    return rows


def _scored(
    name: str, questions: Questions, results: Path, decoding: str, study: str | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the verdicts on a file's outputs or on a run's answers (columns as in :data:`VERDICTS`), and the lines
    that match no question (:data:`UNMATCHED`)."""
    if not Path(name).exists() and (":" in name or TRACKED.fullmatch(name)):  # a run or row
        if not questions.is_test:
            raise InputError(f"{name}: runs answer test sets, so they can only be compared under --test")
        answers = read_side(name, results, decoding, study).answers
        if questions.name not in answers:
            raise InputError(f"{name} was not evaluated on {questions.name}; it was on: {', '.join(answers)}")
        known = {record.id: record.answer for record in questions.records}
        require_same_questions(questions.name, gold_of(answers[questions.name]), known)
        return answers[questions.name], pd.DataFrame(columns=UNMATCHED)
    lines, unmatched, answered = [], [], set[str]()
    by_id = {record.id: record for record in questions.records}
    by_text: dict[str, list[Record]] = {}
    for record in questions.records:
        by_text.setdefault(normalise(record.question), []).append(record)
    rows = _rows(Path(name))
    for place, row in rows:
        record = _match(row, questions, by_id, by_text, answered)
        if isinstance(record, str):  # why there is none
            unmatched.append((place.rpartition(", line ")[2], record, row["output"]))
            continue
        answered.add(record.id)
        verdict = questions.score(record, row["output"])
        scores = (verdict.extracted, verdict.correct, verdict.strict)
        lines.append((record.id, questions.same_as[record.id], record.answer, row["output"], *scores))
    numbered = [row for _, row in rows if "id" not in row and isinstance(row.get("index"), int)]
    indices = {row["index"] for row in numbered if questions.knows(row)}
    if indices == {*range(1, len(questions.records) + 1)} and 0 in questions.by_index:
        raise InputError(f"{name}: `index` counts from 0, and here it seems to count from 1: subtract 1 from each")
    if not lines:
        _, why, _ = unmatched[0]
        raise InputError(f"{name}: no output matches a question of {questions.name} (line 1: {why}); {FORM}")
    return pd.DataFrame(lines, columns=VERDICTS), pd.DataFrame(unmatched, columns=UNMATCHED)


def _match(
    row: Mapping[str, Any],
    questions: Questions,
    by_id: Mapping[str, Record],
    by_text: Mapping[str, Sequence[Record]],
    answered: set[str],
) -> Record | str:
    """Return the question that a line answers, or why there is none. The question that a line repeats must be that of
    its id or index: otherwise the file may be of another version of the test set."""
    text = row.get("question")
    known = questions.knows(row)
    if "id" in row and (known or str(row["id"]) in by_id):
        record, named = by_id.get(str(row["id"])), f"id {shortened(row['id'])}"
    elif "index" in row and known:
        index, named = row["index"], f"index {shortened(row['index'])}"
        whole = isinstance(index, int) and not isinstance(index, bool)
        record = questions.by_index.get(index) if whole else None
    elif isinstance(text, str):
        alike, named = by_text.get(normalise(text), ()), f"question {shortened(text)}"
        record = next((one for one in alike if one.id not in answered), alike[0] if alike else None)
    else:
        return "no `id`, `index` or text `question`"
    if record is None:
        return f"{questions.name} has no {named}"
    if isinstance(text, str) and normalise(text) != normalise(record.question):
        return f"{named} is another question"
    return "an earlier line answers the same question" if record.id in answered else record


def _line(
    label: str, verdicts: pd.DataFrame, unmatched: pd.DataFrame, correct: pd.DataFrame, asked: int
) -> dict[str, Any]:
    low, high = interval(correct)
    line = {"outputs": label, "n": verdicts["id"].nunique(), "of": asked, "accuracy": verdicts["correct"].mean()}
    line |= {"low": low, "high": high, "strict": None, "no_answer": None, "unmatched": len(unmatched)}
    if "strict" in verdicts:  # what `compare` reads of records has neither
        line |= {"strict": verdicts["strict"].mean(), "no_answer": verdicts["extracted"].isna().mean()}
    return line


def render(scores: Scores) -> str:
    """Render scores as Markdown: accuracies, paired tests, and a table of what could not be matched."""
    questions = scores.questions
    parts = [
        f"# Scored outputs: {questions.name}",
        f"Scored by `{questions.scorer.name}`, version {questions.scorer.version}. What files hold was made elsewhere, "
        "by models that were not trained here: it is not ranked with runs of this suite.",
        tabulate(
            [_shown(line) for line in scores.lines.to_dict("records")],
            headers="keys",
            tablefmt="pipe",
            disable_numparse=True,
            colalign=("left", *["right"] * 6),
        ),
        f"Strict: {questions.scorer.strict_means}. Questions without an output count for nothing.",
    ]
    if len(scores.tests):
        tests = []
        for test in scores.tests.to_dict("records"):
            p = DASH if pd.isna(test["p_holm"]) else f"{test['p_holm']:.2g}"
            difference = DASH if pd.isna(test["difference"]) else points(test["difference"])
            tests.append([test["a"], test["b"], test["n"], difference, p, test["kind"]])
        headers = ["A", "B", "n", "A - B (points)", "p (Holm)", "test"]
        parts += ["## Paired tests over the same questions"]
        parts += [tabulate(tests, headers, tablefmt="pipe", disable_numparse=True)]
    if len(scores.unmatched):
        shown = scores.unmatched[:UNMATCHED_SHOWN].map(lambda value: shortened(value).replace("|", "\\|"))
        which = "" if len(shown) == len(scores.unmatched) else f": the first {len(shown)} of {len(scores.unmatched):,}"
        parts += [f"## Not matched{which}", tabulate(shown, headers="keys", tablefmt="pipe", showindex=False)]
    return "\n\n".join(parts)


def _shown(line: Mapping[Any, Any]) -> dict[str, str]:
    return {
        "Outputs": line["outputs"].replace("|", "\\|"),
        "n": f"{line['n']:,}" if line["n"] == line["of"] else f"{line['n']:,} of {line['of']:,}",
        "Accuracy (%)": percent(line["accuracy"]),
        "95 % interval": interval_cell(line).text,
        "Strict (%)": cell(line["strict"], percent).text,
        "No answer (%)": cell(line["no_answer"], percent).text,
        "Lines not matched": str(line["unmatched"]),
    }


def write(scores: Scores, folder: Path) -> list[Path]:
    """Write scores as Markdown and CSV, with the verdict on every question."""
    texts = {
        "table.md": render(scores) + "\n",
        "scores.csv": scores.lines.to_csv(index=False),
        "verdicts.csv": scores.shares.to_csv(index=False, float_format="%g"),
    }
    if len(scores.tests):
        texts["paired_tests.csv"] = scores.tests.to_csv(index=False)
    else:
        (folder / "paired_tests.csv").unlink(missing_ok=True)  # of other files
    return write_texts(folder, texts)
