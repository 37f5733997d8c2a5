"""Compare two runs, or all trainings of two rows.

A comparison has metrics, a paired test for each test set, and the questions on which the two differ. Runs and rows are
read from the records in a results folder, or from MLflow if they are given by an MLflow run id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd
from tabulate import tabulate

from benchmarks.archive import unpacked
from benchmarks.files import BrokenRecord
from benchmarks.records.provenance import kernels_of, outdated_scorers
from benchmarks.records.results import StudyRecords, read_study, require_records, to_frame
from benchmarks.records.statistics import FEWEST_TRAININGS, accuracy, correctness, family
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study, load_study, names_study, require_run, study_of_folder
from benchmarks.tracking.importer import run_results
from benchmarks.tracking.reading import tracked_run
from methods.errors import InputError

SHARES = ("accuracy", "strict", "no_answer", "deduplicated")  # metrics that are shares of 1, shown as percentages
WITHIN = "accuracy_std"  # prefix of the metrics that are deviations within one training
ANSWERS = ["test", "id", "seed", "text", "gold", "correct", "same_as"]  # columns of predictions that are read
FIRST = ["training_seed", "seed"]  # columns of answers: the lowest of both are those of the texts that are shown
ROUNDING = 1e-9  # of means of means
TRACKED = re.compile(r"[0-9a-f]{32}")  # an id of a run in MLflow
QUESTION_WIDTHS = [16, 10, None, None, 40, 40]  # id, gold, correctness of a and b, texts of a and b


@dataclass(frozen=True)
class Side:
    """A run, or all trainings of a row: metrics of each training, and answers by test set, which have a column
    ``training_seed`` that tells the trainings apart."""

    label: str
    metrics: list[dict[str, float]]
    answers: dict[str, pd.DataFrame]
    kernels: tuple[str, ...] = ()  # of CPUs that trained and answered; none if a GPU did, or if read from MLflow


@dataclass(frozen=True)
class Comparison:
    """A comparison of the runs ``a`` and ``b``, or of all trainings of two rows."""

    a: str
    b: str
    decoding: str
    metrics: pd.DataFrame  # metric, a, b (means over trainings), difference
    trainings: pd.DataFrame  # the accuracy of each training on each test set, if there are several
    tests: pd.DataFrame  # a paired test for each test set
    questions: pd.DataFrame  # that one answers right more often, with texts of the first training and decoding seed
    kernels: tuple[str, ...] = ()  # those of `a` and `b`, if they differ


def compare(a: str, b: str, results: Path, test: str | None, decoding: str, study: str | None = None) -> Comparison:
    """Compare two runs on one test set, or on all that both have if ``test`` is None. ``STUDY:BLOCK/ROW/sSEED`` is a
    run, ``STUDY:BLOCK/ROW`` stands for all trainings of a row, and 32 hexadecimal digits are an MLflow run id. STUDY is
    the name or the YAML file of a study with results in ``results``, or the folder of its results; folders hold those
    of ``study``, if it is given, else of the shipped study of their name. Raise :class:`InputError` if the runs cannot
    be found or compared."""
    sides = [read_side(name, results, decoding, study) for name in (a, b)]
    shared = [name for name in sides[0].answers if name in sides[1].answers]
    if not shared:
        raise InputError("the runs share no test set: name two that were evaluated on the same one")
    chosen = [name for name in shared if test in (None, name)]
    if not chosen:
        raise InputError(f"not both runs were evaluated on {test}; they share: {', '.join(shared)}")
    kernels = tuple("; ".join(side.kernels) for side in sides)
    differ = all(kernels) and {*sides[0].kernels} != {*sides[1].kernels}
    pairs = {name: (sides[0].answers[name], sides[1].answers[name]) for name in chosen}
    for name, (of_a, of_b) in pairs.items():
        require_same_questions(name, gold_of(of_a), gold_of(of_b))
    return Comparison(
        a=sides[0].label,
        b=sides[1].label,
        decoding=decoding,
        metrics=_metric_differences(*sides),
        trainings=_each_training(pairs),
        tests=_paired_tests(pairs),
        questions=pd.concat([_differing(name, *pair) for name, pair in pairs.items()], ignore_index=True),
        kernels=kernels if differ else (),
    )


def gold_of(answers: pd.DataFrame) -> dict[str, str]:
    """Return the gold answers of questions that were answered, by id."""
    return dict(zip(answers["id"], answers["gold"], strict=True))


def require_same_questions(test: str, a: dict[str, str], b: dict[str, str]) -> None:
    """Raise :class:`InputError` if what two sides answered under the name of a test set has other gold answers."""
    if not a.keys() & b.keys():
        raise InputError(f"{test}: the two sides have no question in common: evaluate both on the same questions")
    for id in a:
        if b.get(id, a[id]) != a[id]:
            raise InputError(
                f"{test}: the two sides answered different questions, {id} with the gold answers {a[id]!r} and "
                f"{b[id]!r}: evaluate both on the same version of the test set"
            )


def read_side(name: str, results: Path, decoding: str, study: str | None = None) -> Side:
    """Return a run or row by its name (see :func:`compare`)."""
    if not TRACKED.fullmatch(name):
        return _recorded(name, results, decoding, study)
    label, metrics, answers = tracked_run(name, results, decoding)
    return Side(label, [metrics], {test: frame.assign(training_seed=0) for test, frame in answers.items()})


def _recorded(name: str, results: Path, decoding: str, held: str | None) -> Side:
    """Return a run or row that is given by name, from its records."""
    called, _, place = name.rpartition(":")
    parts = place.count("/")
    if not called or parts not in (1, 2):
        raise InputError(
            f"{name!r} is no run: give STUDY:BLOCK/ROW/sSEED, STUDY:BLOCK/ROW for all trainings of a row, or an MLflow "
            "run id (32 hexadecimal digits)"
        )
    study, results = _study_and_results(called, results, held)
    if parts == 2:
        require_run(study, called, place)
        runs = [study.runs[place]]
    elif not (runs := study.trainings(*place.split("/"))):
        known = dict.fromkeys(f"{run.block}/{run.row}" for run in study.runs.values())
        raise InputError(f"study {called} has no row {place!r}; its rows are: {', '.join(known)}")
    with unpacked(results, [study.name, *(source.study for source in study.sources.values())]) as whole:
        require_records(study, whole)
        records = read_study(study, whole)
        frame = to_frame(records)
        metrics = [run_results(frame, run.id) for run in runs]
        answers = pd.concat([_answers(records, run, decoding, results) for run in runs], ignore_index=True)
        kernels = dict.fromkeys(text for run in runs for text in kernels_of(records.runs[run.id]))
    by_test = {str(test): frame for test, frame in answers.groupby("test", sort=False)}
    if parts == 2:
        label = f"{study.name}:{place} ({Paths(results, study.sources[place]).run})"
    else:
        seeds = ", ".join(f"s{run.seed}" for run in runs)
        where = results / study.name
        label = f"{study.name}:{place} ({len(runs)} training{'s' * (len(runs) > 1)}: {seeds}; {where})"
    return Side(label, metrics, by_test, tuple(kernels))


def _study_and_results(called: str, results: Path, held: str | None) -> tuple[Study, Path]:
    """Return a study and the folder that holds the folder of its results, which may be what it is called by."""
    if names_study(called) or not Path(called).is_dir():
        return load_study(called), results
    return study_of_folder(Path(called), held), Path(called).resolve().parent


def _answers(records: StudyRecords, run: RunSpec, decoding: str, results: Path) -> pd.DataFrame:
    """Return what a run answered under a decoding. ``results``: the folder that messages name."""
    record, home = records.runs[run.id], records.study.home(records.study.sources[run.id])
    if record.evaluate is None:
        task = "train" if record.train is None else "evaluate"
        raise BrokenRecord(
            f"{run.id} of study {records.study.name} has no answers in {results.absolute()} "
            f"({record.problems['evaluate']}): run `{home.command(task, results, run.id)}`"
            f"{', then `evaluate`' if task == 'train' else ''}"
        )
    if older := outdated_scorers(record.evaluate.scorers):
        raise InputError(
            f"{run.id} of study {records.study.name} was scored by another version of the scorer than today's "
            f"({', '.join(older)}): run `marcos-bench rescore {results / home.name}` first"
        )
    if (answers := records.answers_of(run, decoding, ANSWERS)) is None:
        known = ", ".join(record.evaluate.predictions)
        raise InputError(f"{run.id} has no predictions of decoding {decoding!r}; it has: {known}")
    return answers


def render(comparison: Comparison, limit: int = 10) -> str:
    """Render a comparison as plain text, with the number of differing questions per test set and ``limit`` of them."""
    parts = [f"a: {comparison.a}\nb: {comparison.b}\ndecoding: {comparison.decoding}"]
    if comparison.kernels:
        a, b = comparison.kernels
        parts.append(f"Computed with different kernels: rounding differs, as between seeds\na: {a}\nb: {b}")
    several = not comparison.trainings.empty
    heading = "Metrics (means over trainings)" if several else "Metrics"
    parts += [heading, _table(_with_units(comparison.metrics), ("", ".6g", ".6g", "+.6g"))]
    if several:
        parts += ["Accuracy (%) of each training", _table(comparison.trainings, ("", "", ""))]
    parts += ["Paired tests over the same questions (p_holm: corrected for the number of test sets)"]
    if "untested" in set(comparison.tests["kind"]):
        parts[-1] += f". Untested: a test takes one training of each, or at least {FEWEST_TRAININGS} of each"
    tests = comparison.tests.assign(**{name: 100 * comparison.tests[name] for name in ("a", "b", "a - b")})
    tests = tests.rename(columns={"a": "a (%)", "b": "b (%)", "a - b": "a - b (points)"})
    parts += [_table(tests, ("", "", ".2f", ".2f", "+.2f", ".4g", ".4g", ""))]
    for test in tests["test"]:
        differing = comparison.questions.loc[comparison.questions["test"] == test]
        if differing.empty:
            parts.append(f"{test}: both answer the same questions right, equally often")
            continue
        texts = "; texts of the first training and decoding seed" if several else ""
        shown = differing.drop(columns="test").head(limit)
        parts.append(
            f"{test}: the two differ on {len(differing)} questions; {len(shown)} of them, the clearest first{texts}"
        )
        parts.append(_table(shown, ("", "", ".2f", ".2f", "", ""), QUESTION_WIDTHS))
    return "\n\n".join(parts)


def _with_units(metrics: pd.DataFrame) -> pd.DataFrame:
    """Convert shares to percentages, as in the tables, and memory to MB."""
    shares, memory = metrics["metric"].str.startswith(SHARES), metrics["metric"].str.startswith("peak_memory")
    shown = metrics.copy()
    for chosen, factor, unit in ((shares, 100, "%"), (memory, 1e-6, "MB")):
        shown.loc[chosen, ["a", "b", "a - b"]] *= factor
        shown.loc[chosen, "metric"] += f" ({unit})"
    return shown


def _table(frame: pd.DataFrame, formats: Sequence[str], wraps: list[int | None] | None = None) -> str:
    texts = [place for place, form in enumerate(formats) if not form]  # a text such as 2.50 stays as it is
    return tabulate(
        frame, headers="keys", showindex=False, floatfmt=formats, maxcolwidths=wraps, disable_numparse=texts
    )


def _metric_differences(a: Side, b: Side) -> pd.DataFrame:
    """Return the results that all runs have, as means over trainings. With several trainings, deviations within each of
    them are left out."""
    names = set.intersection(*map(set, (*a.metrics, *b.metrics)))
    if max(len(a.metrics), len(b.metrics)) > 1:
        names = {name for name in names if not name.startswith(WITHIN)}
    lines = []
    for name in sorted(names):
        x, y = (fmean(metrics[name] for metrics in side.metrics) for side in (a, b))
        lines.append((name, x, y, x - y))
    return pd.DataFrame(lines, columns=["metric", "a", "b", "a - b"])


def _each_training(pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> pd.DataFrame:
    """Return the accuracies of the trainings of both sides, as text, by test set; nothing if there is one of each."""

    def accuracies(answers: pd.DataFrame) -> str:
        return ", ".join(f"{100 * share:.2f}" for share in correctness(answers).mean())

    several = any(frame["training_seed"].nunique() > 1 for pair in pairs.values() for frame in pair)
    lines = [(test, accuracies(a), accuracies(b)) for test, (a, b) in pairs.items()] if several else []
    return pd.DataFrame(lines, columns=["test", "a", "b"])


def _paired_tests(pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> pd.DataFrame:
    correct = {name: (correctness(a), correctness(b)) for name, (a, b) in pairs.items()}
    lines = []
    for (name, (a, b)), test in zip(correct.items(), family([*correct.values()]), strict=True):
        values = {"test": name, "n": test["n"], "a": accuracy(a), "b": accuracy(b), "a - b": test["difference"]}
        lines.append(values | {"p": test["p_value"], "p_holm": test["p_holm"], "kind": test["kind"]})
    return pd.DataFrame(lines)


def _differing(test: str, a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the questions whose correctness differs, largest difference first."""
    shown = [frame.loc[(frame[FIRST] == frame[FIRST].min()).all(axis="columns")].set_index("id") for frame in (a, b)]
    right = [correctness(frame, "id").mean(axis=1) for frame in (a, b)]
    both = pd.DataFrame(dict(zip(("correct_a", "correct_b"), right, strict=True))).dropna()
    both["apart"] = (both["correct_a"] - both["correct_b"]).abs()
    both = both.loc[both["apart"] > ROUNDING].sort_values(by=["apart"], ascending=False, kind="stable")
    texts = {"gold": shown[0]["gold"], "text_a": shown[0]["text"], "text_b": shown[1]["text"]}
    both = both.assign(test=test, **{name: column.reindex(both.index) for name, column in texts.items()})
    columns = ["test", "id", "gold", "correct_a", "correct_b", "text_a", "text_b"]
    return pd.DataFrame(both.rename_axis("id").reset_index(), columns=columns)
